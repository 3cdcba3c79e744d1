"""Lower bounds of the time of an iteration over all orders of its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from .pipeline import Pipeline, StageTimes

_HALVINGS = 50


class Bound(NamedTuple):
    """A lower bound of the time of an iteration (s)."""

    seconds: float
    binds: str
    """What determines the bound: compute of a rank, outgoing link of a rank, or path of one micro batch."""


def lower_bound(pipeline: Pipeline, *, num_chunks: int = 1, is_split: bool = False) -> Bound:
    """Return the largest of three lower bounds over all orders of the same passes, with non-blocking sends.

    - Compute of a rank: the first micro batch must pass all earlier ranks, the rank computes m micro batches, and after
      its last backward pass a gradient must return through the earlier ranks. For equal stages and v = 1 this is
      m*t + (p - 1)(t + 2c).
    - Outgoing link of a rank: the same with the time that its messages, activations forward and gradients back, occupy
      the link. Between the first and the last rank this is 2*m*bytes/bandwidth plus fill and drain.
    - Path of one micro batch: to the last stage and back.

    `is_split` allows weight gradients at the end of the iteration, as in zero-bubble schedules. Without it, a schedule
    that defers them can be faster: see `bound_of_any`.
    """
    parts = _Parts(pipeline, num_chunks, is_split)
    bounds = [Bound(parts.one_micro_batch(), "the path of one micro batch")]
    for rank in range(pipeline.num_ranks):
        bounds.append(Bound(parts.compute(rank), f"compute of rank {rank}"))
        bounds.append(Bound(parts.link(rank), f"outgoing link of rank {rank}"))
    tightest = max(bounds)
    return tightest._replace(seconds=tightest.seconds + pipeline.step_s)


def bound_of_any(pipeline: Pipeline, chunk_counts: Sequence[int] = (1,)) -> Bound:
    """Return the lower bound of every schedule that divides the layers of a rank into one of these numbers of chunks.

    No order is faster, whether it keeps a backward pass whole or defers its weight gradients.
    """
    return min(lower_bound(pipeline, num_chunks=count, is_split=True) for count in chunk_counts)


def share_within(pipeline: Pipeline, measured_s: float, chunk_counts: Sequence[int] = (1,)) -> float | None:
    """Return the largest share of the compute times, at most 1, whose bound is not above a measured iteration.

    A run that was faster than the bound shows that its passes were faster. None if the messages alone take longer than
    `measured_s`, so that the links were faster than stated.
    """

    def keeps(share: float) -> bool:
        return bound_of_any(_with_share(pipeline, share), chunk_counts).seconds <= measured_s

    if keeps(1.0):
        return 1.0
    if not keeps(0.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _with_share(pipeline: Pipeline, share: float) -> Pipeline:
    """Return a pipeline whose passes and optimizer step take a share of their time."""
    return replace(
        pipeline,
        stages=tuple(StageTimes(*(share * seconds for seconds in times)) for times in pipeline.stages),
        step_s=share * pipeline.step_s,
    )


def fastest_of(alternatives: Sequence[Sequence[StageTimes]]) -> tuple[StageTimes, ...]:
    """Return for each stage the shortest forward, input gradient and weight gradient of several measurements."""
    fastest = []
    for stage in zip(*alternatives, strict=True):
        weight = min(times.weight_s for times in stage)
        of_input = min(times.backward_s - times.weight_s for times in stage)
        fastest.append(StageTimes(min(times.forward_s for times in stage), of_input + weight, weight))
    return tuple(fastest)


class _Parts:
    """Times per chunk: forward, the part of backward that other ranks wait for, and the part that can be deferred."""

    def __init__(self, pipeline: Pipeline, num_chunks: int, is_split: bool) -> None:
        self.pipeline, self.chunks = pipeline, num_chunks
        self.forward = [times.forward_s / num_chunks for times in pipeline.stages]
        self.deferred = [times.weight_s / num_chunks if is_split else 0.0 for times in pipeline.stages]
        self.backward = [
            times.backward_s / num_chunks - deferred
            for times, deferred in zip(pipeline.stages, self.deferred, strict=True)
        ]

    def fill(self, rank: int) -> float:
        """Return the earliest time at which the first micro batch reaches a rank."""
        return sum(self.forward[i] + self.pipeline.forward_hop_s(i) for i in range(rank))

    def drain(self, rank: int) -> float:
        """Return the time from the last backward pass of a rank to the end of the first stage."""
        return_path = sum(self.backward[i] + self.pipeline.backward_hop_s(i + 1) for i in range(rank))
        return return_path + self.deferred[0]

    def compute(self, rank: int) -> float:
        """Return the bound set by the computation of a rank."""
        count = self.pipeline.num_micro_batches * self.chunks
        passes = count * (self.forward[rank] + self.backward[rank])
        return self.fill(rank) + max(passes + self.drain(rank), passes + count * self.deferred[rank])

    def link(self, rank: int) -> float:
        """Return the bound set by the outgoing link of a rank; 0 for a single rank."""
        pipeline, last = self.pipeline, self.pipeline.num_ranks - 1
        if last == 0:
            return 0.0
        forwards = self.chunks if rank < last else self.chunks - 1
        backwards = self.chunks if rank else self.chunks - 1
        wire = pipeline.links[rank].wire_s
        busy = forwards * wire(pipeline.forward_bytes) + backwards * wire(pipeline.backward_bytes)
        first = self.fill(rank) + self.forward[rank] + (0.0 if forwards else self.backward[rank])
        return first + pipeline.num_micro_batches * busy + pipeline.links[rank].delay_s + self.after(rank)

    def after(self, rank: int) -> float:
        """Return the time from the arrival of the last message of a rank's link to the end of the first stage.

        This message is a gradient for the previous stage. On rank 0 it is the gradient of its second chunk, or with one
        chunk the activations.
        """
        last = self.pipeline.num_ranks - 1
        if rank:
            return self.backward[rank - 1] + self.drain(rank - 1)
        if self.chunks > 1:
            return self.backward[last] + self.drain(last)
        return self.fill(last) - self.fill(1) + self.forward[last] + self.backward[last] + self.drain(last)

    def one_micro_batch(self) -> float:
        """Return the time of one micro batch to the last stage and back."""
        pipeline, last = self.pipeline, self.pipeline.num_ranks - 1
        forward_path = self.fill(last) + self.forward[last]
        backward_path = self.backward[last] + self.drain(last) - self.deferred[0]
        wraps = self.chunks - 1 if last else 0
        ring = wraps * (pipeline.forward_hop_s(last) + pipeline.backward_hop_s(0))
        return self.chunks * (forward_path + backward_path) + ring + self.deferred[0]
