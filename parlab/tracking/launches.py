"""Which run and attempt a process belongs to whose launcher gives its nodes no ID in common, only an address.

The next launch at the same address has the same key. A process belongs to the newest launch with its key as long as
its rank is free there and it started with the others; otherwise the launch before it has to have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from django.db import transaction
from django.utils import timezone
from pydantic import BaseModel, ConfigDict, Field

from parlab.lab.models import Attempt, Experiment, Run, Stream, TrackedRun
from parlab.lab.services.attempts import queue_next_attempt
from parlab.series import store
from runners.wire.protocol import RunState

from .runs import lock, state_set

HELD_S = 45.0
"""A stream that reported this recently and has not ended is alive; its rank belongs to it."""
TOGETHER_S = 300.0
"""Ranks that start within this time belong together, however far the first ones are."""
LATE_S = 1800.0
"""Later than this, a rank belongs to another launch."""
FAR_STEPS = 100
"""Steps after which a rank that starts later than TOGETHER_S belongs to another launch."""
LAST_WORDS_S = 2.0
"""A batch of a killed process may still arrive this long after its successor has asked."""


class LaunchFacts(BaseModel):
    """What a client knows of its launch."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    key: str = Field(min_length=1, max_length=80)
    parent: str = Field(default="", max_length=64)
    started_at: float = Field(default=0.0, ge=0, le=1e11, allow_inf_nan=False)
    waited_s: float = Field(default=0.0, ge=0, le=1e9, allow_inf_nan=False)


class Undecided(Exception):
    """Whether the launch before still runs shows within HELD_S; the client asks again."""


class Newcomer(NamedTuple):
    """A process that asks for its place; `started_at` is by the server's clock."""

    launch: LaunchFacts
    kind: str
    rank: int
    config: dict[str, str]
    started_at: datetime


class Place(Enum):
    JOIN = "the launch is this one"
    NEXT = "the launch is the next attempt"
    OTHER = "the launch is another training"


def moment(seconds: float, clock_offset_s: float) -> datetime:
    """Return a time that a client states, by the server's clock."""
    try:
        return datetime.fromtimestamp(seconds - clock_offset_s, UTC)
    except (OverflowError, ValueError, OSError):
        return timezone.now()


def launched_run(experiment: Experiment, newcomer: Newcomer, now: datetime) -> TrackedRun | None:
    """Return the run of a launch in a locked experiment, with a new attempt for a launch after one that failed.

    None for a launch that is a run of its own. Raises Undecided.
    """
    runs = TrackedRun.objects.filter(run__experiment=experiment, launch_key=newcomer.launch.key, deleted_at=None)
    tracked = _with_parent(newcomer, runs) or runs.order_by("-pk").first()
    if tracked is None:
        return None
    attempt, tracked = lock(tracked)
    place = _place(newcomer, tracked, attempt, now)
    if place is Place.NEXT and not _is_other_training(newcomer, tracked):
        attempt_next(tracked=tracked, started_at=now)
        return tracked
    return tracked if place is Place.JOIN else None


def _with_parent(newcomer: Newcomer, runs: Any) -> TrackedRun | None:
    """Return the run to which the launcher of this node has already reported."""
    if not newcomer.launch.parent:
        return None
    stream = Stream.objects.filter(tracked__in=runs, parent=newcomer.launch.parent).order_by("-pk").first()
    return stream.tracked if stream is not None else None


def _place(newcomer: Newcomer, tracked: TrackedRun, attempt: Attempt, now: datetime) -> Place:
    streams = list(tracked.streams.filter(attempt_number=attempt.number, kind=newcomer.kind).order_by("pk"))
    is_free = all(stream.rank != newcomer.rank for stream in streams)
    parent = newcomer.launch.parent
    if is_free and (not streams or (parent and any(stream.parent == parent for stream in streams))):
        return Place.JOIN
    if _ended_before(newcomer, streams, is_free=is_free):
        has_finished = all(stream.state == RunState.FINISHED for stream in streams)
        return Place.OTHER if has_finished else Place.NEXT
    if is_free and _is_too_late(newcomer, attempt):
        return Place.OTHER
    if is_free and _is_confirmed(newcomer, streams):
        return Place.JOIN
    return _after_waiting(newcomer, streams, now)


def _ended_before(newcomer: Newcomer, streams: Sequence[Stream], *, is_free: bool) -> bool:
    """Whether the launch had ended when the process started: all have finished, or one has failed."""
    ends = [stream for stream in streams if stream.state != RunState.RUNNING]
    if not is_free:  # a process of the same rank: nothing else can be meant
        own = next(stream for stream in reversed(streams) if stream.rank == newcomer.rank)
        return (own in ends and own.state != RunState.FINISHED) or len(ends) == len(streams)
    before = [stream for stream in ends if (stream.ended_at or stream.last_report_at) < newcomer.started_at]
    return len(before) == len(streams) or any(stream.state != RunState.FINISHED for stream in before)


def _is_too_late(newcomer: Newcomer, attempt: Attempt) -> bool:
    """Whether the process started long after the launch, or when its first steps were far along."""
    began_at = attempt.started_at or newcomer.started_at
    late_s = abs((newcomer.started_at - began_at).total_seconds())
    return late_s > LATE_S or (late_s > TOGETHER_S and _steps(attempt) > FAR_STEPS)


def _steps(attempt: Attempt) -> int:
    """Return how many steps an attempt has come from its first one."""
    infos = [info for info in store.metrics(attempt.pk) if info.rank >= 0]
    extent = store.extent(attempt.pk, {info.metric for info in infos}, {info.rank for info in infos})
    return 0 if extent is None or attempt.last_step is None else attempt.last_step - extent[0]


def _is_confirmed(newcomer: Newcomer, streams: Sequence[Stream]) -> bool:
    """Whether the launch was seen alive after the process had started, or ended after that."""
    return any(
        (stream.ended_at or stream.last_report_at) >= newcomer.started_at
        for stream in streams
        if stream.state == RunState.RUNNING or stream.ended_at
    )


def _after_waiting(newcomer: Newcomer, streams: Sequence[Stream], now: datetime) -> Place:
    """Decide about a launch that has not ended: silence shows that it was killed, a report that it lives."""
    running = [stream.last_report_at for stream in streams if stream.state == RunState.RUNNING]
    last = max(running, default=now - timedelta(days=1))
    if (now - last).total_seconds() > HELD_S:
        return Place.NEXT
    if last > now - timedelta(seconds=newcomer.launch.waited_s - LAST_WORDS_S):
        return Place.OTHER
    raise Undecided(
        f"rank {newcomer.rank} waits: a launch at the same address reported {(now - last).total_seconds():.0f} s ago;"
        f" whether it still runs shows within {HELD_S:.0f} s"
    )


def _is_other_training(newcomer: Newcomer, tracked: TrackedRun) -> bool:
    """Whether a number among the settings has changed: the settings of a run stay, so the launch is another run."""
    held = dict(tracked.parameters.filter(key__in=list(newcomer.config)[:5_000]).values_list("key", "value"))
    return any(
        _as_float(value) is not None and _as_float(held[key]) is not None and _as_float(value) != _as_float(held[key])
        for key, value in newcomer.config.items()
        if key in held and "rank" not in key.lower()
    )


def _as_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@transaction.atomic
def attempt_next(*, tracked: TrackedRun, started_at: datetime) -> Attempt:
    """Start the next attempt of a run whose processes were launched again; its last values are those to come."""
    before, tracked = lock(tracked)
    if RunState(before.state) == RunState.RUNNING:
        state_set(before, RunState.LOST, reason="its processes fell silent, and were launched again", is_news=False)
    attempt = queue_next_attempt(Run.everything.select_for_update(no_key=True).get(pk=tracked.run_id))
    facts = {"state": RunState.RUNNING, "started_at": started_at}
    Attempt.objects.filter(pk=attempt.pk).update(**facts)
    Run.everything.filter(pk=tracked.run_id).update(**facts)
    tracked.metrics.all().delete()
    TrackedRun.objects.filter(pk=tracked.pk).update(status=TrackedRun.Status.RUNNING, end_ms=None)
    return attempt
