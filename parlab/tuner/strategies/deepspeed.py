"""The order and the stopping of DeepSpeed's autotuner (deepspeed/autotuning/autotuner.py, 0.19), on a given space.

Kept: a first profile run; the ZeRO stages one after the other, each only while it lets the micro batch grow at least
as far as the one before; in each the smallest and the largest micro batch that run, found from the estimate at 105, 100
and 95 % and then by bisection until the gain falls below 5 %; then up to three micro batches of the upper half; then
steps down from the largest.

Mended: the metric is the time from end to end, not part of the step; a setting that failed has no metric, instead
of zero; nothing is measured twice; the best is the best that was measured, also where its micro batch is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Generator

from parlab.tuner.space import Candidate, Fit, Launch, Observation, Space

from .steps import Steps

PLATEAU = 0.05
"""Relative gain below which the autotuner takes a larger micro batch for no better."""
_LISTED = 3

_Trials = Generator[Launch, Observation, float | None]
"""A measurement within the strategy: its value, None where it did not run."""


class _Stage:
    """The settings of one tuning space by micro batch and accumulation, and what was measured of them."""

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
        """Largest micro batch that the estimate lets in; 0 when none."""
        return max((size for size in self.sizes if self._fits(size)), default=0)

    def _fits(self, size: int) -> bool:
        candidate = self.settings.get((size, self.accumulation))
        return candidate is not None and candidate.fit == Fit.YES

    def nearest(self, size: float) -> int:
        """The micro batch of the space that is the next to a number that the autotuner would have tried."""
        return min(self.sizes, key=lambda known: (abs(known - size), known))

    def best(self) -> tuple[int, float]:
        """Micro batch and value of the best so far; (0, 0) when nothing ran."""
        ran = [
            (self.done.get(c.key) or 0.0, c.micro_batch_size) for c in self.settings.values() if self.done.get(c.key)
        ]
        value, size = max(ran, default=(0.0, 0))
        return size, value


def deepspeed(space: Space) -> Steps:
    """Try a space as DeepSpeed's autotuner would."""
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
    return "every tuning space was searched" if any(done.values()) else "nothing ran; see the logs of the launches"


def _least_memory(space: Space) -> Candidate:
    return min(
        space.candidates,
        key=lambda c: (c.predicted_bytes or 0.0, c.micro_batch_size, -space.tuning_spaces.index(c.tuning_space)),
    )


def _range(stage: _Stage, smallest: int) -> Generator[Launch, Observation, tuple[int, int]]:
    """Smallest and largest micro batch that run; (0, 0) when the smallest does not."""
    smallest = stage.nearest(smallest) if smallest else stage.sizes[0]
    value = yield from stage.measure(smallest)
    if value is None:
        return 0, 0
    calculated = stage.largest_calculated
    for wanted in (math.ceil(1.05 * calculated), calculated, int(0.95 * calculated)):
        if wanted > stage.sizes[-1]:
            continue
        size = stage.nearest(wanted)
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
    """Micro batches from half of the largest, with the accumulation that keeps the samples of a step."""
    first = max(smallest, largest // 2)
    stride = max((largest - first) // _LISTED, 1)
    samples = largest * stage.accumulation
    listed = {stage.nearest(size) for size in range(first, largest, stride) if samples // size != stage.accumulation}
    for size in sorted(listed):
        yield from stage.measure(size, samples // size)


def _steps_down(stage: _Stage, smallest: int, largest: int) -> Generator[Launch, Observation, None]:
    """The largest micro batch that runs is often not the fastest: smaller ones while they gain."""
    below = max(smallest, largest // 2)
    stride = max((largest - below) // _LISTED, 1)
    value = yield from stage.measure(largest)
    for wanted in range(largest - stride, below, -stride):
        size = stage.nearest(wanted)
        measured = yield from stage.measure(size)
        if measured is None or value is None or measured < value * (1 + PLATEAU):
            break
        value = measured
