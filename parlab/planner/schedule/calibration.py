"""Derive the compute times of a pipeline from measurements: timers, or else the time of an iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .choice import Plan, outcome
from .pipeline import Pipeline, StageTimes

BACKWARD_PER_FORWARD = {"none": 2.0, "selective": 2.0, "full": 3.0}
"""Ratio of backward to forward time by train.recompute: two products per forward product, and one for recomputation."""
WEIGHT_SHARE = 0.5
"""Share of weight gradients in the backward products without recomputation."""
_ROUNDS = 60


def stage_times(timers_s: Mapping[str, Sequence[float]], num_micro_batches: int) -> tuple[StageTimes, ...]:
    """Return the times of each rank per micro batch from the timers of a step.

    `timers_s` maps timer names to seconds per step by rank: `forward-compute`, `backward-compute` and, for zero-bubble
    schedules, `backward-weight`, which `backward-compute` does not include.
    """
    forward, backward = timers_s["forward-compute"], timers_s["backward-compute"]
    weight = timers_s.get("backward-weight", [0.0] * len(forward))
    return tuple(
        StageTimes(f / num_micro_batches, (b + w) / num_micro_batches, w / num_micro_batches)
        for f, b, w in zip(forward, backward, weight, strict=True)
    )


def split_times(both_s: float, backward_per_forward: float) -> StageTimes:
    """Split the time of a micro batch (s) into forward, backward and weight gradients.

    Raises ValueError for a ratio out of range.
    """
    if not 0 <= backward_per_forward <= 100:
        raise ValueError(
            f"backward_per_forward {backward_per_forward:g} is out of range; use 0 to 100, typically 2 or 3"
        )
    forward = both_s / (1 + backward_per_forward)
    # Recomputation takes one forward pass; half of the remaining backward pass computes weight gradients.
    recomputed = forward if backward_per_forward >= 3 else 0.0
    return StageTimes(forward, both_s - forward, WEIGHT_SHARE * (both_s - forward - recomputed))


def calibrate(iteration_s: float, plan: Plan, pipeline: Pipeline, *, backward_per_forward: float) -> StageTimes:
    """Return times of equal stages with which the simulated plan takes the measured `iteration_s`.

    Raises ValueError if the transfers alone take longer than `iteration_s`.
    """

    def excess(both_s: float) -> float:
        stages = (split_times(both_s, backward_per_forward),) * pipeline.num_ranks
        return outcome(plan, replace(pipeline, stages=stages)).simulation.iteration_s - iteration_s

    least = excess(0.0)
    if not least < 0:
        raise ValueError(
            f"iteration_s {iteration_s:g} is less than the transfers take on this network, {least + iteration_s:.3g} s;"
            " check the measured time, the message sizes and the network of the measurement"
        )
    # The iteration is an upper bound of the computation of a rank.
    both_s = _root(excess, 0.0, least, iteration_s / pipeline.num_micro_batches, 1e-9 * iteration_s)
    return split_times(both_s, backward_per_forward)


def _root(excess: Callable[[float], float], low: float, at_low: float, high: float, tolerance: float) -> float:
    """Return the root of an increasing, piecewise linear function by the method of false position.

    If one end of the interval stays the same twice in a row, its function value is halved (Illinois variant), so that
    both ends converge.
    """
    at_high, middle, stayed = excess(high), high, 0
    for _ in range(_ROUNDS):
        if at_high - at_low <= tolerance:
            break
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        at_middle = excess(middle)
        if abs(at_middle) <= tolerance:
            break
        if at_middle < 0:
            low, at_low = middle, at_middle
            at_high = at_high / 2 if stayed < 0 else at_high
            stayed = -1
        else:
            high, at_high = middle, at_middle
            at_low = at_low / 2 if stayed > 0 else at_low
            stayed = 1
    return middle
