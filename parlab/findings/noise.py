"""The noise of repeats: how much runs of the same settings vary, and which differences that explains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95 % quantiles of Student's distribution for 1 to 30 degrees of freedom."""


def student_t(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's distribution."""
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.45 / freedom


class Noise(NamedTuple):
    """How much the repeats of a point vary, pooled over points."""

    deviation: float
    """Standard deviation of one run, as a share of the mean."""
    freedom: int
    """Degrees of freedom: repeats beyond the first of each point."""

    def limit(self, first: float = 1, second: float = 1) -> float:
        """Return the relative difference of two means of so many repeats that noise alone exceeds once in 20 times."""
        return student_t(self.freedom) * self.deviation * math.sqrt(1 / first + 1 / second)


def noise(groups: Iterable[Sequence[float]]) -> Noise | None:
    """Pool the relative variance of groups of repeats; None if no group has two values."""
    squares, freedom = 0.0, 0
    for values in groups:
        mean = fmean(values) if len(values) > 1 else 0.0
        if mean:
            squares += sum((value / mean - 1) ** 2 for value in values)
            freedom += len(values) - 1
    return Noise(math.sqrt(squares / freedom), freedom) if freedom else None


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    mean = fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def is_within(value: float, other: float, noisy: Noise | None, first: int = 1, second: int = 1) -> bool:
    """Whether two means differ by less than the noise of their repeats."""
    return noisy is not None and bool(other) and abs(value / other - 1) <= noisy.limit(first, second)
