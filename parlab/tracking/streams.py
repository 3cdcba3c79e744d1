"""Streams of runs that report from outside: open, apply batches exactly once, derive the state of the run.

A stream is what one process reports, from position 0 of its own spool. Streams of several ranks fill one run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone
from pydantic import BaseModel, ConfigDict, Field

from parlab.ingest.batches.events import Parsed
from parlab.ingest.batches.output import Output, outputs_append
from parlab.ingest.batches.services import summarise_at_intervals
from parlab.ingest.summaries.printed import is_sampled
from parlab.lab.models import Attempt, Experiment, Role, Run, Stream, TrackedRun
from parlab.lab.models.access.viewer import Viewer
from parlab.lab.services import storable
from parlab.lab.services.access.rights import may_change, may_work, refusal
from parlab.lab.services.configs import lock_experiment
from parlab.lab.services.experiments import experiment_create, named_experiment
from parlab.series.statements import Update
from runners.wire.protocol import RunState

from . import launches
from .launches import HELD_S, LaunchFacts, Newcomer
from .point import Point
from .runs import (
    heard,
    latest_update,
    lock,
    lock_all,
    parameters_add,
    settings_read,
    state_set,
    tags_set,
    touch,
    tracked_run_start,
)

logger = logging.getLogger(__name__)

CLOCK_TOLERANCE_S = 5.0
UNKNOWN = -1
"""Answer to a batch of a stream that was never opened here."""
_STATUS = {
    RunState.FINISHED: TrackedRun.Status.FINISHED,
    RunState.OOM: TrackedRun.Status.FAILED,
    RunState.FAILED: TrackedRun.Status.FAILED,
    RunState.CANCELLED: TrackedRun.Status.KILLED,
}
_ENDS = tuple(state.value for state in _STATUS)


class Opening(BaseModel):
    """How a client describes a stream."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    experiment: str = Field(default="Default", min_length=1, max_length=500)
    name: str = Field(default="", max_length=500)
    config: dict[str, str] = Field(default={}, max_length=10_000)
    tags: dict[str, str] = Field(default={}, max_length=1_000)
    kind: Stream.Kind = Stream.Kind.RANK
    rank: int = Field(default=0, ge=0, le=2**31 - 1)
    world_size: int | None = Field(default=None, ge=1, le=2**31 - 1)
    launch: LaunchFacts | None = None
    """Of a launch whose nodes share no ID: the server finds its run."""
    host: str = Field(default="", max_length=255)
    command: list[str] = Field(default=[], max_length=1_000)
    environment: dict[str, Any] = {}
    resume: bool = False
    """Whether a stream that has ended goes on: the file that it follows may have grown."""
    started_at: float | None = None
    sent_at: float | None = None


class Occupied(Exception):
    """Another process reports as the same rank of the same run."""


class Report(NamedTuple):
    """A record of a stream that is not output."""

    kind: str
    fields: Mapping[str, Any]


def stream_open(*, run_id: str, key: str, opening: Opening, user: User) -> Stream:
    """Return the stream, new or as it is; creates experiment and run.

    Raises Occupied, Undecided, or ValueError with a remedy.
    """
    now = timezone.now()
    for _ in range(3):
        try:
            with transaction.atomic():
                tracked = _launched(key, opening, user) or TrackedRun.objects.filter(uuid=run_id).first()
                tracked = tracked or _start(run_id, opening, user)
                if not may_change(user, tracked):
                    raise ValueError(f"run {run_id!r} is not yours; {refusal(user, tracked)}")
                return _opened(tracked, key, opening)
        except IntegrityError:
            continue  # another rank created the run at the same moment
    raise ValueError(f"run {run_id!r} cannot be created now; try again at {now:%H:%M:%S} or later")


def _launched(key: str, opening: Opening, user: User) -> TrackedRun | None:
    """Return the run of the launch that a process belongs to; None without one, and for the first of a launch."""
    if opening.launch is None:
        return None
    held = Stream.objects.filter(key=key, tracked__launch_key=opening.launch.key).first()
    if held is not None:
        return held.tracked
    experiment = _experiment(opening, user)
    lock_experiment(experiment)
    started_at = launches.moment(opening.launch.started_at, _clock_offset_s(opening))
    newcomer = Newcomer(opening.launch, opening.kind, opening.rank, opening.config, started_at)
    return launches.launched_run(experiment, newcomer, timezone.now())


def _experiment(opening: Opening, user: User) -> Experiment:
    name = storable.text(opening.experiment)
    experiment = named_experiment(name) or Experiment.objects.filter(slug=name).first()
    if experiment is None:
        experiment = experiment_create(name=name, owner=user)
    if not may_work(user, experiment):
        raise ValueError(f"experiment {name!r} is read only for you; {refusal(user, experiment)}")
    if experiment.archived_at is not None:
        raise ValueError(f"experiment {name!r} is archived; restore it or use another name")
    return experiment


def _start(run_id: str, opening: Opening, user: User) -> TrackedRun:
    started_at = opening.started_at
    if started_at is not None:
        # NaN and times beyond the year 5000 compare as false.
        started_at = started_at - _clock_offset_s(opening) if abs(started_at) < 1e11 else None
    return tracked_run_start(
        experiment=_experiment(opening, user),
        user=user,
        name=opening.name,
        user_name=user.get_username(),
        start_ms=None if started_at is None else int(started_at * 1000),
        tags=_texts(opening.tags, 8_000),
        run_uuid=run_id,
        launch_key=opening.launch.key if opening.launch else "",
    )


def _opened(tracked: TrackedRun, key: str, opening: Opening) -> Stream:
    attempt, tracked = lock(tracked)
    if tracked.deleted_at is not None:
        raise ValueError(f"run {tracked.uuid!r} is deleted; restore it or report under another ID")
    now = timezone.now()
    stream = tracked.streams.filter(key=key).first()
    if stream is None:
        in_attempt = tracked.streams.filter(attempt_number=attempt.number)
        same_place = in_attempt.filter(kind=opening.kind, rank=opening.rank, state=RunState.RUNNING)
        other = same_place.filter(last_report_at__gt=now - timedelta(seconds=HELD_S)).first()
        if other is not None:
            raise Occupied(
                f"{other.kind} {other.rank} of run {tracked.uuid} is reported by another process on {other.host}; "
                "wait until that one has ended, or report under another run ID"
            )
        stream = Stream.objects.create(
            tracked=tracked,
            key=key,
            kind=opening.kind,
            rank=opening.rank,
            attempt_number=attempt.number,
            parent=opening.launch.parent if opening.launch else "",
            host=storable.text(opening.host),
            command=storable.json(opening.command),
            environment=storable.json(opening.environment),
            clock_offset_s=_clock_offset_s(opening),
            opened_at=now,
            last_report_at=now,
        )
        _world_size_set(tracked, opening)
        parameters_add(tracked=tracked, parameters=_texts(opening.config, 6_000))
        if not attempt.command or opening.kind == Stream.Kind.OUTPUT:
            facts = {"command": stream.command, "environment": stream.environment}
            Attempt.objects.filter(pk=attempt.pk).update(**facts)
        _state_derive(tracked, attempt)
    elif opening.resume and stream.state in _ENDS:
        stream.state, stream.exit_code, stream.reason, stream.ended_at = RunState.RUNNING.value, None, "", None
        stream.save(update_fields=["state", "exit_code", "reason", "ended_at"])
        _state_derive(tracked, attempt)
    touch(tracked)
    return stream


def _world_size_set(tracked: TrackedRun, opening: Opening) -> None:
    """Keep how many ranks the launcher started, from which the global batch follows."""
    if opening.kind == Stream.Kind.RANK and opening.world_size and tracked.world_size != opening.world_size:
        tracked.world_size = opening.world_size
        TrackedRun.objects.filter(pk=tracked.pk).update(world_size=opening.world_size)
        settings_read(tracked=tracked)


def _clock_offset_s(opening: Opening) -> float:
    """Return how far the client's clock is ahead, in seconds; 0 within the time that a request may take."""
    if opening.sent_at is None or not abs(opening.sent_at) < 1e11:
        return 0.0
    offset_s = opening.sent_at - timezone.now().timestamp()
    return offset_s if abs(offset_s) > CLOCK_TOLERANCE_S else 0.0


def _texts(pairs: Mapping[str, str], length: int) -> dict[str, str]:
    return {storable.text(key)[:250]: storable.text(value)[:length] for key, value in pairs.items() if key}


class StreamBatch(NamedTuple):
    """What a stream has recorded between two positions."""

    run_id: str
    key: str
    position: int
    next_position: int
    output: bytes
    reports: Sequence[bytes]
    sender: Viewer | None = None
    """Who sends it; None: the server itself."""


class _Stored(NamedTuple):
    """A batch that is stored now, with its stream and the locked attempt."""

    batch: StreamBatch
    stream: Stream
    attempt: Attempt


# What storing a batch needs not read, and therefore does not write again.
_UNREAD = ("environment", "command", "traceback")
_stream_write = Update(Stream, ("committed", "last_report_at"))
_touch = Update(TrackedRun, ("last_report_at",))
_step_write = Update(Attempt, ("last_step",))


@transaction.atomic
def streams_apply(*, batches: Sequence[StreamBatch]) -> list[int]:
    """Store batches of any streams in one transaction with few queries, each if it starts at the committed position.

    Returns for each the position up to which its stream is stored, or UNKNOWN for a stream that was not opened.
    Duplicate or reordered batches change nothing.
    """
    attempts = lock_all({batch.run_id for batch in batches})
    of_others = _of_others(batches, attempts)
    streams = _streams_of(attempts, {batch.key for batch in batches})
    now = timezone.now()
    positions, stored = list[int](), list[_Stored]()
    for batch in batches:
        is_foreign = (batch.run_id, id(batch.sender)) in of_others
        stream = None if is_foreign else streams.get((batch.run_id, batch.key))
        if stream is not None and batch.position == stream.committed:
            stream.committed, stream.last_report_at = batch.next_position, now
            stored.append(_Stored(batch, stream, attempts[batch.run_id, stream.attempt_number]))
        positions.append(UNKNOWN if stream is None else stream.committed)
    _outputs_store(stored)
    _stream_write([each.stream for each in stored if not each.batch.reports])
    ended = {each.attempt.pk for each in stored if each.batch.reports and _reports_apply(each)}
    advanced = {each.attempt.pk: each.attempt for each in stored}
    for attempt in advanced.values():
        attempt.run.tracked.last_report_at = now
        heard(attempt)
        if attempt.pk in ended or RunState(attempt.state) == RunState.LOST:
            _state_derive(attempt.run.tracked, attempt)
        if attempt.pk not in ended:
            transaction.on_commit(partial(summarise_at_intervals, attempt), robust=True)
    _touch([attempt.run.tracked for attempt in advanced.values()])
    return positions


def _of_others(batches: Sequence[StreamBatch], attempts: Mapping[tuple[str, int], Attempt]) -> set[tuple[str, int]]:
    """Return (run ID, sender) where the sender may not change the run; the projects are read at once."""
    runs = {run_id: attempt.run_id for (run_id, _), attempt in attempts.items()}
    rows = Run.everything.filter(pk__in=list(runs.values()))
    facts = {pk: (owner, project) for pk, owner, project in rows.values_list("pk", "created_by", "experiment__project")}
    asked = {(batch.run_id, id(batch.sender)): batch.sender for batch in batches if batch.run_id in runs}
    return {key for key, sender in asked.items() if sender and not _is_own(sender, *facts[runs[key[0]]])}


def _is_own(sender: Viewer, owner: int, project: int) -> bool:
    is_owner = owner == sender.user.pk
    return sender.has_role(Role.OPERATOR if is_owner else Role.MAINTAINER, project)


def _streams_of(attempts: Mapping[tuple[str, int], Attempt], keys: Collection[str]) -> dict[tuple[str, str], Stream]:
    """Return streams of locked attempts: {(run ID, key): stream}."""
    runs = {attempt.run.tracked.pk: attempt.run.tracked for attempt in attempts.values()}
    rows = Stream.objects.filter(tracked__in=list(runs), key__in=keys).defer(*_UNREAD)
    streams = {}
    for stream in rows:
        stream.tracked = runs[stream.tracked_id]
        streams[stream.tracked.uuid, stream.key] = stream
    return streams


def _outputs_store(stored: Sequence[_Stored]) -> None:
    """Append the output of batches to the logs and series of their runs."""
    outputs: dict[int, bytearray] = {}
    attempts: dict[int, Attempt] = {}
    for batch, _, attempt in stored:
        if batch.output:
            attempts[attempt.pk] = attempt
            text = outputs.setdefault(attempt.pk, bytearray())
            text += batch.output
            # Streams share the log of the run: a line without an end would run into the next stream's.
            text += b"" if batch.output.endswith(b"\n") else b"\n"
    if not outputs:
        return
    parsed = outputs_append([Output(attempts[pk], bytes(text)) for pk, text in outputs.items()])
    _step_write(list(attempts.values()))
    latest_update(
        {
            attempts[pk].run.tracked.pk: _latest_points(each)
            for pk, each in zip(outputs, parsed, strict=True)
            if _is_current(attempts[pk])
        }
    )


def _is_current(attempt: Attempt) -> bool:
    return attempt.number == attempt.run.attempt_number


def _reports_apply(stored: _Stored) -> bool:
    """Apply the reports of a batch and store its stream; return whether they end the stream."""
    batch, stream, attempt = stored
    is_ended = False
    for report in map(_parse_report, batch.reports):
        is_ended = _report_apply(attempt, stream, report) or is_ended
    stream.save()
    return is_ended


def _latest_points(parsed: Parsed) -> list[Point]:
    """Return each metric's point of the highest step and time; of several ranks, that of the lowest."""
    points: dict[str, Point] = {}
    reported = [(key, columns) for key, columns in parsed.series.items() if not is_sampled(key)]
    for (metric, _), columns in sorted(reported, key=lambda item: item[0][1], reverse=True):
        last = int(np.lexsort((columns.times, columns.steps))[-1]) if len(columns) > 1 else 0
        milliseconds = round(float(columns.times[last]) * 1000)
        points[metric] = Point(metric, float(columns.values[last]), milliseconds, int(columns.steps[last]))
    return list(points.values())


def _parse_report(payload: bytes) -> Report:
    try:
        fields = json.loads(payload)
        return Report(str(fields.pop("kind")), fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Report("", {})


def _report_apply(attempt: Attempt, stream: Stream, report: Report) -> bool:
    """Apply a report; return whether it ends the stream. One that makes no sense is ignored and logged."""
    fields, tracked = report.fields, attempt.run.tracked
    if report.kind == "end" and fields.get("state") in _ENDS:
        stream.state = fields["state"]
        stream.reason = storable.text(str(fields.get("reason") or ""))[:4_000]
        stream.traceback = storable.text(str(fields.get("traceback") or ""))[-32_000:]
        code = fields.get("exit_code")
        stream.exit_code = code if type(code) is int and abs(code) < 2**31 else None
        stream.ended_at = _ended_at(stream, fields.get("at"))
        return True
    if report.kind == "config" and isinstance(fields.get("config"), dict):
        pairs = {str(key): str(value) for key, value in list(fields["config"].items())[:10_000]}
        parameters_add(tracked=tracked, parameters=_texts(pairs, 6_000))
    elif report.kind == "tags" and isinstance(fields.get("tags"), dict):
        pairs = {str(key): str(value) for key, value in list(fields["tags"].items())[:1_000]}
        tags_set(tracked=tracked, tags=_texts(pairs, 8_000))
    elif report.kind == "summary" and isinstance(fields.get("numbers"), dict):
        _summary_set(attempt, fields["numbers"], fields.get("texts"))
    elif report.kind == "environment" and isinstance(fields.get("environment"), dict):
        _environment_add(attempt, stream, storable.json(fields["environment"]))
    else:
        logger.warning("%s: report of unknown kind %r ignored", stream, report.kind[:80])
    return False


def _summary_set(attempt: Attempt, numbers: Mapping[str, Any], texts: Any) -> None:
    """Set values of a whole run: numbers as the last values of metrics, texts as tags."""
    tracked, now_ms = attempt.run.tracked, int(timezone.now().timestamp() * 1000)
    names = [storable.text(name)[:250] for name in list(numbers)[:1_000]]
    steps = dict(tracked.metrics.filter(key__in=names).values_list("key", "step"))
    points = []
    for name, text in zip(names, numbers.values(), strict=False):
        with suppress(ValueError):
            points.append(Point(name, float(str(text)[:40]), now_ms, max(steps.get(name, 0), attempt.last_step or 0)))
    if _is_current(attempt):
        latest_update({tracked.pk: [point for point in points if point.key]})
    if isinstance(texts, dict):
        pairs = {str(key): str(value) for key, value in list(texts.items())[:1_000]}
        tags_set(tracked=tracked, tags=_texts(pairs, 8_000))


def _environment_add(attempt: Attempt, stream: Stream, facts: dict[str, Any]) -> None:
    """Add facts that a process found out after its start; those of the lowest rank are those of the attempt."""
    stream.environment = {**stream.environment, **facts}
    lowest = Stream.objects.filter(tracked=stream.tracked_id, attempt_number=attempt.number).order_by("rank", "pk")
    if lowest.values_list("pk", flat=True).first() == stream.pk:
        environment = Attempt.objects.values_list("environment", flat=True).get(pk=attempt.pk)
        Attempt.objects.filter(pk=attempt.pk).update(environment={**environment, **facts})


def _ended_at(stream: Stream, at: Any) -> datetime:
    """Return when the process of a stream ended, at the latest now."""
    now = timezone.now()
    stated = launches.moment(at, stream.clock_offset_s) if isinstance(at, (int, float)) and 0 <= at < 1e11 else now
    return min(stated, now)


def _state_derive(tracked: TrackedRun, attempt: Attempt) -> None:
    """Set the state of a run from its streams: a wrapper knows exit codes; without one, every rank counts."""
    streams = list(tracked.streams.filter(attempt_number=attempt.number).order_by("pk"))
    worst = _deciding_stream(streams)
    state = RunState.RUNNING if worst is None else RunState(worst.state)
    cause = worst
    if worst is not None and not worst.traceback:
        # The wrapper has the exit code; the rank that failed has the traceback.
        cause = next((stream for stream in streams if stream.traceback and stream.state == worst.state), worst)
    status = _STATUS.get(state, TrackedRun.Status.RUNNING)
    now_ms = int(timezone.now().timestamp() * 1000)
    if _is_current(attempt):
        TrackedRun.objects.filter(pk=tracked.pk).update(status=status, end_ms=now_ms if state.is_final else None)
    if cause is not None:
        facts = {"traceback": cause.traceback, "exit_code": worst.exit_code if worst else None}
        Attempt.objects.filter(pk=attempt.pk).update(**facts)
    if state.is_final or (state != RunState(attempt.state) and _is_current(attempt)):
        state_set(attempt, state, reason=cause.reason if cause else "", is_news=_is_current(attempt))


def _deciding_stream(streams: Sequence[Stream]) -> Stream | None:
    """Return the stream that decides the end of its run: the worst end; None while the run goes on."""
    wrappers = [stream for stream in streams if stream.kind == Stream.Kind.OUTPUT]
    newest = {stream.rank: stream for stream in wrappers or streams}
    ended = [stream for stream in newest.values() if stream.state in _ENDS]
    worst = min(ended, key=lambda stream: _severity(stream.state), default=None)
    if worst is None or (worst.state == RunState.FINISHED and len(ended) < len(newest)):
        return None
    return worst


def _severity(state: str) -> int:
    return (RunState.OOM, RunState.FAILED, RunState.CANCELLED, RunState.FINISHED).index(RunState(state))
