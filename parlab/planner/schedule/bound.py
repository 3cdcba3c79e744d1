"""What no order of passes can beat: lower bounds of an iteration, and which of them binds."""

from __future__ import annotations

from typing import NamedTuple

from .pipeline import Pipeline


class Bound(NamedTuple):
    """A lower bound of an iteration's seconds."""

    seconds: float
    binds: str
    """What cannot go faster, in words: compute of a rank, a rank's outgoing link, or the way of one micro batch."""


def lower_bound(pipeline: Pipeline, *, num_chunks: int = 1, is_split: bool = False) -> Bound:
    """Return the largest of three lower bounds, over all orders of the same passes, sends beside computing.

    Of each rank: what reaches it first must come through all ranks before it, then it has m micro batches to compute,
    and after its last backward pass a gradient must go back through these ranks. Of each outgoing link: the same with
    the time that its messages, activations forward and gradients back, keep it busy. Of one micro batch: its way to
    the last stage and back. For equal stages and v = 1 the first is m*t + (p - 1)(t + 2c), the second
    2*m*bytes/bandwidth plus fill and drain on the ranks between first and last. `is_split` lets the gradients of
    the weights come last, as zero-bubble schedules do.
    """
    parts = _Parts(pipeline, num_chunks, is_split)
    found = [Bound(parts.one_micro_batch(), "the way of one micro batch")]
    for rank in range(pipeline.num_ranks):
        found.append(Bound(parts.compute(rank), f"compute of rank {rank}"))
        found.append(Bound(parts.link(rank), f"outgoing link of rank {rank}"))
    best = max(found)
    return best._replace(seconds=best.seconds + pipeline.step_s)


class _Parts:
    """Times of single chunks: forward, backward as far as others wait for it, and what may come later."""

    def __init__(self, pipeline: Pipeline, num_chunks: int, is_split: bool) -> None:
        self.pipeline, self.chunks = pipeline, num_chunks
        self.forward = [times.forward_s / num_chunks for times in pipeline.stages]
        self.later = [times.weight_s / num_chunks if is_split else 0.0 for times in pipeline.stages]
        self.backward = [
            times.backward_s / num_chunks - later for times, later in zip(pipeline.stages, self.later, strict=True)
        ]

    def fill(self, rank: int) -> float:
        """Time until the first micro batch can reach a rank."""
        return sum(self.forward[i] + self.pipeline.forward_hop_s(i) for i in range(rank))

    def drain(self, rank: int) -> float:
        """Time from the last backward pass of a rank until the first stage is through."""
        back = sum(self.backward[i] + self.pipeline.backward_hop_s(i + 1) for i in range(rank))
        return back + self.later[0]

    def compute(self, rank: int) -> float:
        count = self.pipeline.num_micro_batches * self.chunks
        passes = count * (self.forward[rank] + self.backward[rank])
        return self.fill(rank) + max(passes + self.drain(rank), passes + count * self.later[rank])

    def link(self, rank: int) -> float:
        """Bound of a rank's outgoing link; 0 where nothing leaves."""
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
        """Time from the arrival of the last message of a rank's link until the first stage is through.

        That is a gradient for the stage before; of rank 0 it is its gradient from its second chunk, or activations.
        """
        last = self.pipeline.num_ranks - 1
        if rank:
            return self.backward[rank - 1] + self.drain(rank - 1)
        if self.chunks > 1:
            return self.backward[last] + self.drain(last)
        return self.fill(last) - self.fill(1) + self.forward[last] + self.backward[last] + self.drain(last)

    def one_micro_batch(self) -> float:
        pipeline, last = self.pipeline, self.pipeline.num_ranks - 1
        there = self.fill(last) + self.forward[last]
        back = self.backward[last] + self.drain(last) - self.later[0]
        turns = self.chunks - 1 if last else 0
        ring = turns * (pipeline.forward_hop_s(last) + pipeline.backward_hop_s(0))
        return self.chunks * (there + back) + ring + self.later[0]
