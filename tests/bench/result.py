"""Result and size of a benchmark, and time measurement."""

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple


class Unavailable(Exception):
    """What a benchmark compares with is not available on this machine; the message states why."""


class Result(NamedTuple):
    """The median of a benchmark, compared with an alternative implementation of the same work."""

    value: float
    unit: str
    against: str
    """The alternative, with its value."""
    ratio: float
    """Factor by which `value` is better than the alternative, whether higher or lower values are better."""
    repeats: int

    @classmethod
    def comparison(cls, ratio: float, against: str, repeats: int) -> "Result":
        """Return the result of a comparison with another program: its value is the ratio."""
        return cls(ratio, "x", against, ratio, repeats)


class Scale(NamedTuple):
    """Size of a benchmark: full, or just enough to check that it runs."""

    is_quick: bool

    def of(self, count: int) -> int:
        """Return `count`, or in quick mode a hundredth of it."""
        return max(1, count // 100) if self.is_quick else count

    def repeats(self, count: int) -> int:
        """Return `count`, or in quick mode 1."""
        return 1 if self.is_quick else count


def median_s(work: Callable[[], object], repeats: int) -> float:
    """Run `work` several times; return the median time in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)
