"""Utilisation gauges of nodes, from the latest samples of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.fleet import capacity
from parlab.lab.models import Member, MemberState
from parlab.pages.rows.nodes import NodeRow
from parlab.series import store

GPU_METRIC = "gpu_util_pct"
CPU_METRIC = "cpu_pct"
_RESOLVED = "attempt__run__resolved"


class Gauge(NamedTuple):
    """A small bar with a percentage."""

    name: str
    percent: float | None
    """None if there is no current sample."""
    title: str


class NodeGauges(NamedTuple):
    row: NodeRow
    gauges: list[Gauge]


def node_gauges(rows: Sequence[NodeRow]) -> list[NodeGauges]:
    """Return each node with the latest utilisation of its GPUs, or of its CPU if it has no GPUs."""
    running = Member.objects.filter(state=MemberState.RUNNING, node__in=[row.node.pk for row in rows])
    nodes: dict[tuple[int, int], int | None] = {}
    ranks_per_node: dict[int, int] = {}
    for attempt, node_rank, node, resolved in running.values_list("attempt", "node_rank", "node", _RESOLVED):
        nodes[attempt, node_rank] = node
        ranks_per_node[attempt] = capacity.ranks_per_node(resolved)
    latest = store.latest(list(ranks_per_node), [GPU_METRIC, CPU_METRIC]) if nodes else {}
    by_node: dict[int, dict[tuple[str, int], list[float]]] = {}
    for (attempt, metric, rank), value in latest.items():
        node_rank = -1 - rank if rank < 0 else rank // ranks_per_node[attempt]
        local_rank = rank - node_rank * ranks_per_node[attempt] if rank >= 0 else -1
        by_node.setdefault(nodes.get((attempt, node_rank)) or 0, {}).setdefault((metric, local_rank), []).append(value)
    return [NodeGauges(row, _gauges(row, by_node.get(row.node.pk, {}))) for row in rows]


def _gauges(row: NodeRow, measured: Mapping[tuple[str, int], Sequence[float]]) -> list[Gauge]:
    hardware: dict[str, Any] = row.node.hardware
    gpus = hardware.get("gpus") or []
    if gpus:
        return [_gpu(gpu, measured) for gpu in gpus]
    cores = hardware.get("cpu_cores") or 1
    # Concurrent runs share the CPU, so their shares add up.
    used = sum(sum(values) for (metric, _), values in measured.items() if metric == CPU_METRIC)
    is_measured = any(metric == CPU_METRIC for metric, _ in measured)
    percent = min(100.0, used / cores) if is_measured else None
    return [Gauge("CPU", percent, f"{cores} cores")]


def _gpu(gpu: Mapping[str, Any], measured: Mapping[tuple[str, int], Sequence[float]]) -> Gauge:
    index = int(gpu.get("index", 0))
    values = measured.get((GPU_METRIC, index))
    return Gauge(f"GPU {index}", max(values) if values else None, str(gpu.get("name", "")))
