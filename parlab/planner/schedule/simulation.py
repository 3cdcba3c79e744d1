"""Discrete-event simulation of a pipeline schedule: passes on ranks, messages on links.

Every rank executes its operations in order; each waits for its input and then takes its time. Whatever a rank sends
leaves over one link in the order of its operations: a message keeps the link busy for bytes / bandwidth and arrives a
delay later. No queue of events in time is needed: the order on a link is that of one rank's operations, so ranks can
be advanced in any order, as far as their inputs are known.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from runners.schedules import Operation, Schedule, micro_batches_in_flight

from .pipeline import Pipeline, check_passes

Kind = Literal["F", "B", "I", "W"]


class Pass(NamedTuple):
    """One operation as it was executed, in seconds since the iteration began."""

    kind: Kind
    micro_batch: int
    chunk: int
    begin_s: float
    end_s: float


class Transfer(NamedTuple):
    """One message: from begin_s to left_s the sender's link carries it, at arrival_s its receiver has it."""

    kind: Literal["activations", "gradients"]
    micro_batch: int
    source: int
    target: int
    begin_s: float
    left_s: float
    arrival_s: float


@dataclass(frozen=True)
class Simulation:
    """One simulated iteration."""

    iteration_s: float
    passes: list[list[Pass]]
    """By rank, in the order of execution."""
    transfers: list[list[Transfer]]
    """By the rank that sends, in the order on its link."""
    held: list[int]
    """By rank: micro batches whose activations it keeps at a time, those of each chunk counted apart."""
    step_s: float = 0.0
    """What every rank does once at the end of the iteration."""

    @property
    def busy_s(self) -> list[float]:
        """Seconds that each rank has something to do."""
        return [self.step_s + sum(one.end_s - one.begin_s for one in passes) for passes in self.passes]

    @property
    def bubble_fractions(self) -> list[float]:
        """Share of the iteration in which each rank waits."""
        if not self.iteration_s:
            return [0.0 for _ in self.passes]
        return [1 - busy / self.iteration_s for busy in self.busy_s]

    @property
    def bubble_fraction(self) -> float:
        """Mean share over the ranks."""
        return sum(self.bubble_fractions) / len(self.passes)


def simulate(plan: Schedule, pipeline: Pipeline, *, num_chunks: int = 1) -> Simulation:
    """Execute the operation lists of `runners.schedules` with a pipeline's times and links.

    `num_chunks` is how many chunks each rank has; one takes that part of its rank's time. Raises ValueError where plan
    and pipeline do not fit, and where ranks would wait for each other for ever.
    """
    if len(plan) != pipeline.num_ranks:
        raise ValueError(f"the plan has {len(plan)} ranks, the pipeline {pipeline.num_ranks} stages; use as many")
    check_passes(len(operations) for operations in plan)
    return _Execution(plan, pipeline, num_chunks).run()


class _Message(NamedTuple):
    """Waits in the queue of a link; `key` is what its receiver looks for."""

    key: tuple[bool, int, int]
    """(are gradients, micro batch, stage that takes it)."""
    ready_s: float
    target: int


class _Execution:
    """The state of a simulation in between."""

    def __init__(self, plan: Schedule, pipeline: Pipeline, num_chunks: int) -> None:
        ranks = pipeline.num_ranks
        self.plan, self.pipeline, self.ranks, self.last_stage = plan, pipeline, ranks, ranks * num_chunks - 1
        self.durations = [
            {
                "F": times.forward_s / num_chunks,
                "B": times.backward_s / num_chunks,
                "I": (times.backward_s - times.weight_s) / num_chunks,
                "W": times.weight_s / num_chunks,
            }
            for times in pipeline.stages
        ]
        self.wire_s = [
            (link.wire_s(pipeline.forward_bytes), link.wire_s(pipeline.backward_bytes)) for link in pipeline.links
        ]
        self.clock = [0.0] * ranks
        self.next = [0] * ranks
        self.link_free = [0.0] * ranks
        self.queues: list[deque[_Message]] = [deque() for _ in range(ranks)]
        self.asked: dict[tuple[bool, int, int], float] = {}
        """Only where receives are not posted ahead: since when a rank waits for a message."""
        self.arrivals: dict[tuple[bool, int, int], float] = {}
        self.passes: list[list[Pass]] = [[] for _ in range(ranks)]
        self.transfers: list[list[Transfer]] = [[] for _ in range(ranks)]

    def run(self) -> Simulation:
        """Advance the ranks whose inputs are there until all are through."""
        moved = True
        while moved:
            moved = False
            for rank in range(self.ranks):
                moved |= self.advance(rank)
        waiting = [rank for rank in range(self.ranks) if self.next[rank] < len(self.plan[rank])]
        if waiting:
            at = ", ".join(_where(rank, self.plan[rank][self.next[rank]]) for rank in waiting)
            raise ValueError(
                f"ranks wait for each other for ever: {at}; post receives ahead, or send beside the computing thread"
            )
        return Simulation(
            max(self.clock) + self.pipeline.step_s,
            self.passes,
            self.transfers,
            [micro_batches_in_flight(operations) for operations in self.plan],
            self.pipeline.step_s,
        )

    def advance(self, rank: int) -> bool:
        """Execute what a rank can; tell whether anything happened."""
        operations, moved = self.plan[rank], False
        while self.next[rank] < len(operations):
            if self.pipeline.sends_block and self.queues[rank]:
                break
            operation = operations[self.next[rank]]
            ready = self.input_ready(rank, operation)
            if ready is None:
                break
            begin = max(self.clock[rank], ready)
            end = begin + self.durations[rank][operation.kind]
            self.passes[rank].append(Pass(operation.kind, operation.micro_batch, operation.chunk, begin, end))
            self.clock[rank] = end
            self.next[rank] += 1
            moved = True
            self.hand_over(rank, operation, end)
        return moved

    def input_ready(self, rank: int, operation: Operation) -> float | None:
        """Tell when the input of an operation is there: 0 where it needs none, None while nobody knows."""
        kind, micro_batch, chunk = operation
        stage = chunk * self.ranks + rank
        if kind == "W" or stage == (0 if kind == "F" else self.last_stage):
            return 0.0
        key = (kind != "F", micro_batch, stage)
        found = self.arrivals.get(key)
        if found is None and not self.pipeline.receives_ahead:
            self.asked.setdefault(key, self.clock[rank])
            source = (rank - 1 if kind == "F" else rank + 1) % self.ranks
            self.send(source)
            found = self.arrivals.get(key)
        return found

    def hand_over(self, rank: int, operation: Operation, end: float) -> None:
        """Give the output of an operation to the link, or to the same rank where its next stage is there."""
        kind, micro_batch, chunk = operation
        stage = chunk * self.ranks + rank
        if kind == "W" or stage == (self.last_stage if kind == "F" else 0):
            return
        target = (rank + 1 if kind == "F" else rank - 1) % self.ranks
        key = (kind != "F", micro_batch, stage + 1 if kind == "F" else stage - 1)
        if target == rank:
            self.arrivals[key] = end
            return
        self.queues[rank].append(_Message(key, end, target))
        self.send(rank)

    def send(self, rank: int) -> None:
        """Put on the link what may leave now, in order."""
        queue, delay_s = self.queues[rank], self.pipeline.links[rank].delay_s
        while queue:
            key, ready, target = queue[0]
            begin = max(ready, self.link_free[rank])
            if not self.pipeline.receives_ahead:
                asked = self.asked.get(key)
                if asked is None:
                    break
                begin = max(begin, asked)
            queue.popleft()
            is_gradient, micro_batch, _ = key
            left = begin + self.wire_s[rank][is_gradient]
            self.link_free[rank] = left
            self.arrivals[key] = left + delay_s
            kind: Literal["activations", "gradients"] = "gradients" if is_gradient else "activations"
            self.transfers[rank].append(Transfer(kind, micro_batch, rank, target, begin, left, left + delay_s))
            if self.pipeline.sends_block:
                self.clock[rank] = max(self.clock[rank], left)


def _where(rank: int, operation: Operation) -> str:
    return f"rank {rank} at {operation.kind} of micro batch {operation.micro_batch}"
