"""Bus bandwidth of the exchange of gradients from its timers, beside the rate of the links."""

from __future__ import annotations

from parlab.advice.observations import Reached
from parlab.planner import Cluster, Job
from parlab.planner.prediction.timing import rank_parameters

from .waterfall import Waterfall

LARGE_BYTES = 1 << 20
"""Smaller exchanges are bound by latency."""


def exchanged_bytes(job: Job) -> float | None:
    """Return the bytes that each rank sends to exchange the gradients of a step; None if no timer separates it.

    A ring all-reduce, or a reduce-scatter and an all-gather, of n ranks sends 2 (n - 1) / n of the buffer (nccl-tests).
    ZeRO-3 also gathers weights inside the passes, and experts are exchanged among other ranks.
    """
    ranks = job.replicas
    if ranks < 2 or job.effective_zero == 3 or job.model.num_experts > 1:
        return None
    rounds = (1 + job.num_micro_batches) / 2 if job.effective_zero == 2 else 1.0
    return rank_parameters(job)[0] * (job.gradient_bytes or job.value_bytes) * rounds * 2 * (ranks - 1) / ranks


def rate_of(job: Job, where: Cluster, measured: float | None = None) -> float | None:
    """Return the rate of the slowest link of an exchange (bytes/s) for one rank; None if it is not known.

    `measured` is that of the links between nodes, where the run measured them. Processes on one processor exchange
    through its memory, which has no stated rate, and the usual network of a kind of node is no ceiling of this one.
    """
    if where.domains == 1:
        return None if where.device.is_cpu else where.inside.bandwidth
    if measured is None and where.is_between_assumed:
        return None
    # The tensor parallel ranks of a node exchange at the same time, each with its own replicas.
    return (measured or where.between.bandwidth) / min(job.tensor_parallel, where.gpus_per_node)


def reached_of(waterfall: Waterfall, job: Job, rate: float | None) -> Reached | None:
    """Return the bandwidth that the measured exchange of gradients reaches; None if it was not measured."""
    part = next((part for part in waterfall.parts if part.key == "data" and part.kind == "measured"), None)
    sent = exchanged_bytes(job)
    if part is None or part.ns <= 0 or sent is None or sent < LARGE_BYTES or rate is None:
        return None
    return Reached(sent / part.seconds, rate, waterfall.share("data"), "the exchange of gradients reaches")
