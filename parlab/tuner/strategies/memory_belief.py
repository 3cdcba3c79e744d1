"""What the launches of a study tell about the memory of the settings that were not launched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from parlab.tuner.space import Observation, Space

Vector = npt.NDArray[np.float64]
_COMMON = 0.9
"""Part of the deviation of the planner's memory that all settings of a study have in common: its code base."""
_OWN = (1 - _COMMON**2) ** 0.5
_GRID = np.linspace(-4, 4, 161)
MOST_FAILED = 0.08
"""Share of the launches that may be expected to run out of memory."""


class MemoryBelief:
    """The probability of each setting to fit, given which of the others ran and which ran out of memory.

    log(needed/predicted) is the sum of an error that all settings share and one of their own. The shared one has the
    distribution of the planner; each launch narrows it by Bayes' rule on a grid.
    """

    def __init__(self, space: Space) -> None:
        rooms = [candidate.room for candidate in space.candidates]
        self._spent = 0.0
        self._is_planned = np.array([room is not None for room in rooms])
        scaled = [
            0.0 if room is None else room / candidate.memory_deviation
            for room, candidate in zip(rooms, space.candidates, strict=True)
        ]
        # Settings x grid: the probability to fit at each value of the shared error.
        self._fitting = _normal_share((np.array(scaled)[:, None] - _COMMON * _GRID[None]) / _OWN)

    def chances(self, done: Mapping[int, Observation]) -> Vector:
        """Return the probability of each setting to fit; 1 for settings without a prediction."""
        weights = np.exp(-(_GRID**2) / 2)
        for index, observation in done.items():
            if self._is_planned[index] and observation.state != "failed":
                fitting = self._fitting[index]
                weights = weights * (1 - fitting if observation.state == "oom" else fitting)
        weights = weights + 1e-300
        chances: Vector = np.where(self._is_planned, self._fitting @ weights / weights.sum(), 1.0)
        return chances

    def spend(self, chance: float) -> None:
        """Count the risk of a launch that fits with a probability of `chance`."""
        self._spent += 1 - chance

    def affordable(self, open_: Sequence[int], chances: Vector, done: Mapping[int, Observation]) -> list[int]:
        """Return the open settings whose launch keeps the expected share of failed ones small.

        The risks of earlier launches (`spend`) count as failures whether they failed or not.
        Without a launch that ran, and none that is affordable, it is the setting that is most likely to fit.
        """
        failed = sum(observation.state == "oom" for observation in done.values())
        allowed = MOST_FAILED * (len(done) + 1) - max(failed, self._spent)
        affordable = [i for i in open_ if 1 - chances[i] <= max(allowed, 1 - _SURELY)]
        if affordable or not open_ or any(observation.ran for observation in done.values()):
            return affordable
        return [max(open_, key=lambda i: chances[i])]


_SURELY = 0.97
"""Probability from which on a setting may always be launched."""


def _normal_share(values: Vector) -> Vector:
    """Return the share of a standard normal distribution below each value."""
    erfc = np.frompyfunc(math.erfc, 1, 1)
    return np.asarray(0.5 * erfc(-values / math.sqrt(2)), dtype=np.float64)
