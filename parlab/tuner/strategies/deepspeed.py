"""Order and stopping rules of DeepSpeed's autotuner (deepspeed/autotuning/autotuner.py, 0.19), on a given space.

As there: a first profile run; the ZeRO stages one after the other, each only while it allows a micro batch at least as
large as the stage before; in each stage the smallest and the largest micro batch that run, from the estimate at 105,
100 and 95 % and then by bisection until the gain falls below 5 %; then up to three micro batches of the upper half;
then steps down from the largest.

Corrected: the metric is the time of the whole step, not of a part; a failed setting has no metric, instead of zero;
no setting is measured twice; the best setting is the best measurement, even if its micro batch is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Generator

from parlab.tuner.space import Candidate, Fit, Launch, Observation, Space

from .steps import Steps

PLATEAU = 0.05
"""Relative gain below which the autotuner does not prefer a larger micro batch."""
_LISTED = 3

_Trials = Generator[Launch, Observation, float | None]
"""A measurement within the strategy; returns its value, None if it did not run."""


class _Stage:
    """The settings of one tuning space by micro batch and accumulation, and their measurements."""

    def __init__(self, space: Space, name: str, done: dict[str, float | None]) -> None:
        self.space, self.done = space, done
        self.settings = {(c.micro_batch_size, c.accumulation): c for c in space.in_tuning_space(name)}
        self.sizes = sorted({size for size, _ in self.settings})
        self.accumulation = min(accumulation for _, accumulation in self.settings)

    def measure(self, size: int, accumulation: int | None = None) -> _Trials:
        candidate = self.settings.get((size, self.accumulation if accumulation is None else accumulation))
        if candidate is None:
            return None
        if candidate.key not in self.done:
            observation = yield Launch(candidate.key, f"{candidate.tuning_space}: micro batch {size}")
            self.done[candidate.key] = self.space.score(observation)
        return self.done[candidate.key]

    @property
    def largest_calculated(self) -> int:
        """Largest micro batch that fits by the estimate; 0 if none does."""
        return max((size for size in self.sizes if self._fits(size)), default=0)

    def _fits(self, size: int) -> bool:
        candidate = self.settings.get((size, self.accumulation))
        return candidate is not None and candidate.fit == Fit.YES

    def nearest(self, size: float) -> int:
        """Return the micro batch of the space closest to a size that the autotuner would try."""
        return min(self.sizes, key=lambda other: (abs(other - size), other))

    def best(self) -> tuple[int, float]:
        """Return the micro batch and value of the best setting so far; (0, 0) if none ran."""
        ran = [
            (self.done.get(c.key) or 0.0, c.micro_batch_size) for c in self.settings.values() if self.done.get(c.key)
        ]
        value, size = max(ran, default=(0.0, 0))
        return size, value


def deepspeed(space: Space) -> Steps:
    """Search a space in the order of DeepSpeed's autotuner."""
    done: dict[str, float | None] = {}
    profile = _least_memory(space)
    observation = yield Launch(profile.key, "profile of the model")
    done[profile.key] = space.score(observation)
    largest_before = 0
    for name in space.tuning_spaces:
        stage = _Stage(space, name, done)
        if stage.largest_calculated == 0 or stage.largest_calculated < largest_before:
            continue
        smallest, largest = yield from _range(stage, largest_before)
        if largest < max(largest_before, 1):
            continue
        yield from _upper_half(stage, smallest, largest)
        yield from _steps_down(stage, smallest, largest)
        if stage.best()[0]:
            largest_before = max(largest_before, largest)
    return "every tuning space was searched" if any(done.values()) else "no launch finished; see their logs"


def _least_memory(space: Space) -> Candidate:
    return min(
        space.candidates,
        key=lambda c: (c.predicted_bytes or 0.0, c.micro_batch_size, -space.tuning_spaces.index(c.tuning_space)),
    )


def _range(stage: _Stage, smallest: int) -> Generator[Launch, Observation, tuple[int, int]]:
    """Return the smallest and largest micro batch that run; (0, 0) if the smallest does not."""
    smallest = stage.nearest(smallest) if smallest else stage.sizes[0]
    value = yield from stage.measure(smallest)
    if value is None:
        return 0, 0
    calculated = stage.largest_calculated
    for target in (math.ceil(1.05 * calculated), calculated, int(0.95 * calculated)):
        if target > stage.sizes[-1]:
            continue
        size = stage.nearest(target)
        if (yield from stage.measure(size)) is not None:
            return smallest, size
    return smallest, (yield from _bisect(stage, smallest, value))


def _bisect(stage: _Stage, smallest: int, value: float) -> Generator[Launch, Observation, int]:
    low, high = stage.sizes.index(smallest), stage.sizes.index(stage.nearest(stage.largest_calculated)) - 1
    while low < high:
        middle = (low + high + 1) // 2
        measured = yield from stage.measure(stage.sizes[middle])
        if measured is None:
            high = middle - 1
            continue
        low = middle
        if measured / value - 1 < PLATEAU:
            break
        value = measured
    return stage.sizes[low]


def _upper_half(stage: _Stage, smallest: int, largest: int) -> Generator[Launch, Observation, None]:
    """Measure micro batches from half of the largest, with the accumulation that keeps the samples of a step."""
    first = max(smallest, largest // 2)
    stride = max((largest - first) // _LISTED, 1)
    samples = largest * stage.accumulation
    listed = {stage.nearest(size) for size in range(first, largest, stride) if samples // size != stage.accumulation}
    for size in sorted(listed):
        yield from stage.measure(size, samples // size)


def _steps_down(stage: _Stage, smallest: int, largest: int) -> Generator[Launch, Observation, None]:
    """Measure smaller micro batches while they are faster, because the largest is often not the fastest."""
    below = max(smallest, largest // 2)
    stride = max((largest - below) // _LISTED, 1)
    value = yield from stage.measure(largest)
    for target in range(largest - stride, below, -stride):
        size = stage.nearest(target)
        measured = yield from stage.measure(size)
        if measured is None or value is None or measured < value * (1 + PLATEAU):
            break
        value = measured
