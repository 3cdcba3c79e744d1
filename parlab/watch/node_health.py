"""What the page of a node shows of its health: each rate with its state, and how it compares with devices like it."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

from django.db.models import OuterRef, Subquery

from parlab.charts.format import signed_percent
from parlab.lab.models import Node
from parlab.watch.analysis.measures import HEALTH, measure_of

from .models import Alert, Result, Series, Watch
from .selectors import state_of

LEAST_PEERS = 3
"""Devices or links below which nothing is compared with their median."""
BEHIND = -0.1
"""Difference from the median of its peers from which a rate is marked."""


class HealthRow(NamedTuple):
    series: Series
    title: str
    value: float | None
    unit: str
    peers: int
    """Devices or links of the same kind with a result, this one included."""
    difference: float | None
    """From the median of its peers; None with too few of them."""
    state: str

    @property
    def compared(self) -> str:
        """The difference as text, such as -12.3%."""
        return "" if self.difference is None else signed_percent(self.difference)

    @property
    def is_behind(self) -> bool:
        return self.difference is not None and self.difference <= BEHIND


class NodeHealth(NamedTuple):
    """The watches of a node, its rates, and its open alerts."""

    watches: list[Watch]
    rows: list[HealthRow]
    alerts: list[Alert]
    last: Result | None
    waiting: int
    """Orders of sweeps that have not ended."""

    @property
    def is_compared(self) -> bool:
        return any(row.difference is not None for row in self.rows)


def node_health(node: Node) -> NodeHealth:
    """Return the health of a node and of its links to other nodes."""
    own = Watch.objects.filter(node=node) | Watch.objects.filter(peer=node)
    watches = list(own.select_related("node", "peer").prefetch_related("series").order_by("pk"))
    newest = _newest(watches)
    peers = _peers(watches)
    rows = []
    for watch in watches:
        result = newest.get(watch.pk)
        for series in watch.series.all():
            if series.measure.startswith(HEALTH):
                rows.append(_row(watch, series, result, peers))
    alerts = Alert.objects.open().filter(watch__in=watches) | Alert.objects.open().filter(node=node.name)
    results = sorted(newest.values(), key=lambda row: row.at)
    waiting = sum(watch.orders.filter(state="open").count() for watch in watches)
    shown = alerts.select_related("watch__node", "watch__peer", "first_bad", "last_good").order_by("-pk")[:20]
    return NodeHealth(watches, rows, list(shown), results[-1] if results else None, waiting)


def _row(watch: Watch, series: Series, result: Result | None, peers: dict[tuple[Any, ...], list[float]]) -> HealthRow:
    measure = measure_of(series.measure)
    value = result.values.get(series.measure) if result is not None else None
    group = peers.get(_kind(watch, series.measure), [])
    difference = value / median(group) - 1 if value is not None and len(group) >= LEAST_PEERS else None
    title = watch.title_of(series.measure)
    return HealthRow(series, title, value, measure.unit, len(group), difference, state_of(series))


def _newest(watches: Iterable[Watch]) -> dict[int, Result]:
    last = Result.objects.filter(watch=OuterRef("pk")).order_by("-at", "-pk").values("pk")[:1]
    keys = Watch.objects.filter(pk__in=[watch.pk for watch in watches]).annotate(newest=Subquery(last))
    rows = Result.objects.filter(pk__in=keys.values("newest")).defer("environment")
    return {row.watch_id: row for row in rows}


def _kind(watch: Watch, measure: str) -> tuple[Any, ...]:
    """Return what rates must have in common to be compared: the rate, the GPU, and the ends of a link."""
    hardware = watch.node.hardware if watch.node is not None else {}
    gpus = hardware.get("gpus") or [{}]
    device = gpus[0].get("name") or hardware.get("cpu_model")
    return measure.split(":")[1], device, watch.peer_id is not None


def _peers(watches: Iterable[Watch]) -> dict[tuple[Any, ...], list[float]]:
    """Return the newest values of all devices and links of the kinds that these watches have."""
    pools = {watch.node.pool for watch in watches if watch.node is not None}
    others = list(Watch.objects.filter(node__pool__in=pools).select_related("node"))
    newest = _newest(others)
    peers: dict[tuple[Any, ...], list[float]] = {}
    for watch in others:
        result = newest.get(watch.pk)
        for measure, value in result.values.items() if result is not None else ():
            if measure.startswith(HEALTH):
                peers.setdefault(_kind(watch, measure), []).append(value)
    return peers
