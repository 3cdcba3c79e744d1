"""Result and size of a benchmark, and time measurement."""

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple


class Unavailable(Exception):
    """What a benchmark compares with is not available on this machine; the message states why."""


class Result(NamedTuple):
    """The value of a benchmark, in the unit of its row in the registry, beside an alternative for the same work."""

    value: float
    against: str
    """The alternative, with its value."""
    repeats: int
    ratio: float | None = None
    """Factor by which `value` is better than the alternative, whether higher or lower values are better; None: there is
    no alternative, and the value is compared with its target."""

    @classmethod
    def comparison(cls, ratio: float, against: str, repeats: int) -> "Result":
        """Return the result of a comparison with another program: its value is the ratio."""
        return cls(ratio, against, repeats, ratio)


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
