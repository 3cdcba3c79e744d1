"""Choose a schedule for a network: the warm-up slope of 1F1B against the micro batches it keeps in flight."""

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
"""Bytes per value in a message; `same` uses the precision of the computation."""
TOLERANCE = 0.01
"""A steeper slope must be faster by more than this share to justify its memory."""


class Plan(NamedTuple):
    """A schedule with its options, named as in a configuration."""

    name: str = "1f1b"
    warmup_slope: int = 1
    virtual_stages: int = 1

    @property
    def title(self) -> str:
        if self.name == "1f1b" and self.warmup_slope > 1:
            return f"1f1b slope {self.warmup_slope}"
        return f"{self.name} of {self.virtual_stages} chunks" if self.virtual_stages > 1 else self.name


class Outcome(NamedTuple):
    """The simulation and the lower bound of a plan on a pipeline."""

    plan: Plan
    wire: Wire
    simulation: Simulation
    bound: Bound

    @property
    def gap_to_bound(self) -> float:
        """Excess of the iteration over the lower bound: 0.02 is 2 %."""
        # The simulation sums the same times in another order.
        return round(self.simulation.iteration_s / self.bound.seconds - 1, 9) if self.bound.seconds else 0.0

    @property
    def held(self) -> int:
        """Largest number of micro batches in flight on any rank."""
        return max(self.simulation.held)


class Choice(NamedTuple):
    """The chosen schedule for a network, and all schedules compared."""

    best: Outcome
    compared: list[Outcome]
    rule_slope: int
    """1 + 2c/t, rounded up: the smallest slope that hides a round trip on links of unlimited bandwidth."""


def outcome(plan: Plan, pipeline: Pipeline, wire: Wire = "same") -> Outcome:
    """Simulate one plan. Raises ValueError for sizes that the schedule does not support."""
    operations = schedule(
        plan.name,
        pipeline.num_ranks,
        pipeline.num_micro_batches,
        warmup_slope=plan.warmup_slope,
        virtual_stages=plan.virtual_stages,
    )
    chunks = plan.virtual_stages
    simulation = simulate(operations, pipeline, num_chunks=chunks)
    return Outcome(plan, wire, simulation, lower_bound(pipeline, num_chunks=chunks, is_split=plan.name == "zb-h1"))


def rule_slope(pipeline: Pipeline) -> int:
    """Return the smallest slope k >= 1 + 2c/t.

    c is the longest hop between neighbours (s), t the time of a micro batch on the slowest stage (s).
    """
    ranks = pipeline.num_ranks
    round_trips = [pipeline.forward_hop_s(i) + pipeline.backward_hop_s(i + 1) for i in range(ranks - 1)]
    slowest = max(times.both_s for times in pipeline.stages)
    if not round_trips or not max(round_trips):
        return 1
    if not slowest:
        return max_slope(pipeline)
    return min(math.ceil(1 + max(round_trips) / slowest - 1e-9), max_slope(pipeline))


def max_slope(pipeline: Pipeline) -> int:
    """Return the slope at which all ranks but the last warm up with all micro batches; steeper slopes are equivalent.

    This is m - 1: the rank before the last needs that slope, earlier ranks need less.
    """
    return max(1, pipeline.num_micro_batches - 1)


def on_wire(pipeline: Pipeline, wire: Wire, element_bytes: int) -> Pipeline:
    """Return the pipeline with messages in another precision; computed values have `element_bytes` bytes."""
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
    """Choose the warm-up slope of 1F1B, and the precision of messages among `wires`, by simulation.

    The choice is the smallest slope within TOLERANCE of the fastest, since each step of the slope keeps p - 1 more
    micro batches in flight on rank 0. `max_held` limits that number; slope 1 is always allowed. The first precision
    within TOLERANCE of the fastest is chosen, so list the most exact one first.
    """
    compared = [
        candidate for wire in wires for candidate in _slopes(on_wire(pipeline, wire, element_bytes), wire, max_held)
    ]
    fastest = min(candidate.simulation.iteration_s for candidate in compared)
    best = next(candidate for candidate in compared if candidate.simulation.iteration_s <= (1 + TOLERANCE) * fastest)
    return Choice(best, compared, rule_slope(on_wire(pipeline, best.wire, element_bytes)))


def _slopes(pipeline: Pipeline, wire: Wire, max_held: int | None) -> list[Outcome]:
    """Simulate slopes from 1 to the steepest one: in small steps while they gain, then doubling the slope.

    The time of an iteration is not smooth in the slope: on links with a very long delay it can stay constant over many
    slopes and drop at the steepest one, at which every rank warms up with all its micro batches. The steepest slope is
    therefore always simulated, unless a smaller one has reached the lower bound.
    """
    outcomes: list[Outcome] = []
    slope, most, fastest, without_gain = 1, max_slope(pipeline), math.inf, 0
    while True:
        candidate = outcome(Plan("1f1b", slope), pipeline, wire)
        if outcomes and max_held is not None and candidate.held > max_held:
            break
        outcomes.append(candidate)
        is_faster = candidate.simulation.iteration_s < 0.999 * fastest
        fastest = min(fastest, candidate.simulation.iteration_s)
        without_gain = 0 if is_faster else without_gain + 1
        if slope == most or (without_gain >= 4 and candidate.gap_to_bound <= TOLERANCE):
            break
        slope = min(most, slope + max(1, slope // 8 if without_gain < 4 else slope))
    return outcomes
