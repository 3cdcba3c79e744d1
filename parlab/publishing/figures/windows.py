"""Thinning of long series for the browser: few points of the whole, more of a part that is zoomed into."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from django.http import QueryDict
from numpy.typing import NDArray

from parlab.charts.runs.curves import Curve
from parlab.charts.theme import MAX_RANKS
from parlab.series.columns import Columns

WIDE, SMALL = 2_400, 1_600
"""Total points of a figure, more than it has pixels across; a zoomed part gets as many again."""
LEAST, MOST = 200, 1_000
"""Limits of the points of each line."""
Key = TypeVar("Key", bound=Hashable)


class Window(NamedTuple):
    """A range of the x axis, thinned to so many points; None: all points."""

    points: int | None
    first: float | None = None
    last: float | None = None
    x: str = ""
    """What x is where a figure has a choice: "step" or "time"; empty: as the figure is drawn elsewhere."""

    def sized(self, points: int) -> Window:
        """Return the window with so many points, unless it has all."""
        return self if self.points is None else self._replace(points=points)


WHOLE = Window(None)


def window_of(query: QueryDict) -> Window:
    """Read `?from=120&to=180`, which the browser sends when a person zooms into a thinned curve, and `?x=time`."""
    first, last = (_finite(query.get(name, "")) for name in ("from", "to"))
    x = query.get("x", "")
    if first is None or last is None:
        return Window(WIDE, x=x)
    return Window(WIDE, first, last, x)


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 2**53 else None


class Seen(NamedTuple):
    """The part of a series that a figure draws."""

    curve: Curve
    is_thinned: bool


def seen(series: Mapping[Key, Columns], window: Window, x: Mapping[Key, NDArray[np.float64]]) -> dict[Key, Seen]:
    """Cut series to a window of their x values, and thin them; each line gets its share of the points."""
    each = None if window.points is None else share(window.points, len(series))
    parts = {}
    for key, columns in series.items():
        cut = _cut(columns, x[key], window)
        thin = cut if each is None else cut.thinned(each)
        parts[key] = Seen(_curve(thin), len(thin) < len(cut))
    return {key: part for key, part in parts.items() if len(part.curve.values)}


def share(points: int, lines: int) -> int:
    """Return the points per line; of more than MAX_RANKS ranks only two are drawn."""
    return min(MOST, max(LEAST, points // min(max(lines, 1), MAX_RANKS)))


def _cut(columns: Columns, x: NDArray[np.float64], window: Window) -> Columns:
    if window.first is None or window.last is None:
        return columns
    inside = np.flatnonzero((x >= window.first) & (x <= window.last))
    if not len(inside):
        return columns.take(inside)
    # One point beyond either end, so that lines reach the edges of the plot.
    return columns.take(slice(max(0, int(inside[0]) - 1), int(inside[-1]) + 2))


def _curve(columns: Columns) -> Curve:
    return Curve(columns.steps.tolist(), columns.times.tolist(), columns.values.tolist())
