"""The constants of the planner that are fitted, each with a physical meaning; all are above 0.

The defaults are one fit to all groups of published measurements (`make bench-planner` prints it, docs/planner.md says
how far off it is on groups that it was not fitted to): they serve where nothing was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class TimeParameters:
    """What a cluster and its software reach of what data sheets promise."""

    matmul_efficiency: float = 0.821
    """Share of the matmul ceiling that the products of a layer reach, once their sizes are counted."""
    matmul_traffic: float = 0.976
    """Bytes that a product moves, over those of its operands and result: small products are slow."""
    memory_efficiency: float = 0.775
    """Share of the memory bandwidth that norms, softmax, dropout and the optimizer reach."""
    host_s: float = 0.00105
    """Seconds in which the processor starts the kernels of one pass through one layer."""
    inside_efficiency: float = 1.12
    """Share of the links inside a node that collectives reach; above 1 where they hide behind the compute."""
    between_efficiency: float = 0.598
    """Share of the links between nodes that collectives reach."""
    shaped_efficiency: float = 0.888
    """The same of links whose bandwidth was set or measured, not promised: TCP's share."""
    step_s: float = 0.0191
    """Seconds of every iteration that depend on nothing else: optimizer launches, logging, the loader."""
    misaligned_slowdown: float = 4.05
    """How much slower attention is where the width of a head is no multiple of 8."""
    sharded_efficiency: float = 0.247
    """Share of the links that gathering sharded weights (ZeRO-3, FSDP) reaches."""


@dataclass(frozen=True)
class MemoryParameters:
    """What memory takes beside what the formulas of `memory` count."""

    fragmentation: float = 1.04
    """What the allocator holds over the activations and logits that live: fragments, workspaces."""
    flat_factor: float = 1.07
    """Weights, gradients and optimizer state that ZeRO-1 and -2 flatten, over their formula: alignment, and the holes
    that the first copies leave."""
    bucket_values: float = 6.39e8
    """Values in each of the two buckets in which ZeRO-1 and -2 reduce gradients and gather weights."""
    logit_bytes: float = 7.96
    """Bytes per logit while the loss is computed."""
    communicator_bytes: float = 6.17e8
    """Buffers of each group of ranks that talk (tensor, pipeline, data)."""
    overhead_bytes: float = 1.24e9
    """Context of the device, libraries and kernels."""


LIMITS: dict[str, float] = {
    "matmul_efficiency": 1.1,
    "memory_efficiency": 1.0,
    "inside_efficiency": 1.5,
    "between_efficiency": 1.5,
    "sharded_efficiency": 1.0,
    "shaped_efficiency": 1.1,
}
"""Largest values: a share of the memory bandwidth is at most the whole, the measured ceiling of products leaves room
for better kernels, and links may seem faster than they are where messages hide behind the compute."""


WIDTHS: dict[str, float] = {
    "fragmentation": 0.1,
    "flat_factor": 0.1,
    "logit_bytes": 0.6,
    "communicator_bytes": 0.8,
    "overhead_bytes": 0.6,
}
"""Widths of the springs that hold constants near where they start, in logarithms; 1 where none is named. An allocator
wastes some per cent, whoever trains: what a code base needs beyond that is no fragment."""


def widths(kind: type[TimeParameters] | type[MemoryParameters]) -> npt.NDArray[np.float64]:
    """Widths of the springs, in the order of the names."""
    return np.array([WIDTHS.get(name, 1.0) for name in names(kind)])


def limits(kind: type[TimeParameters] | type[MemoryParameters]) -> npt.NDArray[np.float64]:
    """Logarithms of the largest values that the parameters may have, in the order of their names."""
    return np.log([LIMITS.get(name, np.inf) for name in names(kind)])


P = TypeVar("P", TimeParameters, MemoryParameters)


def names(kind: type[TimeParameters] | type[MemoryParameters]) -> tuple[str, ...]:
    """Names of the parameters, in the order of their vector."""
    return tuple(field.name for field in fields(kind))


def as_vector(parameters: TimeParameters | MemoryParameters) -> npt.NDArray[np.float64]:
    """Logarithms of the parameters, in the order of their names."""
    return np.log([getattr(parameters, name) for name in names(type(parameters))])


def from_vector(like: P, vector: npt.NDArray[np.float64]) -> P:
    """The parameters of their logarithms."""
    return replace(like, **{n: float(v) for n, v in zip(names(type(like)), np.exp(vector), strict=True)})
