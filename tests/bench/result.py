"""What a benchmark gives, and how it is timed."""

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple


class Result(NamedTuple):
    """A median, and the same work done the other way in the same process."""

    value: float
    unit: str
    against: str
    """The other way, with its own figure."""
    ratio: float
    """How many times better than the other way, whether more or less of the unit is better."""
    repeats: int


class Scale(NamedTuple):
    """How much a benchmark does: all of it, or just enough to show that it runs."""

    is_quick: bool

    def of(self, count: int) -> int:
        """Take a hundredth of a size in quick mode."""
        return max(1, count // 100) if self.is_quick else count

    def repeats(self, count: int) -> int:
        """Do it once in quick mode."""
        return 1 if self.is_quick else count


def median_s(work: Callable[[], object], repeats: int) -> float:
    """Time a piece of work several times; returns the median in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)
