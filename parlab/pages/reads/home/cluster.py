"""Nodes with their utilisation over the last half hour, and the runs of that time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from typing import NamedTuple

from django.db.models import Q
from django.utils import timezone

from parlab.charts.format import DASH, SPACE
from parlab.charts.svg import Canvas, Margins, Svg, length, squares
from parlab.lab.models import Node, Run
from parlab.pages.reads.cluster.samples import WINDOW, samples
from runners.wire.protocol import RunState

SQUARES = 24
MAX_NODES = 6
_MAX_LANES, _LANE_PX, _GAP_PX = 3, 16, 3
_LEAST_PX = 3.0
_KINDS = {RunState.RUNNING: "running", RunState.FINISHED: "finished", RunState.OOM: "oom", RunState.FAILED: "failed"}


class NodeStrip(NamedTuple):
    node: Node
    squares: Svg
    now: str
    """`53 %`, or a dash."""


class ClusterStrip(NamedTuple):
    """What Home shows of the nodes."""

    nodes: list[NodeStrip]
    online: int
    more: int
    """Nodes that are not shown."""
    unit: str
    """CPU or GPU."""
    lanes: Svg | str
    states: list[str]
    """States of the runs of the lanes, for their key."""


def cluster_strip() -> ClusterStrip:
    """Return the nodes that are online first, then by name."""
    now = timezone.now()
    nodes = sorted(Node.objects.all(), key=lambda node: (not node.is_online, node.name))
    shown = nodes[:MAX_NODES]
    measured = samples(shown, now, SQUARES)
    has_gpus = any(node.hardware.get("gpus") for node in shown)
    lanes, states = _lanes(now)
    shares = {pk: own.utilisation for pk, own in measured.items()}
    strips = [NodeStrip(node, _squares(node, shares[node.pk]), _now(shares[node.pk])) for node in shown]
    online = sum(node.is_online for node in nodes)
    return ClusterStrip(strips, online, len(nodes) - len(shown), "GPU" if has_gpus else "CPU", lanes, states)


def _squares(node: Node, shares: Sequence[float | None]) -> Svg:
    return squares(shares, f"Utilisation of {node.name} over the last 30 minutes", count=SQUARES)


def _now(shares: Sequence[float | None]) -> str:
    value = next((share for share in reversed(shares[-2:]) if share is not None), None)
    return DASH if value is None else f"{100 * value:.0f}{SPACE}%"


def _lanes(now: datetime) -> tuple[Svg | str, list[str]]:
    """Draw the runs of the window as bars in lanes, so that none covers another."""
    begin = now - WINDOW
    ran = Run.objects.filter(Q(ended_at__gte=begin) | Q(state=RunState.RUNNING), started_at__isnull=False)
    fields = ("started_at", "ended_at", "state", "number", "experiment__name")
    rows = list(ran.filter(origin=Run.Origin.MEASURED).order_by("started_at").values_list(*fields)[:200])
    if not rows:
        return "", []
    first = max(begin, min(row[0] for row in rows))
    span = max((now - first).total_seconds(), 60.0)
    canvas = Canvas(348, 22 + _MAX_LANES * (_LANE_PX + _GAP_PX), (0, span), (0, 1), Margins(0, 0, 0, 0))
    free = [-1.0] * _MAX_LANES
    for started, ended, state, number, name in rows:
        left = canvas.x(max(0.0, (started - first).total_seconds()))
        right = max(left + _LEAST_PX, canvas.x(((ended or now) - first).total_seconds()))
        lane = next((place for place, end in enumerate(free) if end <= left), _MAX_LANES - 1)
        free[lane] = right + 1
        _bar(canvas, (left, right, lane), state, f"{name} #{number}: {state}")
    foot = canvas.height - 4
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        at = timezone.localtime(first + timedelta(seconds=span * share))
        canvas.text(canvas.x(span * share), foot, f"{at:%H:%M}", anchor)
    states = [kind for state, kind in _KINDS.items() if any(row[2] == state for row in rows)]
    return canvas.svg("Runs of the last 30 minutes"), states


def _bar(canvas: Canvas, place: tuple[float, float, int], state: str, title: str) -> None:
    left, right, lane = place
    kind = _KINDS.get(RunState(state), "queued")
    top = lane * (_LANE_PX + _GAP_PX) + 1
    canvas.add(
        f'<rect class="run-{kind}" x="{length(left)}" y="{top}" width="{length(max(_LEAST_PX, right - left - 1))}"'
        f' height="{_LANE_PX}" rx="1.5"><title>{escape(title)}</title></rect>'
    )
