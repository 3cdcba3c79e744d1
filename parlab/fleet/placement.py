"""The choice of nodes for queued runs: all nodes of a run at once, in the order of the queue, with reservations.

A run that has waited for longer than RESERVE_AFTER_S reserves the nodes that it needs: runs that came later start
there only if their time limit ends before the reserved nodes are free, so that small runs fill gaps but never starve
a large one: the estimate of that time never exceeds the time limits of the runs that keep the nodes busy.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q, QuerySet

from parlab.lab.models import Run
from runners.config.devices import DEVICES

from .capacity import Need, Room, distinct, reservation
from .shortlist import Shortlists

_RUNS_A_ROUND = 500
_RESERVATIONS = 20
"""Runs of one round that may reserve nodes."""


def is_reserving(run: Run, now: datetime) -> bool:
    """Whether a queued run has waited for long enough to reserve nodes."""
    return now - run.queued_at > timedelta(seconds=settings.RESERVE_AFTER_S)


def candidates(queued: QuerySet[Run], online: Sequence[Room], now: datetime) -> list[Run]:
    """Return the queued runs that may start now or reserve nodes, the oldest first.

    Runs that no free node can take are left out, so that they do not hide others behind them.
    """
    free = [room for room in online if room.slots > 0]
    most_gpus = max(room.gpus for room in free)
    need_gpus = [row.name for row in DEVICES.values() if row.needs_gpus]
    fitting = ~Q(resolved__cluster__device__in=need_gpus) | Q(resolved__cluster__gpus_per_node__lte=most_gpus)
    fitting &= Q(resolved__cluster__pool__in={room.node.pool for room in free})
    queues = {room.node.pool for room in free if room.is_queue}
    fitting &= (
        Q(resolved__cluster__nodes__lte=len(free))
        | Q(resolved__network__apply="emulate")
        | Q(resolved__cluster__pool__in=queues)
    )
    columns = queued.select_related("experiment").only(
        "resolved", "attempt_number", "queued_at", "number", "experiment__name"
    )
    aged = Q(queued_at__lt=now - timedelta(seconds=settings.RESERVE_AFTER_S))
    pools = Q(resolved__cluster__pool__in={room.node.pool for room in online})
    runs = {run.pk: run for run in columns.filter(fitting)[:_RUNS_A_ROUND]}
    runs |= {run.pk: run for run in columns.filter(~fitting & aged & pools)[:_RESERVATIONS]}
    return sorted(runs.values(), key=lambda run: (run.queued_at, run.pk))


def placements(queue: Iterable[Run], online: Sequence[Room], now: datetime) -> Iterator[tuple[Run, list[Room]]]:
    """Yield the runs that start now with their nodes; the rooms lose what the runs take or reserve."""
    reservations, shortlists = 0, Shortlists(online)
    for run in queue:
        need = Need.of(run.resolved)
        places = shortlists.best(need)
        if places:
            for room in distinct(places):
                room.take(need)
            yield run, places
        elif reservations < _RESERVATIONS and is_reserving(run, now):
            reservations += 1
            reserved = distinct(reservation(online, need))
            gap_s = max((room.free_in_s(need, now) for room in reserved), default=0.0)
            for room in reserved:
                room.reserve(need, run, gap_s)
