"""Which settings a result depends on: rank correlations, with what weakens them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parlab.findings.noise import student_t

from .fields import field_heading
from .format import MINUS, field_title, field_value, significant
from .measures import Measure
from .points import RunPoint, in_order, is_number, varied

FEWEST = 4
"""Points from which a correlation is computed."""
FEW = 10
"""Points below which a correlation is called weak evidence."""
TOGETHER = 0.7
"""Rank correlation from which two settings cannot be told apart."""

Ranks = NDArray[np.float64]


class Importance(NamedTuple):
    """How much the result rises or falls with a setting."""

    name: str
    title: str
    correlation: float
    """Spearman's rank correlation, from -1 to 1."""
    runs: int
    """Runs with both numbers."""
    is_chance: bool
    """Whether so few independent runs often reach this correlation by chance (5 % level)."""
    order: str
    """The order of a setting without numbers: `gpipe, 1f1b`."""
    weaknesses: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{'+' if self.correlation > 0 else MINUS if self.correlation < 0 else ''}{abs(self.correlation):.2f}"

    @property
    def strength(self) -> int:
        """The size of the correlation in percent, for a bar."""
        return round(100 * abs(self.correlation))


class Importances(NamedTuple):
    rows: list[Importance]
    """The strongest first."""
    left_out: list[str]
    """Titles of settings with more than two values that have no order."""


def importances(points: Sequence[RunPoint], measure: Measure) -> Importances:
    """Correlate each setting that varies with a result over finished runs."""
    finished = [point for point in points if point.state == "finished" and measure.value(point) is not None]
    result = np.array([measure.value(point) for point in finished], dtype=float)
    codes, left_out = _codes(finished)
    rows = []
    for name, column in codes.items():
        has_both = np.isfinite(column)
        count = int(has_both.sum())
        correlation = _spearman(column[has_both], result[has_both])
        if count < FEWEST or correlation is None:
            continue
        numbers = {point.values.get(name) for point in finished}
        order = "" if all(is_number(v) or v is None for v in numbers) else _order(finished, name)
        rows.append(
            Importance(
                name,
                field_heading(name),
                correlation,
                count,
                _is_chance(correlation, count),
                order,
                _weaknesses(name, codes, count),
            )
        )
    return Importances(sorted(rows, key=lambda row: -abs(row.correlation)), left_out)


def _codes(points: Sequence[RunPoint]) -> tuple[dict[str, Ranks], list[str]]:
    """Return each varied setting as numbers; texts get the place of their value, if there are only two."""
    codes: dict[str, Ranks] = {}
    left_out = []
    for name in varied(points):
        values = [point.values.get(name) for point in points]
        distinct = in_order(value for value in values if value is not None)
        if len(distinct) < 2:
            continue
        if all(is_number(value) for value in distinct):
            codes[name] = np.array([math.nan if value is None else float(value) for value in values])
        elif len(distinct) == 2:
            places = {repr(value): float(place) for place, value in enumerate(distinct)}
            codes[name] = np.array([places.get(repr(value), math.nan) for value in values])
        else:
            left_out.append(field_heading(name))
    return codes, left_out


def _order(points: Sequence[RunPoint], name: str) -> str:
    distinct = in_order(value for point in points if (value := point.values.get(name)) is not None)
    return ", ".join(field_value(value) for value in distinct)


def _ranks(values: Ranks) -> Ranks:
    """Return the ranks of values; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Ranks = (last - (counts - 1) / 2)[inverse]
    return shared


def _spearman(first: Ranks, second: Ranks) -> float | None:
    """Return the rank correlation; None if one side does not vary."""
    if len(first) < 2:
        return None
    ranks = [_ranks(first), _ranks(second)]
    if min(float(np.ptp(own)) for own in ranks) == 0:
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _is_chance(correlation: float, count: int) -> bool:
    if abs(correlation) >= 1 - 1e-12:
        return count < 5  # of four points in any order, 1 in 12 is monotone
    t = abs(correlation) * math.sqrt((count - 2) / (1 - correlation**2))
    return t < student_t(count - 2)


def _weaknesses(name: str, codes: dict[str, Ranks], count: int) -> tuple[str, ...]:
    weaknesses = [f"few points ({count})"] if count < FEW else []
    for other, column in codes.items():
        both = np.isfinite(column) & np.isfinite(codes[name])
        together = _spearman(codes[name][both], column[both]) if other != name else None
        if together is not None and abs(together) >= TOGETHER:
            weaknesses.append(f"changes with {field_title(other).lower()} ({significant(together, 2)})")
    return tuple(weaknesses)
