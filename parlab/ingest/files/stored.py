"""Step 4 of an import: drafts -> rows in one transaction: source, runs, attempts, series, logs and pictures.

Series are packed before the transaction, which only writes rows: all other writers of SQLite wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import IO, Any, NamedTuple, Protocol

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from parlab.ingest.files.choices import TAKEN, with_taken
from parlab.ingest.files.drafts import LEARNT, Draft
from parlab.ingest.files.images import images_store
from parlab.ingest.files.outcome import NAME_LENGTH, Import, experiment_name, made, unchanged
from parlab.ingest.files.previous_imports import Change, Earlier, earlier
from parlab.ingest.files.reading import Progress, Reading, part_of
from parlab.ingest.files.received import Received, Refused
from parlab.ingest.files.recording import Recording, packed_series
from parlab.ingest.files.requested_format import Wanted
from parlab.ingest.readings.document_text import notes_of
from parlab.ingest.readings.launches import Sections
from parlab.ingest.readings.results import Result
from parlab.ingest.spool import spooled
from parlab.lab.models import Attempt, Config, Experiment, Run, Snapshot, Source, SourceChunk
from parlab.lab.services import storable
from parlab.lab.services.attempts import configuration_snapshot, headline, results_snapshot
from parlab.lab.services.configs import lock_experiment
from parlab.lab.services.events import loss_judged
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.findings import findings_refresh
from parlab.lab.services.runs import point_label
from parlab.series import log
from parlab.series import store as series_store
from runners.config import digest, sections

logger = logging.getLogger(__name__)

_CHUNKS_AT_ONCE = 64
# The fields that a rebuild updates; number, configuration and author stay.
_REBUILT = (
    "label", "point", "point_digest", "resolved", "place", "first_line", "last_line", "launch", "state", "reason",
    "summary", "step_time_s", "samples_per_s", "tokens_per_s", "memory_max_bytes", "started_at", "ended_at",
    "numbers_at", "has_end", "loss_mark",
)  # fmt: skip


class Target(NamedTuple):
    """Where an import goes, whose it is, and the format that the user named."""

    experiment: Experiment | None
    """None: the experiment that already contains the file, or a new one."""
    user: User
    format: Wanted | None = None


class TrackerStore(Protocol):
    """The store of another tracker as its reader returns it: like a draft, but `parlab.tracking.imports` keeps it."""

    files: frozenset[str]
    """The files of the delivery that belong to it."""

    def expected(self, target: Target) -> list[Import]:
        """Describe what `keep` would make of it, one item per experiment."""

    def keep(self, target: Target, progress: Progress | None) -> list[Import]:
        """Store its runs, or what is new of them; called in a transaction that has locked the target."""


class StoredRun(NamedTuple):
    """A run and the result that it was built from."""

    run: Run
    result: Result


def sources_of(files: Sequence[Received], experiment: Experiment | None) -> list[Source]:
    """Return the sources of the files if one experiment already contains all of them, else an empty list."""
    sources: list[Source] = []
    for file in files:
        before = earlier(file, experiment)
        if before.change != "none" or before.source is None:
            return []
        experiment = before.source.experiment
        sources.append(before.source)
    return sources


def store(drafts: Sequence[Draft], target: Target) -> list[Import]:
    """Store drafts in one experiment, all or none; must not run in a transaction.

    A file that the experiment already contains stays unchanged, one that has grown continues its runs, and one that
    begins differently than before is a further version with runs of its own.
    """
    with spooled() as file:
        return _store([_packed(draft, file) for draft in drafts], target)


@transaction.atomic
def store_runs(stores: Sequence[TrackerStore], target: Target, progress: Progress | None = None) -> list[Import]:
    """Store the runs of other trackers, all or none."""
    _lock(target)
    imports: list[Import] = []
    for number, each in enumerate(stores):
        report = part_of(progress, number / len(stores), 1 / len(stores)) if progress else None
        imports += each.keep(target, report)
    return imports


def _packed(draft: Draft, file: IO[bytes]) -> Draft:
    series = {
        segment: packed_series([recording], recording.series.keys, file)
        for segment, recording in draft.reading.recordings.items()
    }
    return draft._replace(series=series)


@transaction.atomic
def _store(drafts: Sequence[Draft], target: Target) -> list[Import]:
    imports: list[Import] = []
    _lock(target)
    target = target._replace(experiment=target.experiment or _experiment_of(drafts))
    stored_now: list[int] = []
    for draft in drafts:
        _lock(target)
        before = earlier(draft.reading.received, target.experiment, besides=stored_now)
        if before.change == "none" and before.source is not None:
            imports.append(unchanged(before.source))
        elif before.change == "continued" and before.source is not None:
            imports.append(_continue(before.source, draft))
        else:
            imports.append(_store_draft(draft, target, before))
        target = target._replace(experiment=imports[-1].experiment)
        stored_now += [imports[-1].source.pk] if imports[-1].source else []
    return imports


def _experiment_of(drafts: Sequence[Draft]) -> Experiment | None:
    """Return the experiment that contains one of the files, or the beginning of one."""
    sources = (earlier(draft.reading.received, None).source for draft in drafts)
    return next((source.experiment for source in sources if source is not None), None)


def _continue(source: Source, draft: Draft) -> Import:
    """Replace the bytes of a source by those of the grown file; its runs keep their numbers."""
    received = draft.reading.received
    source.sha256, source.size, source.continued_at = received.sha256, received.size, timezone.now()
    source.save(update_fields=["sha256", "size", "continued_at"])
    source.chunks.all().delete()
    _chunks_store(source, draft)
    logger.info("%s of %s has grown to %d bytes", source.name, source.experiment, source.size)
    return _rebuilt(source, draft, "continued")


def rebuild(source: Source, draft: Draft) -> Import:
    """Replace what is stored of a source by a new draft of the same bytes; must not run in a transaction."""
    with spooled() as file:
        packed = _packed(draft, file)
        with transaction.atomic():
            lock_experiment(source.experiment)
            return _rebuilt(source, packed, "none")


def _rebuilt(source: Source, draft: Draft, change: Change) -> Import:
    source.format, source.document = draft.reading.document.format, _document_json(draft.reading)
    source.save(update_fields=["format", "document"])
    runs = _runs_store(source, draft, source.created_by)
    images_store(source, draft.reading.document, draft.reading.received.pictures)
    findings_refresh(experiment=source.experiment)
    return made(source, draft.reading.document, runs, change)


def _lock(target: Target) -> None:
    """Let imports into one experiment follow each other; without an experiment, the imports of one user.

    A second click on Import would otherwise create a second experiment.
    """
    if target.experiment is None:
        User.objects.select_for_update(no_key=True).get(pk=target.user.pk)
    else:
        lock_experiment(target.experiment)


def _store_draft(draft: Draft, target: Target, before: Earlier) -> Import:
    reading = draft.reading
    experiment = target.experiment or _new_experiment(draft, target.user)
    source = _source_store(experiment, draft, target, before.version)
    runs = _runs_store(source, draft, target.user)
    images_store(source, reading.document, reading.received.pictures)
    if reading.is_page:
        _notes_add(experiment, reading)
    findings_refresh(experiment=experiment)
    logger.info("imported %s into %s: %d runs", source.name, experiment, len(runs))
    return made(source, reading.document, runs, before.change)


def _new_experiment(draft: Draft, user: User) -> Experiment:
    base_name = name = experiment_name(draft.reading)
    for count in range(2, 1_000):
        try:
            return experiment_create(name=name, owner=user, source=f"Imported from {draft.reading.received.name}.")
        except ValueError:
            name = f"{base_name[: NAME_LENGTH - 6]} ({count})"
    raise Refused(f"1,000 experiments are named {base_name!r}; choose the experiment to import into")


def _notes_add(experiment: Experiment, reading: Reading) -> None:
    """Append the prose of a page to the experiment's notes."""
    notes = storable.text(notes_of(reading.lines, reading.document))
    if not notes:
        return
    heading = f"From {reading.received.name}:\n\n" if experiment.notes else ""
    experiment.notes = f"{experiment.notes}\n\n{heading}{notes}".strip()
    experiment.save(update_fields=["notes", "updated_at"])


def _source_store(experiment: Experiment, draft: Draft, target: Target, version: int) -> Source:
    """Store the bytes of a file and the document that the readers made of it."""
    received = draft.reading.received
    source = Source.objects.create(
        experiment=experiment,
        name=received.name,
        format=draft.reading.document.format,
        wanted_format=target.format.name if target.format else "",
        log_format=target.format.log_format if target.format else None,
        sha256=received.sha256,
        size=received.size,
        version=version,
        document=_document_json(draft.reading),
        created_by=target.user,
    )
    _chunks_store(source, draft)
    return source


def _chunks_store(source: Source, draft: Draft) -> None:
    chunks = (SourceChunk(source=source, position=at, size=size, data=data) for at, size, data in draft.raw.rows())
    while batch := list(islice(chunks, _CHUNKS_AT_ONCE)):
        SourceChunk.objects.bulk_create(batch)


def _document_json(reading: Reading) -> dict[str, Any]:
    """Return a document as JSON that every supported database can store, with the values left in the text only."""
    document = reading.document.model_dump(mode="json", exclude={"findings"})
    document["findings"] = [finding.model_dump(mode="json", exclude_none=True) for finding in reading.document.findings]
    for reason, count in reading.refused.items():
        example = {"line": 0, "reason": f"{count} values remain in the text only: {reason}", "text": ""}
        document["unread"]["examples"].append(example)
    clean: dict[str, Any] = storable.json(document)
    return clean


def _runs_store(source: Source, draft: Draft, user: User) -> list[Run]:
    """Store the results of a draft as runs. Existing runs of the source are matched by their place and updated."""
    existing = {digest(run.place): run for run in source.runs.all()}
    results = {digest(result.place): result for result in draft.results}
    source.runs.exclude(pk__in=[run.pk for place, run in existing.items() if place in results]).delete()
    config = _config(source, draft.results, user) if draft.results else None
    number: int = source.experiment.runs.aggregate(last=Max("number"))["last"] or 0
    stored_runs, new_runs = [], []
    for place, result in results.items():
        run = existing.get(place)
        if run is None:
            number += 1
            run = Run(number=number, experiment=source.experiment, source=source, created_by=user, config=config)
            run.origin = Run.Origin.IMPORTED
            new_runs.append(run)
        _fill(run, result, _recording(draft, result), source)
        stored_runs.append(StoredRun(run, result))
    _runs_update([run for run, _ in stored_runs if run.pk])
    Run.objects.bulk_create(new_runs, batch_size=100)
    _attempts_store(stored_runs, draft)
    runs = [run for run, _ in stored_runs]
    snapshots = [configuration_snapshot(run, 1) for run in runs] + [_results_snapshot(run) for run in runs]
    Snapshot.objects.bulk_create(snapshots, batch_size=100, ignore_conflicts=True)
    for run in runs:
        loss_judged(run=run, attempt_number=1, loss=run.summary.get("loss") or {})
    return runs


def _runs_update(runs: Sequence[Run]) -> None:
    # Runs may exchange their points: temporary digests keep the points unique until all are written.
    for run in runs:
        Run.objects.filter(pk=run.pk).update(point_digest=f"rebuilding {run.pk}")
    Run.objects.bulk_update(runs, _REBUILT, batch_size=100)


def _fill(run: Run, result: Result, recording: Recording | None, source: Source) -> None:
    summary = with_taken(storable.json(result.summary), (run.summary or {}).get(TAKEN) or {})
    run.point = storable.json(result.point)
    run.point_digest = digest(run.point)
    label = point_label(run.point) or storable.text(result.title) or source.name
    run.label = f"{label[:290]}, {LEARNT}" if LEARNT in summary else label[:300]
    run.resolved, run.place = result.resolved, result.place
    run.first_line, run.last_line = result.lines or (None, None)
    run.launch = storable.json(result.launch.model_dump())
    run.state, run.reason, run.summary = result.state, storable.text(result.reason), summary
    run.has_end = result.has_end
    run.started_at, run.ended_at = _times(recording)
    run.numbers_at = timezone.now()
    for name, value in headline(summary).items():
        setattr(run, name, value)


def _times(recording: Recording | None) -> tuple[datetime | None, datetime]:
    """Return start and end by the time stamps of the log; without any, the time of the import as the end."""
    if recording is None or recording.first_time is None or recording.last_time is None:
        return None, timezone.now()
    began, ended = sorted((recording.first_time, recording.last_time))
    return datetime.fromtimestamp(began, UTC), datetime.fromtimestamp(ended, UTC)


def _results_snapshot(run: Run) -> Snapshot:
    return results_snapshot(run, 1, {"state": run.state, "reason": run.reason, "summary": run.summary})


def _attempts_store(stored_runs: Sequence[StoredRun], draft: Draft) -> None:
    """Give each run with text or series an attempt that holds both."""
    logged = [
        stored_run
        for stored_run in stored_runs
        if stored_run.result.segment in draft.texts or stored_run.result.segment in draft.reading.recordings
    ]
    attempts = {attempt.run_id: attempt for attempt in Attempt.objects.filter(run__in=[run for run, _ in logged])}
    new_attempts = [Attempt(run=run, number=1) for run, _ in logged if run.pk not in attempts]
    Attempt.objects.bulk_create(new_attempts, batch_size=100)
    attempts |= {attempt.run_id: attempt for attempt in new_attempts}
    for run, result in logged:
        attempt, recording = attempts[run.pk], _recording(draft, result)
        Attempt.objects.filter(pk=attempt.pk).update(
            state=run.state,
            reason=run.reason,
            summary=run.summary,
            started_at=run.started_at,
            ended_at=run.ended_at,
            last_step=recording.last_step if recording else None,
        )
        series_store.delete(attempt.pk)
        if result.segment is not None and result.segment in draft.series:
            draft.series[result.segment].store(attempt.pk)
        text = None if result.segment is None else draft.texts.get(result.segment)
        if text is not None:
            log.store_log(attempt.pk, text.rows())


def _recording(draft: Draft, result: Result) -> Recording | None:
    return None if result.segment is None else draft.reading.recordings.get(result.segment)


def _config(source: Source, results: Sequence[Result], user: User) -> Config:
    """Return the configuration version of a source: the settings that all its runs share. It is never edited."""
    existing = Config.objects.filter(runs__source=source).first()
    if existing is not None:
        return existing
    last: int = source.experiment.configs.aggregate(last=Max("version"))["last"] or 0
    data = _shared([result.resolved for result in results])
    return Config.objects.create(
        experiment=source.experiment,
        version=last + 1,
        data=data,
        sweep={},
        digest=digest({"data": data, "sweep": {}}),
        note=f"Settings that all runs of {source.name} share, as far as the file states them"[:300],
        created_by=user,
    )


def _shared(resolved: Sequence[Sections]) -> dict[str, dict[str, Any]]:
    first = resolved[0]
    return {
        section: {
            name: value
            for name, value in first.get(section, {}).items()
            if all(other.get(section, {}).get(name) == value for other in resolved)
        }
        for section in sections()
    }
