"""Discrete-event simulation of a pipeline schedule: passes on ranks, messages on links.

Every rank executes its operations in order; each operation waits for its input and then takes its duration. All
messages of a rank use its one outgoing link in the order of its operations: a message occupies the link for
bytes / bandwidth and arrives a delay later. The simulation needs no event queue ordered by time: the order on a link
is the order of one rank's operations, so ranks can be advanced in any order as soon as their inputs are determined.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from runners.schedules import Operation, Schedule, micro_batches_in_flight

from .pipeline import Pipeline, check_passes

Kind = Literal["F", "B", "I", "W"]


class Pass(NamedTuple):
    """One executed operation, with times in seconds since the start of the iteration."""

    kind: Kind
    micro_batch: int
    chunk: int
    begin_s: float
    end_s: float


class Transfer(NamedTuple):
    """One message: it occupies the sender's link from begin_s to left_s and arrives at arrival_s."""

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
    """Passes by rank, in the order of execution."""
    transfers: list[list[Transfer]]
    """Messages by sending rank, in the order on its link."""
    held: list[int]
    """Largest number of micro batches in flight by rank; each chunk counts separately."""
    step_s: float = 0.0
    """Work of every rank once at the end of the iteration."""

    @property
    def busy_s(self) -> list[float]:
        """Busy time of each rank (s)."""
        return [self.step_s + sum(step.end_s - step.begin_s for step in passes) for passes in self.passes]

    @property
    def bubble_fractions(self) -> list[float]:
        """Share of the iteration in which each rank is idle, 0 to 1."""
        if not self.iteration_s:
            return [0.0 for _ in self.passes]
        return [1 - busy / self.iteration_s for busy in self.busy_s]

    @property
    def bubble_fraction(self) -> float:
        """Mean of `bubble_fractions` over the ranks."""
        return sum(self.bubble_fractions) / len(self.passes)


def simulate(plan: Schedule, pipeline: Pipeline, *, num_chunks: int = 1) -> Simulation:
    """Simulate the operation lists of `runners.schedules` with the times and links of a pipeline.

    `num_chunks` is the number of chunks per rank; each takes an equal part of the rank's time. Raises ValueError if
    plan and pipeline have different sizes, for more than MAX_PASSES passes, and for a deadlock.
    """
    if len(plan) != pipeline.num_ranks:
        raise ValueError(
            f"the plan has {len(plan)} ranks, but the pipeline has {pipeline.num_ranks} stages; use the same number"
        )
    check_passes(len(operations) for operations in plan)
    return _Execution(plan, pipeline, num_chunks).run()


class _Message(NamedTuple):
    """A message in the queue of a link."""

    key: tuple[bool, int, int]
    """(is gradient, micro batch, receiving stage)."""
    ready_s: float
    target: int


class _Execution:
    """The state of a running simulation."""

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
        self.waiting_since: dict[tuple[bool, int, int], float] = {}
        """Time since which a rank waits for a message; used only if receives are not posted ahead."""
        self.arrivals: dict[tuple[bool, int, int], float] = {}
        self.passes: list[list[Pass]] = [[] for _ in range(ranks)]
        self.transfers: list[list[Transfer]] = [[] for _ in range(ranks)]

    def run(self) -> Simulation:
        """Advance the ranks until all operations are executed. Raises ValueError for a deadlock."""
        has_advanced = True
        while has_advanced:
            has_advanced = False
            for rank in range(self.ranks):
                has_advanced |= self.advance(rank)
        waiting = [rank for rank in range(self.ranks) if self.next[rank] < len(self.plan[rank])]
        if waiting:
            positions = ", ".join(_position(rank, self.plan[rank][self.next[rank]]) for rank in waiting)
            raise ValueError(
                f"deadlock: {positions} wait for each other; post receives ahead, or use non-blocking sends"
            )
        return Simulation(
            max(self.clock) + self.pipeline.step_s,
            self.passes,
            self.transfers,
            [micro_batches_in_flight(operations) for operations in self.plan],
            self.pipeline.step_s,
        )

    def advance(self, rank: int) -> bool:
        """Execute operations of a rank until an input is missing; return whether any was executed."""
        operations, has_advanced = self.plan[rank], False
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
            has_advanced = True
            self.hand_over(rank, operation, end)
        return has_advanced

    def input_ready(self, rank: int, operation: Operation) -> float | None:
        """Return when the input of an operation is available: 0 without an input, None if not determined yet."""
        kind, micro_batch, chunk = operation
        stage = chunk * self.ranks + rank
        if kind == "W" or stage == (0 if kind == "F" else self.last_stage):
            return 0.0
        key = (kind != "F", micro_batch, stage)
        arrival_s = self.arrivals.get(key)
        if arrival_s is None and not self.pipeline.receives_ahead:
            self.waiting_since.setdefault(key, self.clock[rank])
            source = (rank - 1 if kind == "F" else rank + 1) % self.ranks
            self.send(source)
            arrival_s = self.arrivals.get(key)
        return arrival_s

    def hand_over(self, rank: int, operation: Operation, end: float) -> None:
        """Pass the output of an operation to the link, or directly to the next stage if it is on the same rank."""
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
        """Send the messages that can leave now, in order."""
        queue, delay_s = self.queues[rank], self.pipeline.links[rank].delay_s
        while queue:
            key, ready, target = queue[0]
            begin = max(ready, self.link_free[rank])
            if not self.pipeline.receives_ahead:
                waiting_since = self.waiting_since.get(key)
                if waiting_since is None:
                    break
                begin = max(begin, waiting_since)
            queue.popleft()
            is_gradient, micro_batch, _ = key
            left = begin + self.wire_s[rank][is_gradient]
            self.link_free[rank] = left
            self.arrivals[key] = left + delay_s
            kind: Literal["activations", "gradients"] = "gradients" if is_gradient else "activations"
            self.transfers[rank].append(Transfer(kind, micro_batch, rank, target, begin, left, left + delay_s))
            if self.pipeline.sends_block:
                self.clock[rank] = max(self.clock[rank], left)


def _position(rank: int, operation: Operation) -> str:
    return f"rank {rank} at {operation.kind} of micro batch {operation.micro_batch}"
