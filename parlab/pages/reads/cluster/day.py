"""The last day of a node: its runs, and what they measured on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
from django.db.models import Q
from numpy.typing import NDArray

from parlab.charts.cluster.day import Ribbon, Track, day_figure
from parlab.charts.svg import Svg
from parlab.fleet import capacity
from parlab.lab.models import Member, MemberState, Node, Run
from parlab.series import store
from runners.wire.protocol import RunState

from .queue import KINDS, OTHER, local_clock

DAY = timedelta(hours=24)
MAX_MEMBERS = 300
_BINS = 160
_LEAST = timedelta(minutes=1)
_TRACKS = (
    ("gpu_util_pct", "GPU", "%", 100.0),
    ("gpu_mem_bytes", "GPU memory", "B", None),
    ("power_watts", "Power of a GPU", "W", None),
    ("temperature_celsius", "Hottest GPU", "°C", None),
    ("cpu_pct", "Processor", "%", 100.0),
    ("memory_bytes", "Memory of its runs", "B", None),
)
"""Metric, title, unit and end of the axis; the last two are those of the node."""
_OF_NODE = ("cpu_pct", "memory_bytes")


def day_of(node: Node, now: datetime) -> Svg | str:
    """Draw the runs of a node within the last day and what they measured; empty without a run."""
    members = Member.objects.filter(node=node, started_at__isnull=False).filter(
        Q(ended_at__gte=now - DAY) | Q(ended_at=None)
    )
    # Runs of projects that the person does not see are left out with their names and what they measured.
    members = members.filter(attempt__run__in=Run.everything.values("pk"))
    rows = list(members.select_related("attempt__run__experiment").order_by("-started_at")[:MAX_MEMBERS])
    if not rows:
        return ""
    first = max(now - DAY, min(member.started_at for member in rows if member.started_at))
    last = now if any(member.ended_at is None for member in rows) else max(m.ended_at for m in rows if m.ended_at)
    last = max(last, first + _LEAST)
    ends = (first.timestamp(), last.timestamp())
    ribbons = [_ribbon(member, now) for member in rows]
    return day_figure(ribbons, _tracks(node, rows, ends), ends, local_clock(now))


def _ribbon(member: Member, now: datetime) -> Ribbon:
    assert member.started_at is not None
    run = member.attempt.run
    is_prepared = member.state == MemberState.PREPARED  # the only state that attempts do not have
    kind = KINDS.get(RunState.RUNNING if is_prepared else RunState(member.state), OTHER)
    title = f"{run.experiment.name} #{run.number}: {member.state}"
    return Ribbon(
        member.started_at.timestamp(), (member.ended_at or now).timestamp(), kind, run.get_absolute_url(), title
    )


def _tracks(node: Node, members: Sequence[Member], ends: tuple[float, float]) -> list[Track]:
    parts = store.read_parts({member.attempt_id for member in members}, [row[0] for row in _TRACKS], _BINS)
    found: dict[str, list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = defaultdict(list)
    by_attempt = {member.attempt_id: member for member in members}
    for (attempt, metric, rank), part in parts.items():
        member = by_attempt[attempt]
        per_node = capacity.ranks_per_node(member.attempt.run.resolved)
        own = -1 - member.node_rank if metric in _OF_NODE else member.node_rank
        if (rank if metric in _OF_NODE else rank // per_node) == own:
            found[metric].append((part.columns.times, part.columns.values))
    cores = float(node.hardware.get("cpu_cores") or 1)
    return [
        _track(found[metric], (title, unit, top), ends, cores if metric == "cpu_pct" else 1.0)
        for metric, title, unit, top in _TRACKS
        if metric in found
    ]


def _track(
    series: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
    about: tuple[str, str, float | None],
    ends: tuple[float, float],
    divided_by: float,
) -> Track:
    """Return the largest value of all series in each of equal parts of the time; parts without a value are gaps."""
    title, unit, top = about
    low, high = ends
    width = (high - low) / _BINS
    values = np.full(_BINS, np.nan)
    for times, own in series:
        places = np.floor((times - low) / width).astype(int)
        fits = (places >= 0) & (places < _BINS) & np.isfinite(own)
        np.fmax.at(values, places[fits], own[fits] / divided_by)
    middles = low + (np.arange(_BINS) + 0.5) * width
    return Track(title, unit, middles.tolist(), values.tolist(), top)
