"""What a node measured of itself (`runners.engines.node_rates`) in place of data sheets and usual values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .cluster import Cluster, Link
from .hardware import Gpu

COPY_SHARE = 0.9
"""Share of the bandwidth of the data sheet that a copy reaches: 3.0 of 3.35 TB/s on an H100, 4.3 of 4.8 on an H200."""
_MOST = 1e18
_LENGTH_SHARE = 4096 / (4096 + 512)
"""Share of its highest rate that attention reaches at the measured length; see `attention.fused_share`."""


def measured_device(gpu: Gpu, rates: Any) -> Gpu:
    """Return a GPU with the rates that its node measured: matrix products, attention, memory, way from the host.

    `rates` is the field of that name in the description of a node; what it lacks, or states as no positive number,
    stays as it is.
    """
    if not isinstance(rates, Mapping):
        return gpu
    matrix = rates.get("matrix")
    ceiling = positive(matrix.get("bf16")) if isinstance(matrix, Mapping) else None
    attention, memory, host = (positive(rates.get(name)) for name in ("attention", "memory", "host"))
    if ceiling is not None:
        gpu = replace(gpu, matmul_ceiling_flops=ceiling)
        if attention is not None:
            gpu = replace(gpu, attention_share=attention / ceiling / _LENGTH_SHARE)
    if memory is not None:
        gpu = replace(gpu, memory_bandwidth=memory / COPY_SHARE)
    return gpu if host is None else replace(gpu, host_bandwidth=host)


def with_measured_links(cluster: Cluster, rates: Any) -> Cluster:
    """Return a cluster with the link inside its nodes that they measured, if they did."""
    link = measured_link(rates, cluster.gpus_per_node)
    return cluster if link is None else replace(cluster, inside=link)


def own_link(rates: Any) -> Link | None:
    """Return the link between all the devices of a node that it measured; see `measured_link`."""
    devices = positive(rates.get("devices")) if isinstance(rates, Mapping) else None
    return measured_link(rates, int(devices or 1))


def measured_link(rates: Any, devices: int) -> Link | None:
    """Return the link between the devices of a node that the curves of all-reduce and all-to-all show.

    The curve of as many ranks as the node has devices counts, else that of the next larger number, else the largest.
    """
    if not isinstance(rates, Mapping):
        return None
    ranks, reduced = _curve(rates.get("all_reduce"), devices)
    if ranks < 2:
        return None
    fixed_s, per_byte_s = _line(reduced)
    others, exchanged = _curve(rates.get("all_to_all"), devices)
    exchange = (others - 1) / others / _line(exchanged)[1] if others >= 2 else None
    bandwidth = 2 * (ranks - 1) / ranks / per_byte_s
    return Link(bandwidth, min(fixed_s / (2 * (ranks - 1)), 60.0), is_measured=True, exchange=exchange)


def _curve(curves: Any, devices: int) -> tuple[int, list[tuple[float, float]]]:
    """Return number of ranks, and the points (bytes, seconds), of the curve for a node; 0 ranks without one."""
    if not isinstance(curves, Mapping):
        return 0, []
    by_ranks = {int(name): _points(points) for name, points in curves.items() if str(name).isdecimal()}
    usable = {ranks: points for ranks, points in by_ranks.items() if ranks >= 2 and len(points) >= 2}
    if not usable:
        return 0, []
    ranks = min((ranks for ranks in usable if ranks >= devices), default=max(usable))
    return ranks, usable[ranks]


def _points(points: Any) -> list[tuple[float, float]]:
    pairs = (
        [pair for pair in points if isinstance(pair, Sequence) and len(pair) == 2] if isinstance(points, list) else []
    )
    found = [(positive(size), positive(seconds)) for size, seconds in pairs]
    return [(size, seconds) for size, seconds in found if size is not None and seconds is not None]


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return seconds and seconds per byte of the line nearest to the points, by relative errors; both positive.

    Minimises the sum of ((a + b S - t) / t)² over the points.
    """
    weights = [(1 / seconds, size / seconds) for size, seconds in points]
    ones, both, sizes = (sum(a**i * b ** (2 - i) for a, b in weights) for i in (2, 1, 0))
    first, second = sum(a for a, _ in weights), sum(b for _, b in weights)
    determinant = ones * sizes - both * both
    largest, slowest = max(points)
    if determinant <= 0:
        return 0.0, slowest / largest
    fixed = (first * sizes - second * both) / determinant
    slope = (ones * second - both * first) / determinant
    return (max(fixed, 0.0), slope) if slope > 0 else (0.0, slowest / largest)


def positive(value: Any) -> float | None:
    """Return a positive number that a node states; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < _MOST else None
