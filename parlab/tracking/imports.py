"""Imports of every kind: stores of other trackers become reported runs, everything else goes to `ingest.imports`.

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
from typing import IO, NamedTuple

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from parlab.formats.schema import Document, UnreadLine
from parlab.ingest.files import archives
from parlab.ingest.files import imports as ingest
from parlab.ingest.files.outcome import NAME_LENGTH, Change, Import, ImportedRun
from parlab.ingest.files.reading import Progress
from parlab.ingest.files.received import PictureLookup, Refused, copied, visible
from parlab.ingest.files.workspace import open_workspace
from parlab.lab.models import Experiment, Run, TrackedRun
from parlab.lab.services import storable
from parlab.lab.services.configs import lock_experiment
from parlab.lab.services.experiments import experiment_create
from parlab.series import store as series_store
from parlab.tracking.artifacts import BLOCK_BYTES, BadArtifact, artifact_store
from parlab.tracking.runs import (
    Conflict,
    Point,
    parameters_set,
    points_append,
    tags_set,
    tracked_run_start,
    tracked_run_update,
)
from parlab.tracking.stores import ForeignRun, Store, StoreError, is_store_file, stores_in
from parlab.tracking.stores.foreign import identity_of

logger = logging.getLogger(__name__)

ORIGIN_TAG = "parlab.imported_from"
MAX_METRICS = 10_000
MAX_VERSIONS = 100
MAX_COMPARED = 200
"""Metrics of which the last stored point is compared with the store."""
_BLOCK = 20_000
_HEAD = 16


class _Stored(NamedTuple):
    """A foreign run after its import, or what its import would be."""

    run: Run | None
    foreign: ForeignRun
    change: Change
    last_step: int


def upload_import(
    *,
    experiment: Experiment | None,
    name: str,
    stream: IO[bytes],
    user: User,
    format: str | None = None,
    dry_run: bool = False,
    pictures: PictureLookup | None = None,
    progress: Progress | None = None,
) -> list[Import]:
    """Import an uploaded file or archive: the runs of a tracker's store, or what `ingest.imports` reads.

    Raises Refused with the file and the reason; then nothing is stored.
    """
    if format is None:
        stored = _upload_stores(stream, name, experiment, user, dry_run)
        if stored:
            return stored
        stream.seek(0)
    return ingest.upload_import(
        experiment=experiment,
        name=name,
        stream=stream,
        user=user,
        format=format,
        dry_run=dry_run,
        pictures=pictures,
        progress=progress,
    )


def _upload_stores(
    stream: IO[bytes], name: str, experiment: Experiment | None, user: User, dry_run: bool
) -> list[Import]:
    """Import the stores in a file or archive; an empty list if there are none."""
    head = stream.read(_HEAD)
    stream.seek(0)
    limit = int(settings.UPLOAD_LIMIT_MIB) << 20
    if not head.strip(b"\x00 \t\r\n"):
        return []
    with open_workspace() as workspace:
        if is_store_file(head):
            upload = copied(stream, name, workspace.new_path(), limit=limit)
            return stores_import(
                files={upload.name: upload.path}, experiment=experiment, user=user, dry_run=dry_run
            ).imports
        if not head.startswith(archives.MAGIC) and not name.endswith(".tar"):
            return []
        upload = copied(stream, name, workspace.new_path(), limit=limit)
        if not archives.is_archive(upload):
            return []
        directory = workspace.new_path()
        directory.mkdir()
        files = {member.name: member.path for member in archives.unpack(upload, directory, limit=limit)}
        return stores_import(files=files, experiment=experiment, user=user, dry_run=dry_run).imports


class StoresImport(NamedTuple):
    """The imports of the stores of a directory, and the names of the files that belong to these stores."""

    imports: list[Import]
    files: frozenset[str]


def stores_import(
    *, files: Mapping[str, Path], experiment: Experiment | None, user: User, dry_run: bool = False
) -> StoresImport:
    """Import the runs of all stores among the files {relative path: file}, each store as a whole or not at all.

    Without an experiment each run goes into the experiment that its tracker names. Raises Refused.
    """
    try:
        stores = stores_in(files)
        imports = [made for store in stores for made in _store_import(store, experiment, user, dry_run)]
    except StoreError as problem:
        raise Refused(str(problem)) from problem
    return StoresImport(imports, frozenset(name for store in stores for name in store.files))


def _store_import(store: Store, experiment: Experiment | None, user: User, dry_run: bool) -> list[Import]:
    by_name: dict[str, list[ForeignRun]] = {}
    for foreign in store.runs:
        by_name.setdefault(_experiment_name(foreign), []).append(foreign)
    if not by_name:
        raise Refused(f"{store.name} contains no runs; choose the directory or database that your runs were logged to")
    if dry_run:
        return [
            _described(store, name, experiment or Experiment.objects.filter(name=name).first(), map(_expected, runs))
            for name, runs in by_name.items()
        ]
    with transaction.atomic():
        imports = []
        for name, runs in by_name.items():
            target = experiment or _experiment(name, store, user)
            lock_experiment(target)
            notes: list[str] = []
            stored = [_run_store(foreign, store, target, user, notes) for foreign in runs]
            imports.append(_described(store._replace(notes=[*store.notes, *notes]), name, target, stored))
        return imports


def _experiment_name(foreign: ForeignRun) -> str:
    return " ".join(visible(storable.text(foreign.experiment)).split())[:NAME_LENGTH] or "Default"


def _experiment(name: str, store: Store, user: User) -> Experiment:
    existing = Experiment.objects.filter(name=name).first()
    if existing is not None:
        return existing
    return experiment_create(name=name, owner=user, source=f"Imported from {store.name} ({store.tracker}).")


def _expected(foreign: ForeignRun) -> _Stored:
    """Return what the import of a run would change."""
    foreign, tracked = _version(foreign)
    counts = _counts(tracked)
    new, last_step = 0, 0
    for point in _new_points(foreign, counts):
        new, last_step = new + 1, max(last_step, point.step)
    if tracked is None:
        return _Stored(None, foreign, "new", last_step)
    return _Stored(tracked.run, foreign, "continued" if new or _is_changed(tracked, foreign) else "none", last_step)


def _run_store(foreign: ForeignRun, store: Store, experiment: Experiment, user: User, notes: list[str]) -> _Stored:
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
    last_step = 0
    while block := list(islice(points, _BLOCK)):
        points_append(tracked=tracked, points=block)
        last_step = max(last_step, *(point.step for point in block), 0)
        change = "continued" if change == "none" else change
    notes += _artifacts_store(tracked, foreign)
    if change != "none":
        tracked_run_update(tracked=tracked, status=foreign.status, end_ms=foreign.end_ms, is_news=False)
        logger.info("imported run %s of %s from %s", tracked.run.number, experiment, store.name)
    return _Stored(Run.everything.get(pk=tracked.run_id), foreign, change, last_step)


def _version(foreign: ForeignRun) -> tuple[ForeignRun, TrackedRun | None]:
    """Return a run under the ID of its version, and the stored run of that version; None for a new one."""
    version = foreign
    for number in range(2, MAX_VERSIONS + 2):
        tracked = TrackedRun.objects.select_related("run").filter(uuid=version.identity).first()
        if tracked is None or number > MAX_VERSIONS or _is_beginning(tracked, foreign):
            return version, tracked
        label = f"{foreign.name or foreign.identity[:8]} (version {number})"
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
                artifact_store(tracked=tracked, path=storable.text(path), blocks=_blocks(file))
        except BadArtifact as problem:
            notes.append(str(problem))
    return notes


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def _described(
    store: Store, name: str, experiment: Experiment | None, runs: Iterator[_Stored] | Sequence[_Stored]
) -> Import:
    """Describe the runs of a store that belong to one experiment."""
    stored = list(runs)
    changes = {item.change for item in stored}
    change: Change = "new" if "new" in changes else "continued" if "continued" in changes else "none"
    document = Document(file=store.name, format=f"{store.tracker} store")
    document.unread.lines = len(store.notes)
    document.unread.examples = [UnreadLine(line=0, reason=note, text="") for note in store.notes[:20]]
    return Import(
        name=store.name,
        experiment=experiment,
        experiment_name=experiment.name if experiment else name,
        source=None,
        is_new=change != "none",
        change=change,
        version=1,
        document=document,
        runs=[_described_run(item) for item in stored],
        findings=[],
    )


def _described_run(item: _Stored) -> ImportedRun:
    run, foreign = item.run, item.foreign
    label = foreign.name or foreign.identity[:8]
    if run is None:
        state = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "cancelled"}.get(foreign.status, "running")
        return ImportedRun(None, label, state, "", {}, item.last_step)
    steps = int((run.summary.get("steps") or {}).get("count") or 0)
    return ImportedRun(run.number, run.label or label, run.state, run.reason, {}, steps, run.summary)
