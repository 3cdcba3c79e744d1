"""What a row of the registry says about a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import NamedTuple

from tests.bench.result import Result, Scale


class Target(NamedTuple):
    """The value that a benchmark should reach, or should not exceed."""

    value: float
    is_least: bool

    def __str__(self) -> str:
        return f"{'≥' if self.is_least else '≤'} {self.value:,.15g}"

    def is_met(self, value: float) -> bool:
        """Return whether a measured value meets the target."""
        return value >= self.value if self.is_least else value <= self.value

    def ratio(self, value: float) -> float:
        """Return the factor by which a measured value is better than the target, at most 1,000."""
        return value / self.value if self.is_least else self.value / max(value, self.value / 1000)


def at_least(value: float) -> Target:
    return Target(value, is_least=True)


def at_most(value: float) -> Target:
    return Target(value, is_least=False)


class Benchmark(NamedTuple):
    """A benchmark: what it measures, beside what, and what it should reach."""

    name: str
    function: str
    """Below `tests.bench`, as module:function; imported when it is measured, as torch and Chromium take seconds."""
    unit: str
    target: Target | None
    work: str
    against: str
    """The alternative that is measured in the same run."""
    seconds: int
    """Expected time on two quiet cores."""

    def measure(self, scale: Scale) -> Result:
        """Run the benchmark."""
        function: Callable[[Scale], Result] = resolve_name(f"tests.bench.{self.function}")
        return function(scale)

    def ratio(self, result: Result) -> float:
        """Return by which factor a result is better than the alternative, or than the target if there is none."""
        if result.ratio is not None:
            return result.ratio
        return self.target.ratio(result.value) if self.target else 1.0
