"""The life of a run that a script reports: start, report, end, come back.

A script outside cannot be told what state it is in: it reports, falls silent, and may come back, so unlike the state
of a launched attempt the state of a reported one may return to `running`. Series and log go through the same code as
a node's batches: every report becomes event lines, and these stay the truth from which all else can be rebuilt.
"""

from __future__ import annotations

import hashlib
import logging
import math
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import orjson
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, Max, QuerySet
from django.utils import timezone

from parlab.formats.grammar.names import launch_of
from parlab.ingest.batches.output import output_append
from parlab.ingest.batches.services import attempts_end, summarise_at_intervals
from parlab.ingest.readings.launches import resolved_of
from parlab.ingest.summaries.attempt_summaries import is_printed
from parlab.lab.models import (
    Attempt,
    Config,
    Experiment,
    ExperimentLabel,
    LatestMetric,
    NameMeaning,
    Run,
    RunParameter,
    RunTag,
    TrackedRun,
)
from parlab.lab.services import storable
from parlab.lab.services.configs import lock_experiment
from parlab.lab.services.events import run_ended
from parlab.lab.services.findings import findings_refresh
from parlab.lab.services.runs import next_number
from parlab.series.statements import Upsert
from parlab.tracking.point import Point
from runners.config import digest, sections
from runners.wire.protocol import EVENT_LINE_LIMIT, RunState

logger = logging.getLogger(__name__)

NOTE = "Settings as the reporting scripts state them"
STATES = {
    TrackedRun.Status.RUNNING: RunState.RUNNING,
    TrackedRun.Status.SCHEDULED: RunState.RUNNING,
    TrackedRun.Status.FINISHED: RunState.FINISHED,
    TrackedRun.Status.FAILED: RunState.FAILED,
    TrackedRun.Status.KILLED: RunState.CANCELLED,
}
_MAX_MS = 10**14
SILENT_S = 60.0
"""A client reports at least every 20 s."""
_BLOCK = 500


class Conflict(ValueError):
    """A report that contradicts what the run has already stored."""


def tracked_run_start(
    *,
    experiment: Experiment,
    user: User,
    name: str = "",
    user_name: str = "",
    start_ms: int | None = None,
    tags: Mapping[str, str] | None = None,
    run_uuid: str | None = None,
    launch_key: str = "",
) -> TrackedRun:
    """Create a run in state running, with its first attempt."""
    now = timezone.now()
    started_at = _moment(start_ms) or now
    with transaction.atomic():
        lock_experiment(experiment)
        config = _config(experiment, user)
        identity = run_uuid or uuid.uuid4().hex
        run = Run.everything.create(
            experiment=experiment,
            config=config,
            number=next_number(config),
            label=storable.text(name)[:300],
            origin=Run.Origin.REPORTED,
            point={},
            point_digest=digest({"reported": identity}),
            resolved=config.data,
            state=RunState.RUNNING,
            started_at=started_at,
            created_by=user,
        )
        Attempt.objects.create(run=run, number=1, state=RunState.RUNNING, started_at=started_at)
        tracked = TrackedRun.objects.create(
            run=run,
            uuid=identity,
            name=storable.text(name)[:500],
            user_name=storable.text(user_name)[:256],
            start_ms=start_ms,
            launch_key=launch_key,
            last_report_at=now,
        )
        tags_set(tracked=tracked, tags=tags or {})
    logger.info("run %s of %s reports as %s", run.number, experiment, identity)
    return tracked


def _config(experiment: Experiment, user: User) -> Config:
    """Return the version that reported runs of an experiment refer to; it holds no settings of its own."""
    existing = experiment.configs.filter(runs__origin=Run.Origin.REPORTED).first()
    if existing is not None:
        return existing
    last: int | None = experiment.configs.aggregate(last=Max("version"))["last"]
    data: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    return Config.objects.create(
        experiment=experiment,
        version=(last or 0) + 1,
        data=data,
        sweep={},
        digest=digest({"data": data, "sweep": {}}),
        note=NOTE,
        created_by=user,
    )


@transaction.atomic
def tracked_run_update(
    *,
    tracked: TrackedRun,
    status: str | None = None,
    end_ms: int | None = None,
    name: str | None = None,
    reason: str = "",
    is_news: bool = True,
) -> TrackedRun:
    """Change name, status or end of a run; an end computes its summary and findings.

    `is_news` is False for an imported run, whose end causes no notification.
    """
    attempt, tracked = lock(tracked)
    if name is not None:
        tracked.name = storable.text(name)[:500]
        Run.everything.filter(pk=tracked.run_id).update(label=tracked.name[:300])
    if status is not None:
        tracked.status = TrackedRun.Status(status)
        tracked.end_ms = end_ms if STATES[tracked.status].is_final else None
        state_set(attempt, STATES[tracked.status], ended_at=_moment(tracked.end_ms), reason=reason, is_news=is_news)
    tracked.last_report_at = timezone.now()
    tracked.save(update_fields=["name", "status", "end_ms", "last_report_at"])
    return tracked


def state_set(
    attempt: Attempt, state: RunState, *, ended_at: datetime | None = None, reason: str = "", is_news: bool = True
) -> None:
    """Set the state of a locked reported run, in either direction; a final one is summarised, and announced as news."""
    facts = {
        "state": state,
        "reason": reason,
        "ended_at": (ended_at or timezone.now()) if state.is_final else None,
    }
    Attempt.objects.filter(pk=attempt.pk).update(**facts)
    Run.everything.filter(pk=attempt.run_id, attempt_number=attempt.number).update(**facts)
    if state.is_final:
        if is_news and attempt.state != state:
            run_ended(run=attempt.run, attempt_number=attempt.number, state=state, reason=reason)
        attempt.refresh_from_db()
        if is_printed(attempt):
            transaction.on_commit(partial(attempts_end, [attempt]))
        else:
            attempts_end([attempt])


def tracked_run_delete(*, tracked: TrackedRun) -> None:
    """Mark a run as deleted: no page, list or figure shows it any more. `tracked_run_restore` undoes it."""
    _shown_set(tracked, timezone.now())


def tracked_run_restore(*, tracked: TrackedRun) -> None:
    """Show a deleted run again, with everything that it had."""
    _shown_set(tracked, None)


@transaction.atomic
def _shown_set(tracked: TrackedRun, deleted_at: datetime | None) -> None:
    attempt, tracked = lock(tracked)
    if (tracked.deleted_at is None) == (deleted_at is None):
        return
    TrackedRun.objects.filter(pk=tracked.pk).update(deleted_at=deleted_at)
    Run.everything.filter(pk=tracked.run_id).update(hidden_at=deleted_at)
    transaction.on_commit(partial(findings_refresh, experiment=attempt.run.experiment), robust=True)


@transaction.atomic
def parameters_set(*, tracked: TrackedRun, parameters: Mapping[str, str]) -> None:
    """Store parameters; raises Conflict where one has another value already. Updates the run's configuration."""
    if not parameters:
        return
    lock(tracked)
    existing = dict(tracked.parameters.filter(key__in=list(parameters)).values_list("key", "value"))
    for key, value in parameters.items():
        if key in existing and existing[key] != value:
            raise Conflict(
                f"Changing param values is not allowed. Param with key={key!r} was already logged with"
                f" value={existing[key][:500]!r} for run ID={tracked.uuid!r}. Attempted logging new value"
                f" {value[:500]!r}; log it under another key or start another run"
            )
    new = [
        RunParameter(tracked=tracked, key=key, value=value) for key, value in parameters.items() if key not in existing
    ]
    RunParameter.objects.bulk_create(new, batch_size=_BLOCK)
    if new:
        settings_read(tracked=tracked)
    touch(tracked)


def parameters_add(*, tracked: TrackedRun, parameters: Mapping[str, str]) -> None:
    """Store the parameters that the run does not have yet: ranks may differ, and the first value stays."""
    existing = set(tracked.parameters.values_list("key", flat=True))
    parameters_set(tracked=tracked, parameters={key: value for key, value in parameters.items() if key not in existing})


@transaction.atomic
def parameters_replace(*, tracked: TrackedRun, parameters: Mapping[str, str]) -> None:
    """Store parameters in place of those of the same name: some clients may change what they have stated."""
    lock(tracked)
    existing = dict(tracked.parameters.values_list("key", "value"))
    changed = {key: value for key, value in parameters.items() if existing.get(key) != value}
    if not changed:
        return
    RunParameter.objects.bulk_create(
        [RunParameter(tracked=tracked, key=key, value=value) for key, value in changed.items()],
        update_conflicts=True,
        unique_fields=["tracked", "key"],
        update_fields=["value"],
        batch_size=_BLOCK,
    )
    settings_read(tracked=tracked)


def settings_read(*, tracked: TrackedRun) -> None:
    """Derive the configuration of a run from its parameters, by the names that its experiment gives them."""
    meanings = NameMeaning.objects.filter(experiment__runs=tracked.run_id, kind=NameMeaning.Kind.SETTING)
    parameters = dict(tracked.parameters.values_list("key", "value"))
    launch = launch_of(parameters, dict(meanings.values_list("name", "meaning")), world_size=tracked.world_size)
    Run.everything.filter(pk=tracked.run_id).update(
        launch=storable.json(launch.model_dump()), resolved=resolved_of(launch)
    )


@transaction.atomic
def tags_set(*, tracked: TrackedRun, tags: Mapping[str, str]) -> None:
    """Store tags, replacing earlier values."""
    RunTag.objects.bulk_create(
        [RunTag(tracked=tracked, key=key, value=value) for key, value in tags.items()],
        update_conflicts=True,
        unique_fields=["tracked", "key"],
        update_fields=["value"],
        batch_size=_BLOCK,
    )
    if tags:
        touch(tracked)


@transaction.atomic
def labels_set(*, experiment: Experiment, labels: Mapping[str, str]) -> None:
    """Store key-value labels of an experiment, replacing earlier values."""
    ExperimentLabel.objects.bulk_create(
        [ExperimentLabel(experiment=experiment, key=key, value=value) for key, value in labels.items()],
        update_conflicts=True,
        unique_fields=["experiment", "key"],
        update_fields=["value"],
    )


@transaction.atomic(savepoint=False)
def points_append(
    *, tracked: TrackedRun, points: Sequence[Point], rank: int = 0, text: bytes = b"", is_repeatable: bool = False
) -> None:
    """Append points to a rank's series in the order given, and them and text to the log; a silent run is running again.

    With `is_repeatable` the same points again, one after the other, are a request that a client has sent twice.
    """
    if not points and not text:
        return
    attempt, tracked = lock(tracked)
    output = b"".join(event_lines(points, rank)) + text
    facts: dict[str, Any] = {"last_report_at": timezone.now()}
    if is_repeatable:
        facts["last_batch"] = hashlib.sha256(output).hexdigest()
        if tracked.last_batch == facts["last_batch"]:
            return
    last_step = attempt.last_step
    output_append(attempt, output)
    if attempt.last_step != last_step:
        Attempt.objects.filter(pk=attempt.pk).update(last_step=attempt.last_step)
    if points:
        latest_update({tracked.pk: points})
    heard(attempt)
    if RunState(attempt.state) == RunState.LOST:
        state_set(attempt, STATES[TrackedRun.Status(tracked.status)])
    TrackedRun.objects.filter(pk=tracked.pk).update(**facts)
    transaction.on_commit(partial(summarise_at_intervals, attempt), robust=True)


def event_lines(points: Iterable[Point], rank: int = 0) -> Iterable[bytes]:
    """Write points of a rank as event lines; neighbours of one step and time share a line until it is full."""
    place: tuple[int, int] | None = None
    values: dict[str, Any] = {}
    size = 0
    for point in points:
        width = len(point.key) + 40
        if place != (point.step, point.timestamp_ms) or point.key in values or size + width > EVENT_LINE_LIMIT - 200:
            if place is not None:
                yield _event_line(*place, values, rank)
            place, values, size = (point.step, point.timestamp_ms), {}, 0
        values[point.key] = point.value
        size += width
    if place is not None:
        yield _event_line(*place, values, rank)


def _event_line(step: int, timestamp_ms: int, values: Mapping[str, float], rank: int) -> bytes:
    # JSON has no infinities: they travel as texts, and null is not a number.
    metrics = {
        key: value if math.isfinite(value) else (None if math.isnan(value) else str(value))
        for key, value in values.items()
    }
    event = {"t": timestamp_ms / 1000, "rank": rank, "event": "step", "step": step, "metrics": metrics}
    return b'{"parlab":1,' + orjson.dumps(event)[1:] + b"\n"


_latest_write = Upsert(
    LatestMetric,
    ("tracked_id", "key", "value", "timestamp_ms", "step"),
    ("tracked_id", "key"),
    # The same order as `_rank`: what is not a number comes before all numbers.
    where='EXCLUDED."step" > held."step" OR (EXCLUDED."step" = held."step" AND ('
    'EXCLUDED."timestamp_ms" > held."timestamp_ms" OR (EXCLUDED."timestamp_ms" = held."timestamp_ms" AND ('
    'held."value" IS NULL OR EXCLUDED."value" >= held."value"))))',
)


def latest_update(points_by_run: Mapping[int, Sequence[Point]]) -> None:
    """Keep for each metric of each run, {primary key: points}, the point of the highest step, then time, then value."""
    _latest_write(
        [
            (pk, key, None if math.isnan(point.value) else point.value, point.timestamp_ms, point.step)
            for pk, points in points_by_run.items()
            for key, point in _latest_points(points).items()
        ]
    )


def _latest_points(points: Sequence[Point]) -> dict[str, Point]:
    best: dict[str, Point] = {}
    for point in points:
        held = best.get(point.key)
        # Steps nearly always rise: only equal ones need the whole comparison.
        if held is None or point.step > held.step or (point.step == held.step and _rank(point) >= _rank(held)):
            best[point.key] = point
    return best


def _rank(point: Point) -> tuple[int, int, float]:
    return point.step, point.timestamp_ms, -math.inf if math.isnan(point.value) else point.value


# What storing a batch needs; anything else that is read after all is fetched then.
_READ = (
    *("number", "state", "last_step", "summary", "run__origin", "run__state", "run__experiment_id"),
    "run__attempt_number",
    "run__reason",
    *("run__tracked__uuid", "run__tracked__status", "run__tracked__last_batch", "run__tracked__deleted_at"),
)


def lock(tracked: TrackedRun) -> tuple[Attempt, TrackedRun]:
    """Lock a run's current attempt until the transaction ends; return it and the run as they now are."""
    attempt = _locked_attempts().get(run_id=tracked.run_id, number=F("run__attempt_number"))
    return attempt, attempt.run.tracked


def lock_all(run_ids: Collection[str]) -> dict[tuple[str, int], Attempt]:
    """Lock the attempts of runs, {(ID, number): attempt}, by their rows, so that no two writers block each other."""
    attempts = _locked_attempts().filter(run__tracked__uuid__in=run_ids).order_by("pk")
    return {(attempt.run.tracked.uuid, attempt.number): attempt for attempt in attempts}


def _locked_attempts() -> QuerySet[Attempt]:
    rows = Attempt.objects.select_for_update(of=("self",), no_key=True).select_related("run__tracked")
    return rows.only(*_READ)


def touch(tracked: TrackedRun) -> None:
    TrackedRun.objects.filter(pk=tracked.pk).update(last_report_at=timezone.now())


def _moment(milliseconds: int | None) -> datetime | None:
    if milliseconds is None or not 0 < milliseconds < _MAX_MS:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def heard(attempt: Attempt) -> None:
    """Show a run as running again that was shown as silent."""
    if attempt.run.reason.startswith(Run.SILENT):
        Run.everything.filter(pk=attempt.run_id, state=RunState.RUNNING).update(reason="")


def _silence_show() -> None:
    """Show running runs as silent that have reported nothing for SILENT_S."""
    now = timezone.now()
    silent = TrackedRun.objects.filter(
        status=TrackedRun.Status.RUNNING, last_report_at__lt=now - timedelta(seconds=SILENT_S), deleted_at=None
    )
    rows = Run.everything.filter(tracked__in=silent, state=RunState.RUNNING, reason="")
    rows.update(
        reason=f"{Run.SILENT}: no report for a minute or more; it is lost after {settings.TRACKING_SILENCE_S:g} s"
    )


def reap() -> int:
    """Mark running runs that have been silent for TRACKING_SILENCE_S as lost; returns how many."""
    _silence_show()
    limit_s = settings.TRACKING_SILENCE_S
    silent = TrackedRun.objects.filter(
        deleted_at=None, run__state=RunState.RUNNING, last_report_at__lt=timezone.now() - timedelta(seconds=limit_s)
    )
    return sum(_lose(tracked, limit_s) for tracked in silent)


@transaction.atomic
def _lose(tracked: TrackedRun, limit_s: float) -> bool:
    attempt, tracked = lock(tracked)
    silence_s = (timezone.now() - tracked.last_report_at).total_seconds()
    if silence_s < limit_s or RunState(attempt.state) != RunState.RUNNING:
        return False  # a report came in between
    state_set(
        attempt,
        RunState.LOST,
        ended_at=tracked.last_report_at,
        reason=f"no report for {silence_s:.0f} s; it returns to running with its next report",
    )
    return True
