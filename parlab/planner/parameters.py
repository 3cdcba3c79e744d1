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

    matmul_efficiency: float = 0.815
    """Share of the matmul ceiling that the products of a layer reach, once their sizes are counted."""
    matmul_traffic: float = 0.934
    """Bytes that a product moves, over those of its operands and result: small products are slow."""
    memory_efficiency: float = 0.779
    """Share of the memory bandwidth that norms, softmax, dropout and the optimizer reach."""
    host_s: float = 0.00105
    """Seconds in which the processor starts the kernels of one pass through one layer."""
    inside_efficiency: float = 1.12
    """Share of the links inside a node that collectives reach; above 1 where they hide behind the compute."""
    between_efficiency: float = 0.602
    """Share of the links between nodes that collectives reach."""
    shaped_efficiency: float = 0.89
    """The same of links whose bandwidth was set or measured, not promised: TCP's share."""
    step_s: float = 0.0189
    """Seconds of every iteration that depend on nothing else: optimizer launches, logging, the loader."""
    misaligned_slowdown: float = 4.05
    """How much slower attention is where the width of a head is no multiple of 8."""
    sharded_efficiency: float = 0.247
    """Share of the links that gathering sharded weights (ZeRO-3, FSDP) reaches."""


@dataclass(frozen=True)
class MemoryParameters:
    """What memory takes beside the formulas."""

    state_factor: float = 1.11
    """Weights, gradients and optimizer state over their formula: flat copies, alignment."""
    sharding_bytes: float = 1.91
    """Bytes per parameter in which ZeRO-1 and -2 gather and reduce: buckets and flat copies."""
    activation_factor: float = 0.966
    """Activations over their formula: fragments of the allocator, workspaces."""
    logit_bytes: float = 8.36
    """Bytes per logit while the loss is computed."""
    communicator_bytes: float = 830000000.0
    """Buffers of each group of ranks that talk (tensor, pipeline, data)."""
    overhead_bytes: float = 2000000000.0
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
