"""Building blocks of rules: numbers with the precision of their printed digits, and contradictions between them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from parlab.formats.schema import Place

_DIGITS = re.compile(r"[+-]?(\d[\d,]*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?|[+-]?\.(\d+)")

# Factors by which numbers differ after a typical mistake, and the mistake.
_FACTORS = (
    (10.0, "a missing or extra digit"),
    (60.0, "minutes instead of seconds"),
    (1e3, "a wrong unit prefix: milli, kilo, or tera instead of peta"),
    (1e6, "a wrong unit prefix: micro or mega"),
)
_NEAR = 0.05
"""A factor is recognised within 5 %: less than the distance between any two of them, more than the usual noise."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A number and the largest error that rounding to its printed digits causes."""

    value: float
    slack: float = 0.0

    def times(self, other: Amount) -> Amount:
        slack = abs(self.value) * other.slack + abs(other.value) * self.slack + self.slack * other.slack
        return Amount(self.value * other.value, slack)

    def over(self, other: Amount) -> Amount:
        """Divide by another amount, which must not be 0."""
        value = self.value / other.value
        return Amount(value, self.slack / abs(other.value) + abs(value) * other.slack / abs(other.value))

    def scaled(self, factor: float) -> Amount:
        return Amount(self.value * factor, self.slack * abs(factor))


def printed(text: str) -> Amount | None:
    """Parse the first number of a text with half a unit of its last digit as slack; None without a finite number.

    `7.25 ms` is 7.25 +- 0.005, `137` is 137 +- 0.5, `1.20e3` is 1200 +- 5.
    """
    match = _DIGITS.search(text[:200])
    if match is None:
        return None
    try:
        value = float(match[0].replace(",", ""))
        digits = len(match[2] or match[4] or "")
        slack = 0.5 * 10.0 ** (int(match[3] or 0) - digits)
    except (ValueError, OverflowError):
        return None
    return Amount(value, slack) if math.isfinite(value) else None


def agree(first: Amount, second: Amount, tolerance: float = 0.0) -> bool:
    """Return whether two amounts are equal within their printed digits and `tolerance` of the larger one."""
    allowed = first.slack + second.slack + tolerance * max(abs(first.value), abs(second.value))
    # A few units in the last place, because floating-point sums and products are rounded.
    return abs(first.value - second.value) <= allowed + 1e-9 * max(abs(first.value), abs(second.value))


def ratio_of(value: float, other: float) -> float:
    """Return the larger number divided by the smaller; inf if one is 0 or infinite, or if their signs differ."""
    if not 0 < value * other < math.inf:
        return math.inf
    return max(abs(value / other), abs(other / value))


class Counts(NamedTuple):
    """Counts by which a throughput may have been multiplied by mistake."""

    accumulation: int | None = None
    gpus: int | None = None
    data_parallel: int | None = None


def looks_like(ratio: float, counts: Counts | None = None, near: float = _NEAR) -> str:
    """Return a clause that names the mistake which a factor (within `near`) suggests; "" if there is none."""
    if not math.isfinite(ratio):
        return ""
    counts = counts or Counts()
    candidates: list[tuple[float | None, str]] = [
        (counts.accumulation, f"that the {counts.accumulation} accumulation steps are omitted or counted twice"),
        (counts.gpus, f"that one of the {counts.gpus} GPUs is taken for all of them, or the reverse"),
        (counts.data_parallel, f"that one of the {counts.data_parallel} data parallel ranks is taken for all of them"),
        (8.0, "bits instead of bytes, or one GPU instead of a node of 8"),
        *_FACTORS,
    ]
    for factor, mistake in candidates:
        if factor and factor >= 2 and abs(ratio / factor - 1) <= near:
            return f"; the factor of {shown(factor)} suggests {mistake}"
    return ""


def shown(value: float) -> str:
    """Format a number for a message: integers in full with thousands separators, others with 5 digits."""
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.5g}"


def computed(value: float) -> str:
    """Format a number that nobody printed for a message: three digits, integers of more in full."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.3g}"


def times(factor: float) -> str:
    """Format a factor for a message: `9.71 times`."""
    return f"{factor:.3g} times"


def percent(share: float) -> str:
    """Format a fraction for a message: `42 %`."""
    return f"{share * 100:.3g} %"


class Contradiction(NamedTuple):
    """The result of a rule without its id; `numbers` are the compared numbers."""

    message: str
    numbers: Mapping[str, float]
    where: Place = Place()
    lines: tuple[int, ...] = ()

    def at(self, *lines: int | None, **where: Any) -> Contradiction:
        """Add the place (fields of schema.Place) and the lines of the file that state the numbers."""
        return self._replace(where=Place(**where), lines=tuple(sorted({line for line in lines if line})))


class RunFacts(NamedTuple):
    """What is stored of one run, as plain data; unknown parts are empty."""

    number: int
    state: str
    config: Mapping[str, Any]
    """The resolved RunConfig: {"model": {...}, "train": {...}, "parallel": {...}, "cluster": {...}, ...}.

    For a published run only the published fields: a default would be compared as if it had been stated."""
    summary: Mapping[str, Any]
    """A run's summary (docs/understand/architecture.md)."""
    arguments: Mapping[str, Any] = {}
    """Arguments of the launch under the normal names of schema.Launch; they override the configuration."""
    point: Mapping[str, Any] = {}
    """Axes of the sweep: dotted field -> value."""
    device: str | None = None
    """Name of the GPU as reported by the driver."""
    has_product_layout: bool = True
    """The number of ranks is TP x PP x DP; False for engines with another layout."""
    repeats: tuple[float, ...] = ()
    """Samples/s of each repeat, if the summary has their mean."""
