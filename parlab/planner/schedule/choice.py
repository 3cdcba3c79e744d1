"""Which schedule suits a network: the warm-up slope of 1F1B, and what it costs to hold more micro batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from runners.schedules import schedule

from .bound import Bound, lower_bound
from .pipeline import Pipeline
from .simulation import Simulation, simulate

Wire = Literal["same", "bf16", "fp16", "int8"]
WIRE_BYTES: dict[Wire, int] = {"bf16": 2, "fp16": 2, "int8": 1}
"""Bytes of a number on the wire; `same` is that of the arithmetic."""
TOLERANCE = 0.01
"""A steeper slope must be faster by more than this to be worth the memory."""


class Plan(NamedTuple):
    """A schedule with its options, as a configuration names them."""

    name: str = "1f1b"
    warmup_slope: int = 1
    virtual_stages: int = 1

    @property
    def title(self) -> str:
        if self.name == "1f1b" and self.warmup_slope > 1:
            return f"1f1b slope {self.warmup_slope}"
        return f"{self.name} of {self.virtual_stages} chunks" if self.virtual_stages > 1 else self.name


class Outcome(NamedTuple):
    """What a plan gives on a pipeline."""

    plan: Plan
    wire: Wire
    simulation: Simulation
    bound: Bound

    @property
    def gap_to_bound(self) -> float:
        """By how much the iteration is longer than the lower bound: 0.02 is 2 %."""
        return self.simulation.iteration_s / self.bound.seconds - 1 if self.bound.seconds else 0.0

    @property
    def held(self) -> int:
        """Micro batches that the rank with the most of them holds at a time."""
        return max(self.simulation.held)


class Choice(NamedTuple):
    """A schedule for a network, with all that were compared."""

    best: Outcome
    compared: list[Outcome]
    rule_slope: int
    """1 + 2c/t, rounded up: from where on a round trip is hidden, were links only slow and never busy."""


def outcome(plan: Plan, pipeline: Pipeline, wire: Wire = "same") -> Outcome:
    """Simulate one plan; raises ValueError for sizes that the schedule does not have."""
    operations = schedule(
        plan.name,
        pipeline.num_ranks,
        pipeline.num_micro_batches,
        warmup_slope=plan.warmup_slope,
        virtual_stages=plan.virtual_stages,
    )
    chunks = plan.virtual_stages
    found = simulate(operations, pipeline, num_chunks=chunks)
    return Outcome(plan, wire, found, lower_bound(pipeline, num_chunks=chunks, is_split=plan.name == "zb-h1"))


def rule_slope(pipeline: Pipeline) -> int:
    """Return the smallest slope k >= 1 + 2c/t, c the longest hop between neighbours and t the slowest micro batch."""
    ranks = pipeline.num_ranks
    ways = [pipeline.forward_hop_s(i) + pipeline.backward_hop_s(i + 1) for i in range(ranks - 1)]
    slowest = max(times.both_s for times in pipeline.stages)
    if not ways or not max(ways):
        return 1
    if not slowest:
        return max_slope(pipeline)
    return min(math.ceil(1 + max(ways) / slowest - 1e-9), max_slope(pipeline))


def max_slope(pipeline: Pipeline) -> int:
    """Return the slope with which all ranks but the last warm up with all micro batches; a steeper one changes nothing.

    That is m - 1, which is the rank before the last one's; those before it are there sooner.
    """
    return max(1, pipeline.num_micro_batches - 1)


def on_wire(pipeline: Pipeline, wire: Wire, element_bytes: int) -> Pipeline:
    """Let messages of numbers of `element_bytes` travel in another precision."""
    factor = WIRE_BYTES.get(wire, element_bytes) / element_bytes
    return replace(
        pipeline, forward_bytes=factor * pipeline.forward_bytes, backward_bytes=factor * pipeline.backward_bytes
    )


def best_schedule(
    pipeline: Pipeline,
    *,
    wires: Sequence[Wire] = ("same",),
    element_bytes: int = 4,
    max_held: int | None = None,
) -> Choice:
    """Pick the warm-up slope of 1F1B, and of several wire precisions the best, by simulating each of them.

    The gentlest slope within TOLERANCE of the fastest wins: each step of slope holds p - 1 more micro batches on rank
    0. `max_held` limits these; slope 1 is always allowed. Among wires the first one that is within TOLERANCE of the
    fastest wins, so name the most exact first.
    """
    compared = [found for wire in wires for found in _slopes(on_wire(pipeline, wire, element_bytes), wire, max_held)]
    fastest = min(found.simulation.iteration_s for found in compared)
    best = next(found for found in compared if found.simulation.iteration_s <= (1 + TOLERANCE) * fastest)
    return Choice(best, compared, rule_slope(on_wire(pipeline, best.wire, element_bytes)))


def _slopes(pipeline: Pipeline, wire: Wire, max_held: int | None) -> list[Outcome]:
    """Simulate slopes from 1 to the steepest one, in growing steps: small ones while they gain, then doubling ones.

    The iteration time is not smooth in the slope: with very long ways it may stay the same over many slopes and drop
    at the last one, where every rank warms up with all its micro batches. So the steepest slope is always simulated,
    unless the lower bound is reached before.
    """
    found: list[Outcome] = []
    slope, most, fastest, without_gain = 1, max_slope(pipeline), math.inf, 0
    while True:
        one = outcome(Plan("1f1b", slope), pipeline, wire)
        if found and max_held is not None and one.held > max_held:
            break
        found.append(one)
        has_gained = one.simulation.iteration_s < 0.999 * fastest
        fastest = min(fastest, one.simulation.iteration_s)
        without_gain = 0 if has_gained else without_gain + 1
        if slope == most or (without_gain >= 4 and one.gap_to_bound <= TOLERANCE):
            break
        slope = min(most, slope + max(1, slope // 8 if without_gain < 4 else slope))
    return found
