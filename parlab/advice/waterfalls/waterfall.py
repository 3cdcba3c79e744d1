"""A waterfall: the time of a step as terms that add up exactly, in whole nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .terms import TERMS

Kind = Literal["measured", "computed", "derived", "remainder"]
"""measured: read from timers; computed: from formulas or the planner; derived: measured time minus or times computed
parts; remainder: what is left."""
NS = 1_000_000_000
USEFUL = ("ideal", "compute")
"""Terms that are what a step is for; all others are losses."""
_LONGEST_S = 1e8
"""Longest step that is accepted (s): three years."""


@dataclass(frozen=True)
class Part:
    """A term of a waterfall with its time."""

    key: str
    ns: int
    kind: Kind
    basis: str
    """What the time comes from, for people."""

    @property
    def seconds(self) -> float:
        """Time of the term (s)."""
        return self.ns / NS

    @property
    def title(self) -> str:
        """Name of the term."""
        return TERMS[self.key].title


@dataclass(frozen=True)
class Waterfall:
    """The terms of one step. Their nanoseconds add up to `total_ns` exactly; only `unexplained` may be negative."""

    title: str
    total_ns: int
    parts: tuple[Part, ...]
    absent: tuple[tuple[str, str], ...] = ()
    """Terms without a time, with the reason."""
    notes: tuple[str, ...] = ()

    @property
    def total_s(self) -> float:
        """Time of the step (s)."""
        return self.total_ns / NS

    @property
    def is_explained(self) -> bool:
        """Whether the time of any term is known."""
        return any(part.ns and part.key != "unexplained" for part in self.parts)

    @property
    def losses(self) -> list[Part]:
        """The terms that took time and are not what the step is for, the longest first."""
        lost = [part for part in self.parts if part.key not in USEFUL and part.ns > 0]
        return sorted(lost, key=lambda part: -part.ns)

    def ns(self, key: str) -> int:
        """Return the time of a term (ns); 0 if it is absent."""
        return sum(part.ns for part in self.parts if part.key == key)

    def share(self, key: str) -> float:
        """Return the share of a term in the step (0 to 1)."""
        return self.ns(key) / self.total_ns if self.total_ns else 0.0

    def percents(self, digits: int = 2) -> list[int]:
        """Return the shares of the parts in units of 10^-`digits` per cent; they add up to exactly 100 %."""
        return rounded([part.ns for part in self.parts], 100 * 10**digits)


@dataclass(frozen=True)
class Change:
    """The difference of one term between two waterfalls."""

    key: str
    from_ns: int
    to_ns: int

    @property
    def ns(self) -> int:
        """Growth of the term (ns)."""
        return self.to_ns - self.from_ns

    @property
    def title(self) -> str:
        """Name of the term."""
        return TERMS[self.key].title


def rounded(values: Sequence[int], units: int) -> list[int]:
    """Scale values to integers that add up to `units`, each within one unit of its exact value.

    The values with the largest remainders are rounded up. All zero if the values add up to 0.
    """
    total = sum(values)
    if not total:
        return [0] * len(values)
    if total < 0:
        return rounded([-value for value in values], units)
    exact = [divmod(value * units, total) for value in values]
    missing = units - sum(number for number, _ in exact)
    order = sorted(range(len(values)), key=lambda place: -exact[place][1])
    raised = set(order[:missing])
    return [number + (place in raised) for place, (number, _) in enumerate(exact)]


def nanoseconds(seconds: float) -> int:
    """Return seconds as whole nanoseconds. Raises ValueError if they are not a duration."""
    if not 0 <= seconds <= _LONGEST_S:
        raise ValueError(f"{seconds} s is not the duration of a part of a step; use 0 to {_LONGEST_S:g} s")
    return round(seconds * NS)


def assembled(
    title: str,
    total_s: float,
    parts: Sequence[tuple[str, float, Kind, str]],
    absent: Mapping[str, str],
    notes: Sequence[str] = (),
) -> Waterfall:
    """Order the terms and add the remainder, so that they add up to `total_s`."""
    order = {key: place for place, key in enumerate(TERMS)}
    present = [Part(key, nanoseconds(seconds), kind, basis) for key, seconds, kind, basis in parts]
    present.sort(key=lambda part: order[part.key])
    total_ns = nanoseconds(total_s)
    left_ns = total_ns - sum(part.ns for part in present)
    basis = "no timer and no formula covers it" if left_ns > 0 else "the terms above add up to more than the step"
    if abs(left_ns) <= len(present):  # each term is rounded to nanoseconds
        basis = "the terms above add up to the step"
    return Waterfall(
        title,
        total_ns,
        (*present, Part("unexplained", left_ns, "remainder", basis)),
        tuple((key, absent[key]) for key in TERMS if key in absent),
        tuple(notes),
    )


def difference(first: Waterfall, second: Waterfall) -> list[Change]:
    """Return the change of every term from the first waterfall to the second; they add up to that of the step."""
    keys = {part.key for waterfall in (first, second) for part in waterfall.parts}
    return [Change(key, first.ns(key), second.ns(key)) for key in TERMS if key in keys]
