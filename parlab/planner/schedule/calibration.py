"""Compute times of a pipeline from what was measured: timers where there are any, else the time of an iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .choice import Plan, outcome
from .pipeline import Pipeline, StageTimes

BACKWARD_PER_FORWARD = {"none": 2.0, "selective": 2.0, "full": 3.0}
"""Backward over forward by train.recompute: two products for each of the forward pass, one more to compute it again."""
WEIGHT_SHARE = 0.5
"""Of the backward products without recompute, those that are gradients of the weights."""
_ROUNDS = 60


def stage_times(timers_s: Mapping[str, Sequence[float]], num_micro_batches: int) -> tuple[StageTimes, ...]:
    """Divide the timers of a step by its micro batches, rank by rank.

    `timers_s` holds seconds per step by rank of `forward-compute`, `backward-compute` and, for zero-bubble schedules,
    `backward-weight`, which is apart from `backward-compute`.
    """
    forward, backward = timers_s["forward-compute"], timers_s["backward-compute"]
    weight = timers_s.get("backward-weight", [0.0] * len(forward))
    return tuple(
        StageTimes(f / num_micro_batches, (b + w) / num_micro_batches, w / num_micro_batches)
        for f, b, w in zip(forward, backward, weight, strict=True)
    )


def split_times(both_s: float, backward_per_forward: float) -> StageTimes:
    """Split the time of a micro batch into its passes."""
    if not 0 <= backward_per_forward <= 100:
        raise ValueError(f"backward_per_forward {backward_per_forward:g} makes no sense; use 0 to 100, such as 2 or 3")
    forward = both_s / (1 + backward_per_forward)
    # What is computed again is one forward pass; of the rest, half are gradients of the weights.
    again = forward if backward_per_forward >= 3 else 0.0
    return StageTimes(forward, both_s - forward, WEIGHT_SHARE * (both_s - forward - again))


def calibrate(iteration_s: float, plan: Plan, pipeline: Pipeline, *, backward_per_forward: float) -> StageTimes:
    """Find the times of equal stages with which a plan takes a measured iteration on a pipeline's links.

    Raises ValueError where its transfers alone take longer than what was measured.
    """

    def excess(both_s: float) -> float:
        stages = (split_times(both_s, backward_per_forward),) * pipeline.num_ranks
        return outcome(plan, replace(pipeline, stages=stages)).simulation.iteration_s - iteration_s

    least = excess(0.0)
    if not least < 0:
        raise ValueError(
            f"iteration_s {iteration_s:g} is less than the transfers of this network take, {least + iteration_s:.3g} s;"
            " check the measured time, the sizes and the network that it was measured on"
        )
    # No rank can compute longer than the iteration takes.
    both_s = _root(excess, 0.0, least, iteration_s / pipeline.num_micro_batches, 1e-9 * iteration_s)
    return split_times(both_s, backward_per_forward)


def _root(excess: Callable[[float], float], low: float, at_low: float, high: float, tolerance: float) -> float:
    """Find where an increasing function made of straight pieces is 0: false position, which knows straight lines.

    An end that stays twice in a row counts half (the Illinois rule), so that no end stays for ever.
    """
    at_high, middle, stayed = excess(high), high, 0
    for _ in range(_ROUNDS):
        if at_high - at_low <= tolerance:
            break
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        here = excess(middle)
        if abs(here) <= tolerance:
            break
        if here < 0:
            low, at_low = middle, here
            at_high = at_high / 2 if stayed < 0 else at_high
            stayed = -1
        else:
            high, at_high = middle, here
            at_low = at_low / 2 if stayed > 0 else at_low
            stayed = 1
    return middle
