"""Utilisation and memory of nodes over the last half hour, from what their runs measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from django.db.models import F, Q
from numpy.typing import NDArray

from parlab.fleet import capacity
from parlab.lab.models import Member, Node
from parlab.series import store

WINDOW = timedelta(minutes=30)
MAX_MEMBERS = 200
CPU, GPU, MEMORY = "cpu_pct", "gpu_util_pct", "memory_bytes"
LEAST_POINTS = 200
"""Detail in which long series are read."""

Series = Mapping[tuple[int, str, int], Any]


class Samples(NamedTuple):
    """Means of equal parts of the window, the oldest first; None where nothing was measured."""

    utilisation: list[float | None]
    """Shares of the GPUs that ran, else of the cores of the node."""
    memory: list[float | None]
    """Bytes of the processes of all its runs."""


def samples(nodes: Sequence[Node], now: datetime, count: int) -> dict[int, Samples]:
    """Return the samples of nodes by their id, `count` of each."""
    begin = now - WINDOW
    members = Member.objects.filter(node__in=nodes, attempt__number=F("attempt__run__attempt_number"))
    recent = members.filter(Q(attempt__run__ended_at__gte=begin) | Q(attempt__run__ended_at=None))
    rows = list(recent.values_list("attempt", "node_rank", "node", "attempt__run__resolved")[:MAX_MEMBERS])
    series = _read([row[0] for row in rows])
    cores = {node.pk: float(node.hardware.get("cpu_cores") or 1) for node in nodes}
    busy = {node.pk: np.full(count, np.nan) for node in nodes}
    memory = {node.pk: np.full(count, np.nan) for node in nodes}
    for attempt, node_rank, node, resolved in rows:
        for metric, columns in own_series(series, attempt, node_rank, capacity.ranks_per_node(resolved)):
            means = _means(columns.times, columns.values, begin.timestamp(), count)
            if metric == MEMORY:
                memory[node] = np.where(np.isnan(means), memory[node], np.nan_to_num(memory[node]) + means)
            else:
                share = means / (100.0 if metric == GPU else 100.0 * cores[node])
                busy[node] = np.where(np.isnan(share), busy[node], np.fmax(np.nan_to_num(busy[node]), share))
    return {pk: Samples(_plain(np.minimum(busy[pk], 1.0)), _plain(memory[pk])) for pk in busy}


def _read(attempts: Sequence[int]) -> Series:
    parts = store.read_parts(attempts, [CPU, GPU, MEMORY], LEAST_POINTS)
    return {key: part.columns for key, part in parts.items()}


def own_series(series: Series, attempt: int, node_rank: int, per_node: int) -> list[tuple[str, Any]]:
    """Return what one node of an attempt measured: its memory, and its GPUs, else its processor."""
    own = [(metric, rank, columns) for (pk, metric, rank), columns in series.items() if pk == attempt]
    gpus = [(GPU, columns) for metric, rank, columns in own if metric == GPU and rank // per_node == node_rank]
    of_node = [(metric, columns) for metric, rank, columns in own if rank == -1 - node_rank and metric != GPU]
    return [*gpus, *((metric, columns) for metric, columns in of_node if metric == MEMORY or not gpus)]


def _means(times: NDArray[np.float64], values: NDArray[np.float64], begin: float, count: int) -> NDArray[np.float64]:
    places = np.floor((times - begin) / (WINDOW.total_seconds() / count)).astype(int)
    fits = (places >= 0) & (places < count) & np.isfinite(values)
    counts = np.bincount(places[fits], minlength=count)
    sums = np.bincount(places[fits], weights=values[fits], minlength=count)
    means: NDArray[np.float64] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
