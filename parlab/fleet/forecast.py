"""When runs end and when queued ones start: an estimate for people; dispatch does not use it.

A running run ends after its remaining steps, at the latest at its time limit. Queued runs are taken in the order of the
queue: each starts when enough nodes of one kind are free, and takes as long as finished runs of its configuration took,
else as long as its limit allows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple

from django.utils.timezone import make_aware

from parlab.lab.models import Attempt, Node, Run
from parlab.lab.selectors.runs import remaining_s as steps_left_s
from parlab.lab.services.approvals import may_start
from runners.wire.protocol import RunState

from .capacity import Need, Room, remaining_s, rooms
from .waiting import waiting_reasons

MAX_QUEUED = 200
_PLANNED = re.compile(r"expected to start (\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:[+-]\d\d:\d\d)?)")
_SIMILAR = 500
"""Finished runs whose time is looked at."""


class Stay(NamedTuple):
    """A run on its nodes, or on its way there."""

    run: Run
    since: datetime
    """When it was queued."""
    starts: datetime | None
    """When it started or is expected to; None if that cannot be said."""
    ends: datetime | None
    is_limit: bool
    """Whether the end is its time limit, for want of steps or of finished runs like it."""
    reason: str
    """Why it waits."""
    planned: datetime | None = None
    """When Slurm expects to start it."""
    after: Run | None = None
    """The running run whose end lets it start."""

    @property
    def is_waiting(self) -> bool:
        return self.run.state != RunState.RUNNING

    @property
    def gpus(self) -> int:
        need = Need.of(self.run.resolved)
        return int(self.run.gpus or need.ranks * need.nodes)


@dataclass
class _Place:
    """A node with the times at which it becomes free, in seconds from now."""

    room: Room
    slots: int
    gpus: int
    ends: list[tuple[float, Need]] = field(default_factory=list)
    runs: dict[float, Run] = field(default_factory=dict)
    """The running runs by their ends."""

    def is_free(self, need: Need, at_s: float) -> bool:
        held = [own for end_s, own in self.ends if end_s > at_s]
        slots = self.slots - sum(self.room.slots_of(own) for own in held)
        gpus = self.gpus - sum(self.room.gpus_of(own) for own in held)
        return slots >= self.room.slots_of(need) and gpus >= need.gpus


def queue_forecast(nodes: Sequence[Node], now: datetime) -> dict[str, list[Stay]]:
    """Return by pool the running runs, then the queued ones in their order; pools without either are left out."""
    known = rooms(nodes)
    running = {attempt.pk: attempt for room in known for attempt in room.busy}
    queued = list(
        Run.objects.filter(may_start(), state=RunState.QUEUED)
        .select_related("experiment")
        .order_by("queued_at", "pk")[:MAX_QUEUED]
    )
    stays: dict[str, list[Stay]] = defaultdict(list)
    reasons = waiting_reasons([attempt.run for attempt in running.values() if attempt.started_at is None])
    for attempt in sorted(running.values(), key=lambda each: (each.started_at or now, each.pk)):
        stay = _running(attempt, now, reasons.get(attempt.run_id, ""))
        stays[Need.of(attempt.run.resolved).pool].append(stay)
    for stay in _queued(queued, known, now):
        stays[Need.of(stay.run.resolved).pool].append(stay)
    return dict(stays)


def free_at(node: Node, now: datetime) -> datetime | None:
    """Return when all runs of a node are expected to have ended; None without any."""
    left = [_left_s(attempt, now)[0] for room in rooms([node]) for attempt in room.busy]
    return now + timedelta(seconds=max(left)) if left else None


def _running(attempt: Attempt, now: datetime, reason: str) -> Stay:
    """Return the stay of an attempt on its nodes, or in the queue of its cluster."""
    left_s, is_limit = _left_s(attempt, now)
    planned = None if attempt.started_at else planned_start(reason)
    starts = attempt.started_at or planned
    ends = max(now, planned or now) + timedelta(seconds=left_s)
    return Stay(attempt.run, attempt.run.queued_at, starts, ends, is_limit, reason, planned)


def planned_start(reason: str) -> datetime | None:
    """Return the start that Slurm expects, as a node states it in the reason why a run waits."""
    match = _PLANNED.search(reason)
    if match is None:
        return None
    at = datetime.fromisoformat(match[1])
    return at if at.tzinfo else make_aware(at)


def _left_s(attempt: Attempt, now: datetime) -> tuple[float, bool]:
    """Return how long an attempt will still run, and whether that is its limit for want of steps."""
    left_s = steps_left_s(attempt.run, attempt)
    return (remaining_s(attempt, now), True) if left_s is None else (max(0.0, left_s), False)


def _queued(queued: Sequence[Run], known: Iterable[Room], now: datetime) -> list[Stay]:
    places = [_place(room, now) for room in known if room.node.is_online and room.node.is_enabled]
    reasons, usual = waiting_reasons(queued), _usual_s(queued)
    stays = []
    for run in queued:
        need = Need.of(run.resolved)
        takes_s = usual.get(run.config_id)
        length_s = need.limit_s if takes_s is None else min(takes_s, need.limit_s)
        at_s = _start_s(places, need, length_s)
        after = _after(places, at_s)
        starts = None if at_s is None else now + timedelta(seconds=at_s)
        ends = None if starts is None else starts + timedelta(seconds=length_s)
        stays.append(Stay(run, run.queued_at, starts, ends, takes_s is None, reasons.get(run.pk, ""), after=after))
    return stays


def _place(room: Room, now: datetime) -> _Place:
    left = {attempt.pk: _left_s(attempt, now)[0] for attempt in room.busy}
    held = [(left[attempt.pk], Need.of(attempt.run.resolved)) for attempt in room.busy]
    slots = room.slots + sum(room.slots_of(need) for _, need in held)
    gpus = room.gpus + sum(room.gpus_of(need) for _, need in held)
    return _Place(room, slots, gpus, held, {left[attempt.pk]: attempt.run for attempt in room.busy})


def _after(places: Sequence[_Place], at_s: float | None) -> Run | None:
    """Return the running run that ends when another one can start."""
    return next((place.runs[at_s] for place in places if at_s and at_s in place.runs), None)


def _start_s(places: Sequence[_Place], need: Need, length_s: float) -> float | None:
    """Return when enough nodes of one kind are free, and take them from then on; None if they never are."""
    able = [place for place in places if place.room.could_take(need) and not place.room.node.is_draining]
    for at_s in sorted({0.0, *(end_s for place in able for end_s, _ in place.ends)}):
        kinds: dict[str, list[_Place]] = defaultdict(list)
        for place in able:
            if place.is_free(need, at_s):
                kinds[place.room.device_of(need)].append(place)
        chosen = next((kind for kind in kinds.values() if _count(kind, need) >= need.nodes), None)
        if chosen is not None:
            for place in chosen[: need.nodes]:
                place.ends.append((at_s + length_s, need))
            return at_s
    return None


def _count(kind: Sequence[_Place], need: Need) -> int:
    """Return on how many nodes a run could start; one queue of Slurm gives any number."""
    return need.nodes if any(place.room.is_queue for place in kind) else len(kind)


def _usual_s(queued: Sequence[Run]) -> Mapping[int, float]:
    """Return the median time of finished runs of each configuration."""
    ended = Run.objects.filter(
        config__in={run.config_id for run in queued}, state=RunState.FINISHED, started_at__isnull=False
    ).exclude(ended_at=None)
    took: dict[int, list[float]] = defaultdict(list)
    for config, started, ended_at in ended.order_by("-ended_at").values_list("config", "started_at", "ended_at")[
        :_SIMILAR
    ]:
        if started is not None and ended_at is not None:
            took[config].append((ended_at - started).total_seconds())
    return {config: median(seconds) for config, seconds in took.items()}
