"""Stores of other trackers in an import (`ingest.imports`): their runs become reported runs.

A run is identified by its ID: importing a store again appends the points that are new, and changes nothing where there
are none. Parameters, tags, points and artifacts take the same services as runs that report over MLflow's protocol.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from django.contrib.auth.models import User

from parlab.formats.schema import Document, Unread, UnreadLine
from parlab.ingest.files.outcome import NAME_LENGTH, Import, ImportedRun, stored_run
from parlab.ingest.files.previous_imports import Change
from parlab.ingest.files.reading import Progress
from parlab.ingest.files.received import Refused, visible
from parlab.ingest.files.stored import Target
from parlab.lab.models import Experiment, Run, TrackedRun
from parlab.lab.services import storable
from parlab.lab.services.configs import lock_experiment
from parlab.lab.services.experiments import experiment_create, named_experiment
from parlab.series import store as series_store
from parlab.tracking.artifacts import BadArtifact, artifact_store, blocks_of
from parlab.tracking.point import Point
from parlab.tracking.runs import (
    STATES,
    Conflict,
    parameters_set,
    points_append,
    tags_set,
    tracked_run_start,
    tracked_run_update,
)
from parlab.tracking.stores.confined import read_confined
from parlab.tracking.stores.foreign import ForeignRun, Store, identity_of

logger = logging.getLogger(__name__)

ORIGIN_TAG = "parlab.imported_from"
MAX_METRICS = 100_000
MAX_VERSIONS = 100
MAX_COMPARED = 200
"""Metrics of which the last stored point is compared with the store."""
MAX_NOTES = 20
_BLOCK = 20_000


def stores_of(files: Mapping[str, Path]) -> list[StoreReading]:
    """Read the stores among files, {path: file}. Raises Refused for one that is damaged or contains no runs."""
    return [StoreReading(store) for store in read_confined(files)]


class StoreReading:
    """A store with its runs by the experiment that their tracker names."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.files = store.files
        self._runs: dict[str, list[ForeignRun]] = {}
        for run in store.runs:
            self._runs.setdefault(_experiment_name(run), []).append(run)
        if not self._runs:
            raise Refused(
                f"{store.name} contains no runs; choose the directory or database that your runs were logged to"
            )

    def expected(self, target: Target) -> list[Import]:
        """Describe what `keep` would make of the runs."""
        return [
            self._import(name, target.experiment or _existing(name), [_expected(run) for run in runs])
            for name, runs in self._runs.items()
        ]

    def keep(self, target: Target, progress: Progress | None) -> list[Import]:
        """Store what is new of the runs; without an experiment, each goes into the one that its tracker names."""
        imports: list[Import] = []
        done = 0
        for name, runs in self._runs.items():
            experiment = target.experiment or self._experiment(name, target.user)
            lock_experiment(experiment)
            kept: list[tuple[ImportedRun, Change]] = []
            notes: list[str] = []
            for run in runs:
                kept.append(_keep(run, self._store, experiment, target.user, notes))
                done += 1
                if progress:
                    progress(done / len(self._store.runs))
            imports.append(self._import(name, experiment, kept, notes))
        return imports

    def _experiment(self, name: str, user: User) -> Experiment:
        source = f"Imported from {self._store.name} ({self._store.tracker})."
        return _existing(name) or experiment_create(name=name, owner=user, source=source)

    def _import(
        self,
        name: str,
        experiment: Experiment | None,
        runs: Sequence[tuple[ImportedRun, Change]],
        notes: Sequence[str] = (),
    ) -> Import:
        changes = {change for _, change in runs}
        change: Change = "new" if "new" in changes else "continued" if "continued" in changes else "none"
        document = Document(file=self._store.name, format=f"{self._store.tracker} store")
        unread = [UnreadLine(line=0, reason=note, text="") for note in (*self._store.notes, *notes)]
        document.unread = Unread(lines=len(unread), examples=unread[:MAX_NOTES])
        return Import(
            name=self._store.name,
            experiment=experiment,
            experiment_name=experiment.name if experiment else name,
            change=change,
            document=document,
            runs=[run for run, _ in runs],
        )


def _existing(name: str) -> Experiment | None:
    return named_experiment(name)


def _experiment_name(foreign: ForeignRun) -> str:
    return " ".join(visible(storable.text(foreign.experiment)).split())[:NAME_LENGTH] or "Default"


def _expected(foreign: ForeignRun) -> tuple[ImportedRun, Change]:
    """Return what the import of a run would make of it."""
    foreign, tracked = _version(foreign)
    new, last_step = 0, 0
    for point in _new_points(foreign, _counts(tracked)):
        new, last_step = new + 1, max(last_step, point.step)
    if tracked is None:
        return ImportedRun(None, _label(foreign), STATES[TrackedRun.Status(foreign.status)], "", {}, last_step), "new"
    return _described(tracked.run, foreign), "continued" if new or _is_changed(tracked, foreign) else "none"


def _keep(
    foreign: ForeignRun, store: Store, experiment: Experiment, user: User, notes: list[str]
) -> tuple[ImportedRun, Change]:
    """Create a run, or append what is new to the run with the same ID; a changed run is a new version of it."""
    identity = foreign.identity
    foreign, tracked = _version(foreign)
    change: Change = "new"
    if tracked is None:
        if foreign.identity != identity:
            notes.append(f"{foreign.name}: its points have changed since it was imported; this is a new version")
        tracked = tracked_run_start(
            experiment=experiment,
            user=user,
            name=foreign.name,
            user_name=foreign.user_name,
            start_ms=foreign.start_ms,
            run_uuid=foreign.identity,
        )
    else:
        change = "continued" if _is_changed(tracked, foreign) else "none"
    if change != "none":
        _settings_store(tracked, foreign, store, notes)
    points = _new_points(foreign, _counts(tracked))
    while block := list(islice(points, _BLOCK)):
        points_append(tracked=tracked, points=block)
        change = "continued" if change == "none" else change
    notes += _artifacts_store(tracked, foreign)
    if change != "none":
        tracked_run_update(tracked=tracked, status=foreign.status, end_ms=foreign.end_ms, is_news=False)
        logger.info("imported run %s of %s from %s", tracked.run.number, experiment, store.name)
    return _described(Run.everything.get(pk=tracked.run_id), foreign), change


def _described(run: Run, foreign: ForeignRun) -> ImportedRun:
    described = stored_run(run)
    return described._replace(label=described.label or _label(foreign))


def _label(foreign: ForeignRun) -> str:
    return foreign.name or foreign.identity[:8]


def _version(foreign: ForeignRun) -> tuple[ForeignRun, TrackedRun | None]:
    """Return a run under the ID of its version, and the stored run of that version; None for a new one."""
    version = foreign
    for number in range(2, MAX_VERSIONS + 2):
        tracked = TrackedRun.objects.select_related("run").filter(uuid=version.identity).first()
        if tracked is None or number > MAX_VERSIONS or _is_beginning(tracked, foreign):
            return version, tracked
        label = f"{_label(foreign)} (version {number})"
        version = foreign._replace(identity=identity_of("version", foreign.identity, str(number)), name=label)
    raise AssertionError("unreachable")


def _is_beginning(tracked: TrackedRun, foreign: ForeignRun) -> bool:
    """Return whether the stored points are the beginning of those of the store: the last one of each metric is."""
    attempt_id = tracked.run.current_attempt().pk
    counts = _counts(tracked)
    last: dict[str, float] = {}
    seen: Counter[str] = Counter()
    for point in foreign.points():
        seen[point.key] += 1
        if seen[point.key] == counts.get(point.key):
            last[point.key] = point.value
    compared = [key for key in sorted(counts) if seen[key]][:MAX_COMPARED]
    if any(seen[key] < counts[key] for key in compared):
        return False
    for key in compared:
        stored = float(series_store.read(attempt_id, key, rank=0).values[-1])
        if stored != last[key] and not (math.isnan(stored) and math.isnan(last[key])):
            return False
    return True


def _is_changed(tracked: TrackedRun, foreign: ForeignRun) -> bool:
    """Return whether status, parameters or tags of a stored run differ; points and artifacts are compared elsewhere."""
    tags = dict(tracked.tags.values_list("key", "value"))
    keys = set(tracked.parameters.values_list("key", flat=True))
    return (
        tracked.status != foreign.status
        or not keys >= _clean(foreign.parameters).keys()
        or any(tags.get(key) != value for key, value in _clean(foreign.tags).items())
    )


def _settings_store(tracked: TrackedRun, foreign: ForeignRun, store: Store, notes: list[str]) -> None:
    existing = set(tracked.parameters.values_list("key", flat=True))
    parameters = {key: value for key, value in _clean(foreign.parameters).items() if key not in existing}
    try:
        parameters_set(tracked=tracked, parameters=parameters)
    except Conflict as problem:
        notes.append(str(problem))
    tags_set(tracked=tracked, tags={**_clean(foreign.tags), ORIGIN_TAG: f"{store.tracker}: {store.name}"[:8_000]})


def _clean(texts: Mapping[str, str]) -> dict[str, str]:
    return {
        storable.text(key): storable.text(value)
        for key, value in texts.items()
        if 0 < len(key) <= 250 and key == storable.text(key)
    }


def _counts(tracked: TrackedRun | None) -> dict[str, int]:
    """Return how many points of each metric are stored."""
    if tracked is None:
        return {}
    infos = series_store.metrics(tracked.run.current_attempt().pk)
    return {info.metric: info.points for info in infos if info.rank == 0}


def _new_points(foreign: ForeignRun, counts: Mapping[str, int]) -> Iterator[Point]:
    """Yield the points after those that are stored: stores of trackers only grow."""
    seen: dict[str, int] = {}
    for point in foreign.points():
        position = seen.get(point.key, 0)
        if position == 0 and len(seen) >= MAX_METRICS:
            continue
        seen[point.key] = position + 1
        if position >= counts.get(point.key, 0) and "\x00" not in point.key:
            yield point


def _artifacts_store(tracked: TrackedRun, foreign: ForeignRun) -> list[str]:
    """Store the files of a run that are new or have another size; returns a note for each that cannot be stored."""
    existing = dict(tracked.artifacts.values_list("path", "size"))
    notes: list[str] = []
    for path, file in sorted(foreign.artifacts.items()):
        try:
            if existing.get(path) != file.stat().st_size:
                artifact_store(tracked=tracked, path=storable.text(path), blocks=blocks_of(file))
        except BadArtifact as problem:
            notes.append(str(problem))
    return notes
