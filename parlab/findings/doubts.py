"""What rules are made of: numbers with the precision they were printed with, and doubts about them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from parlab.formats.schema import Place

_DIGITS = re.compile(r"[+-]?(\d[\d,]*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?|[+-]?\.(\d+)")

# Factors that a wrong unit or a wrong count leaves behind, and what they look like.
_FACTORS = (
    (10.0, "a digit that was lost or added"),
    (60.0, "minutes taken for seconds"),
    (1e3, "a unit: milli, kilo, or tera printed where peta was meant"),
    (1e6, "a unit: micro or mega"),
)
_NEAR = 0.05
"""A factor is recognised within 5 %: closer than any two of them lie, wider than a measurement scatters."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A number and how far the true one may be off because of the digits it was printed with."""

    value: float
    slack: float = 0.0

    def times(self, other: Amount) -> Amount:
        slack = abs(self.value) * other.slack + abs(other.value) * self.slack + self.slack * other.slack
        return Amount(self.value * other.value, slack)

    def over(self, other: Amount) -> Amount:
        """Divide; the other must not be 0."""
        value = self.value / other.value
        return Amount(value, self.slack / abs(other.value) + abs(value) * other.slack / abs(other.value))

    def scaled(self, factor: float) -> Amount:
        return Amount(self.value * factor, self.slack * abs(factor))


def printed(text: str) -> Amount | None:
    """Read the first number of a text with half a unit of its last digit as slack; None without a finite number.

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


def agree(one: Amount, other: Amount, tolerance: float = 0.0) -> bool:
    """Tell whether two amounts may be the same: within what their digits hide, and `tolerance` of the larger one."""
    allowed = one.slack + other.slack + tolerance * max(abs(one.value), abs(other.value))
    # A few units of the last place: sums and products of floats do not end in the same bit.
    return abs(one.value - other.value) <= allowed + 1e-9 * max(abs(one.value), abs(other.value))


def ratio_of(one: float, other: float) -> float:
    """How many times the larger is the smaller; inf where one of them is 0 or infinite or their signs differ."""
    if not 0 < one * other < math.inf:
        return math.inf
    return max(abs(one / other), abs(other / one))


class Counts(NamedTuple):
    """What a throughput may have been multiplied with by mistake."""

    accumulation: int | None = None
    gpus: int | None = None
    data_parallel: int | None = None


def looks_like(ratio: float, counts: Counts | None = None, near: float = _NEAR) -> str:
    """Say in a clause which mistake a factor (within `near`) looks like; "" for one that looks like none."""
    if not math.isfinite(ratio):
        return ""
    counts = counts or Counts()
    candidates: list[tuple[float | None, str]] = [
        (counts.accumulation, f"the {counts.accumulation} accumulation steps, counted or left out"),
        (counts.gpus, f"the {counts.gpus} GPUs: one of them taken for all, or all for one"),
        (counts.data_parallel, f"the {counts.data_parallel} data parallel ranks: one of them taken for all"),
        (8.0, "bits taken for bytes, or one GPU for a node of 8"),
        *_FACTORS,
    ]
    for factor, words in candidates:
        if factor and factor >= 2 and abs(ratio / factor - 1) <= near:
            return f"; the factor of {shown(factor)} looks like {words}"
    return ""


def shown(value: float) -> str:
    """Write a number for a sentence: whole ones in full with thousands separators, others with 5 digits."""
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:.5g}"


def times(factor: float) -> str:
    """Write a factor for a sentence: `9.71 times`."""
    return f"{factor:.3g} times"


def percent(share: float) -> str:
    """Write a share of 1 for a sentence."""
    return f"{share * 100:.3g} %"


class Doubt(NamedTuple):
    """What a rule says, before it is known by which id; `numbers` are the ones it compared."""

    message: str
    numbers: Mapping[str, float]
    where: Place = Place()
    lines: tuple[int, ...] = ()

    def at(self, *lines: int | None, **where: Any) -> Doubt:
        """Say what is doubted (fields of schema.Place) and which lines of the file say so."""
        return self._replace(where=Place(**where), lines=tuple(sorted({line for line in lines if line})))


class RunFacts(NamedTuple):
    """What is stored of one run, as plain data; parts that are not known are empty."""

    number: int
    state: str
    config: Mapping[str, Any]
    """The resolved RunConfig: {"model": {...}, "train": {...}, "parallel": {...}, "cluster": {...}, ...}.

    Of a published run only what was published: a default would be compared as if somebody had stated it."""
    summary: Mapping[str, Any]
    """A run's summary (docs/architecture.md)."""
    arguments: Mapping[str, Any] = {}
    """Arguments of the launch under the normal names of schema.Launch; they stand over the configuration."""
    point: Mapping[str, Any] = {}
    """Axes of the sweep: dotted field -> value."""
    device: str | None = None
    """Name of the GPU, as the driver gives it."""
    has_product_layout: bool = True
    """The number of ranks is TP x PP x DP; False for engines with another layout."""
