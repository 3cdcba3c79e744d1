"""A reading -> rows: source, runs, attempts, series, logs and pictures. Works in the caller's transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db.models import Max
from django.utils import timezone

from parlab.ingest.launches import Sections
from parlab.ingest.reading import Beside, Reading
from parlab.ingest.recording import Recording
from parlab.ingest.results import Result
from parlab.lab.models import Attempt, Config, Experiment, Picture, Run, Snapshot, Source, SourceChunk
from parlab.lab.services import storable
from parlab.lab.services.attempts import configuration_snapshot, headline, results_snapshot
from parlab.lab.services.runs import point_label
from parlab.series import log, store
from runners.config import digest, sections
from runners.protocol import MAX_BATCH_BYTES

_CHUNKS_AT_ONCE = 64
MAX_PICTURE_BYTES = 16 * MAX_BATCH_BYTES
_MEDIA = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"RIFF": "image/webp",
}
# What a rebuild brings up to date; number, configuration and who made it stay.
_REBUILT = (
    "label", "point", "point_digest", "resolved", "place", "first_line", "last_line", "launch", "state", "reason",
    "summary", "step_time_s", "samples_per_s", "tokens_per_s", "memory_max_bytes", "started_at", "ended_at",
)  # fmt: skip


class Stored(NamedTuple):
    """A run and the result that it holds."""

    run: Run
    result: Result


def source_store(experiment: Experiment, reading: Reading, wanted_format: str | None, user: User) -> Source:
    """Store a file's bytes and what the readers made of it."""
    received = reading.received
    source = Source.objects.create(
        experiment=experiment,
        name=received.name,
        format=reading.document.format,
        wanted_format=wanted_format or "",
        sha256=received.sha256,
        size=received.size,
        document=document_json(reading),
        created_by=user,
    )
    chunks = (SourceChunk(source=source, position=at, size=size, data=data) for at, size, data in reading.raw.rows())
    while batch := list(islice(chunks, _CHUNKS_AT_ONCE)):
        SourceChunk.objects.bulk_create(batch)
    return source


def document_json(reading: Reading) -> dict[str, Any]:
    """Write a document as JSON that any of our databases holds, with what was left in the raw text only."""
    document = reading.document.model_dump(mode="json", exclude={"findings"})
    document["findings"] = [finding.model_dump(mode="json", exclude_none=True) for finding in reading.document.findings]
    for reason, count in reading.refused.items():
        example = {"line": 0, "reason": f"{count} values are in the text only: {reason}", "text": ""}
        document["unread"]["examples"].append(example)
    clean: dict[str, Any] = storable.json(document)
    return clean


def runs_store(source: Source, reading: Reading, user: User) -> list[Stored]:
    """Store the results of a source as runs. Runs that it has already are brought up to date, by their place."""
    existing = {digest(run.place): run for run in source.runs.all()}
    wanted = {digest(result.place): result for result in reading.results}
    source.runs.exclude(pk__in=[run.pk for place, run in existing.items() if place in wanted]).delete()
    config = _config(source, reading.results, user) if reading.results else None
    last: int = source.experiment.runs.aggregate(last=Max("number"))["last"] or 0
    found, new = [], []
    for place, result in wanted.items():
        run = existing.get(place)
        if run is None:
            last += 1
            run = Run(number=last, experiment=source.experiment, source=source, created_by=user, config=config)
            run.origin = Run.Origin.IMPORTED
            new.append(run)
        _fill(run, result, _recording(reading, result), source)
        found.append(Stored(run, result))
    kept = [stored.run for stored in found if stored.run.pk]
    if kept:
        # Points may change places among the runs: names that no point has keep them apart meanwhile.
        for run in kept:
            Run.objects.filter(pk=run.pk).update(point_digest=f"rebuilding {run.pk}")
        Run.objects.bulk_update(kept, _REBUILT, batch_size=100)
    Run.objects.bulk_create(new, batch_size=100)
    _attempts_store(found, reading)
    snapshots = [configuration_snapshot(stored.run, 1) for stored in found]
    snapshots += [_results_snapshot(stored.run) for stored in found]
    Snapshot.objects.bulk_create(snapshots, batch_size=100, ignore_conflicts=True)
    return found


def _fill(run: Run, result: Result, recording: Recording | None, source: Source) -> None:
    summary = storable.json(result.summary)
    run.point = storable.json(result.point)
    run.point_digest = digest(run.point)
    run.label = point_label(run.point) or storable.text(result.title)[:300] or source.name
    run.resolved, run.place = result.resolved, result.place
    run.first_line, run.last_line = result.lines or (None, None)
    run.launch = storable.json(result.launch.model_dump())
    run.state, run.reason, run.summary = result.state, storable.text(result.reason), summary
    run.started_at, run.ended_at = _times(recording)
    for name, value in headline(summary).items():
        setattr(run, name, value)


def _times(recording: Recording | None) -> tuple[datetime | None, datetime]:
    """When it ran, by the time stamps of its log; else it ended, for us, when it was imported."""
    if recording is None or recording.first_time is None or recording.last_time is None:
        return None, timezone.now()
    began, ended = sorted((recording.first_time, recording.last_time))
    return datetime.fromtimestamp(began, UTC), datetime.fromtimestamp(ended, UTC)


def _results_snapshot(run: Run) -> Snapshot:
    return results_snapshot(run, 1, {"state": run.state, "reason": run.reason, "summary": run.summary})


def _attempts_store(found: Sequence[Stored], reading: Reading) -> None:
    """Give each run that has text or series an attempt with both."""
    logged = [s for s in found if s.result.segment in reading.logs or s.result.segment in reading.recordings]
    known = {attempt.run_id: attempt for attempt in Attempt.objects.filter(run__in=[s.run for s in logged])}
    new = [Attempt(run=s.run, number=1) for s in logged if s.run.pk not in known]
    Attempt.objects.bulk_create(new, batch_size=100)
    known |= {attempt.run_id: attempt for attempt in new}
    for run, result in logged:
        attempt, recording = known[run.pk], _recording(reading, result)
        Attempt.objects.filter(pk=attempt.pk).update(
            state=run.state,
            reason=run.reason,
            summary=run.summary,
            started_at=run.started_at,
            ended_at=run.ended_at,
            last_step=recording.last_step if recording else None,
        )
        store.delete(attempt.pk)
        for series in recording.series() if recording else ():
            store.append(attempt.pk, series)
        text = None if result.segment is None else reading.logs.get(result.segment)
        if text is not None:
            log.store_log(attempt.pk, text.rows())


def _recording(reading: Reading, result: Result) -> Recording | None:
    return None if result.segment is None else reading.recordings.get(result.segment)


def _config(source: Source, results: Sequence[Result], user: User) -> Config:
    """Make the version that the runs of a source hang on: what all of them share. It is never edited in place."""
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
        note=f"What the runs of {source.name} share, as far as it says"[:300],
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


def images_store(source: Source, reading: Reading, beside: Beside | None) -> None:
    """Keep each picture that a page refers to as a snapshot; the picture itself where it lies beside the page."""
    known = set(source.experiment.snapshots.filter(kind=Snapshot.Kind.IMAGE).values_list("digest", flat=True))
    pictures: dict[str, Picture] = {picture.reference: picture for picture in source.pictures.defer("data")}
    snapshots = []
    for image in reading.document.images:
        reference = storable.text(image.source)[:300]
        if reference not in pictures and (picture := _picture(source, reference, beside)):
            pictures[reference] = picture
            picture.save(force_insert=True)
        content = {"source": source.name, **storable.json(image.model_dump()), **_facts(pictures.get(reference))}
        name = digest(content)
        if name not in known:
            known.add(name)
            snapshots.append(
                Snapshot(experiment=source.experiment, kind=Snapshot.Kind.IMAGE, digest=name, content=content)
            )
    Snapshot.objects.bulk_create(snapshots)


def _facts(picture: Picture | None) -> Mapping[str, Any]:
    return {} if picture is None else {"sha256": picture.sha256, "media_type": picture.media_type}


def _picture(source: Source, reference: str, beside: Beside | None) -> Picture | None:
    data = beside(reference) if beside else None
    media_type = next((name for mark, name in _MEDIA.items() if data and data.startswith(mark)), None)
    if not data or media_type is None or len(data) > MAX_PICTURE_BYTES:
        return None
    return Picture(
        source=source, reference=reference, media_type=media_type, sha256=hashlib.sha256(data).hexdigest(), data=data
    )


def raw_pieces(source: Source) -> Iterable[bytes]:
    """Yield the compressed pieces of a source's bytes, in order."""
    rows = source.chunks.order_by("position").values_list("data", flat=True)
    return (bytes(data) for data in rows.iterator(chunk_size=16))
