"""The planner's fitted constants. Each has a physical meaning and is above 0.

The defaults are one fit to all groups of published measurements; they apply where nothing was measured.
`make bench-planner` prints the fit, docs/understand/planner.md states its error on groups left out of a fit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class TimeParameters:
    """Constants of the time model: how much of the data sheet figures a cluster and its software reach."""

    matmul_efficiency: float = 0.906
    """Share of the matmul ceiling that the products of a layer reach, after the correction for their sizes."""
    matmul_traffic: float = 1.34
    """Bytes that a product moves, relative to its operands and result. This term makes small products slow."""
    memory_efficiency: float = 0.795
    """Share of the memory bandwidth that norms, softmax, dropout and the optimizer reach."""
    host_s: float = 0.000943
    """Time in which the processor launches the kernels of one pass through one layer (s)."""
    inside_efficiency: float = 0.761
    """Share of the bandwidth inside a node that collectives reach."""
    between_efficiency: float = 0.585
    """Share of the bandwidth between nodes that collectives reach."""
    shaped_efficiency: float = 0.904
    """The same for links whose bandwidth was set or measured instead of taken from a data sheet: the share of TCP."""
    step_s: float = 0.0167
    """Fixed time of every iteration (s): optimizer launches, logging, data loading."""
    straggler_share: float = 0.0143
    """Share by which each doubling of the nodes delays an iteration: every rank waits for the slowest one."""
    misaligned_slowdown: float = 4.46
    """Slowdown of attention if the head size is not a multiple of 8."""
    sharded_efficiency: float = 0.113
    """Share of the bandwidth that gathering each parameter on its own reaches (ZeRO-3 of 2021, without overlap)."""
    attention_efficiency: float = 0.957
    """Speed of fused attention relative to the published kernels (`attention.SHARES`)."""
    low_precision_efficiency: float = 1
    """Share of the ceiling that products in 8 and 4 bits reach, relative to 16 bits."""
    exchange_efficiency: float = 1
    """Speed of the exchange of tokens inside a domain relative to the published kernels (`dispatch.KERNELS`)."""
    grouped_efficiency: float = 0.554
    """Speed of the products of experts relative to one large product: uneven loads, partly filled tiles."""
    routing_s: float = 0.00107
    """Time in which the processor launches the kernels of routing, in addition to `host_s` (s)."""
    expert_s: float = 0.000104
    """The same for each expert of a rank (s)."""


@dataclass(frozen=True)
class MemoryParameters:
    """Constants of the memory model: what the formulas of `memory` do not count."""

    fragmentation: float = 1.077
    """Memory held by the allocator relative to the live activations and logits: fragments, workspaces."""
    flat_factor: float = 1.071
    """Size of the weights, gradients and optimizer state flattened by ZeRO-1 and -2, relative to their formula:
    alignment, and fragments left by the first copies."""
    bucket_values: float = 6.01e8
    """Values in each of the two buckets in which ZeRO-1 and -2 reduce gradients and gather weights."""
    logit_bytes: float = 8.39
    """Bytes per logit while the loss is computed."""
    communicator_bytes: float = 7.15e8
    """Buffers of NCCL for each process group inside a node, in bytes; a third between nodes."""
    overhead_bytes: float = 1.26e9
    """Device context, libraries and kernels, in bytes."""


LIMITS: dict[str, float] = {
    "matmul_efficiency": 1.1,
    "memory_efficiency": 1.0,
    "inside_efficiency": 1.0,
    "between_efficiency": 1.5,
    "sharded_efficiency": 1.0,
    "shaped_efficiency": 1.1,
    "attention_efficiency": 1.3,
    "low_precision_efficiency": 1.0,
    "exchange_efficiency": 1.3,
    "grouped_efficiency": 1.0,
}
"""Upper limits. A share of the memory bandwidth and of a link inside a node is at most 1. The limit of matrix products
leaves room for kernels that are better than the measured ceiling."""


WIDTHS: dict[str, float] = {
    "attention_efficiency": 0.15,
    "exchange_efficiency": 0.15,
    "fragmentation": 0.1,
    "flat_factor": 0.1,
    "logit_bytes": 0.6,
    "communicator_bytes": 0.8,
    "overhead_bytes": 0.6,
}
"""Widths of the springs that pull constants back to their start, in logarithms; 1 if not listed. Allocators waste a few
per cent in every code base, so a larger excess must not be explained by fragmentation. The rates of attention kernels
were measured by their authors."""


def widths(kind: type[TimeParameters] | type[MemoryParameters]) -> npt.NDArray[np.float64]:
    """Return the widths of the springs, in the order of `names`."""
    return np.array([WIDTHS.get(name, 1.0) for name in names(kind)])


def limits(kind: type[TimeParameters] | type[MemoryParameters]) -> npt.NDArray[np.float64]:
    """Return the logarithms of the upper limits, in the order of `names`."""
    return np.log([LIMITS.get(name, np.inf) for name in names(kind)])


P = TypeVar("P", TimeParameters, MemoryParameters)


def names(kind: type[TimeParameters] | type[MemoryParameters]) -> tuple[str, ...]:
    """Return the names of the parameters, in the order of their vector."""
    return tuple(field.name for field in fields(kind))


def as_vector(parameters: TimeParameters | MemoryParameters) -> npt.NDArray[np.float64]:
    """Return the logarithms of the parameters, in the order of `names`."""
    return np.log([getattr(parameters, name) for name in names(type(parameters))])


def from_vector(template: P, vector: npt.NDArray[np.float64]) -> P:
    """Return parameters of the type of `template` from a vector of their logarithms."""
    return replace(template, **{n: float(v) for n, v in zip(names(type(template)), np.exp(vector), strict=True)})
