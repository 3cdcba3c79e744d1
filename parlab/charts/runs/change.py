"""A change in a series of results as SVG: the results before and after it, their levels, and the commits below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from parlab.charts.format import DASH, quantity, unit_for
from parlab.charts.svg import CHARACTER_PX, Canvas, Margins, Svg, length, ticks

WIDTH, HEIGHT = 848.0, 300.0
SPARK_WIDTH, SPARK_HEIGHT = 84.0, 30.0
_MARGINS = Margins(44, 16, 14, 46)
_ROOM = 0.12
"""Room above and below the results, as a share of their range."""
_MOST_COMMITS = 24


class Shown(NamedTuple):
    value: float
    title: str
    commit: str


class Change(NamedTuple):
    """A change: the number of results before it, and its size with interval as text."""

    at: int
    size: str
    interval: str
    is_worse: bool
    before: float
    after: float
    """Levels of the results before and after it."""

    @property
    def kind(self) -> str:
        return "worse" if self.is_worse else "better"


def change_figure(results: Sequence[Shown], unit: str, change: Change | None, label: str) -> Svg:
    """Draw results in their order, the change as a line, and what was measured at which commit."""
    values = [result.value for result in results]
    column = unit_for(values, unit)
    low, high = _range([value / column.factor for value in values])
    canvas = Canvas(WIDTH, HEIGHT, (-0.5, len(results) - 0.5), (low, high), _MARGINS)
    canvas.y_axis(ticks(low, high), lambda value: f"{value:g}")
    if change is not None:
        _change(canvas, change, len(results), column.factor)
    for number, result in enumerate(results):
        kind = change.kind if change is not None and number >= change.at else "before"
        canvas.add(
            f'<circle class="ch-{kind}" cx="{length(canvas.x(number))}"'
            f' cy="{length(canvas.y(result.value / column.factor))}" r="3.5">'
            f"<title>{escape(f'{result.title}: {quantity(result.value, unit)}')}</title></circle>"
        )
    _commits(canvas, results, change)
    return canvas.svg(label)


def unit_of(values: Sequence[float], unit: str) -> str:
    """Return the unit of the axis of `change_figure`."""
    return unit_for(values, unit).name


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = _ROOM * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def _change(canvas: Canvas, change: Change, count: int, factor: float) -> None:
    at, end = canvas.x(change.at - 0.5), canvas.width - canvas.margins.right
    top, foot = canvas.margins.top, canvas.height - canvas.margins.bottom
    canvas.add(
        f'<rect class="ch-after {change.kind}" x="{length(at)}" y="{length(top)}" width="{length(end - at)}"'
        f' height="{length(foot - top)}"/>'
    )
    for begin, stop, level, kind in (
        (0, change.at, change.before, "before"),
        (change.at, count, change.after, change.kind),
    ):
        left, right = length(canvas.x(begin - 0.4)), length(canvas.x(stop - 0.6))
        canvas.add(f'<path class="ch-level {kind}" d="M{left} {length(canvas.y(level / factor))}H{right}"/>')
    canvas.add(f'<path class="ch-line {change.kind}" d="M{length(at)} {length(top - 6)}V{length(foot)}"/>')
    middle = (canvas.y(change.before / factor) + canvas.y(change.after / factor)) / 2
    beside, anchor = (at - 8, "end") if at > WIDTH / 3 else (at + 8, "start")
    canvas.text(beside, middle, change.size, anchor, f"ch-size {change.kind}")
    canvas.text(beside, middle + 15, change.interval, anchor)


def _commits(canvas: Canvas, results: Sequence[Shown], change: Change | None) -> None:
    """Draw a bar with its name below the results of each commit."""
    groups = [(commit, len(list(own))) for commit, own in groupby(results, key=lambda result: result.commit)]
    if not any(commit for commit, _ in groups) or len(groups) > _MOST_COMMITS:
        canvas.text((canvas.margins.left + canvas.width) / 2, canvas.height - 26, "results in their order", "middle")
        return
    foot, first = canvas.height - canvas.margins.bottom + 12, 0
    for commit, count in groups:
        left, right = canvas.x(first - 0.4), canvas.x(first + count - 0.6)
        kind = f"ch-commit {change.kind}" if change is not None and first == change.at else "ch-commit"
        canvas.add(f'<path class="{kind}" d="M{length(left)} {length(foot)}H{length(right)}"/>')
        name = commit[:7] or DASH
        if right - left >= CHARACTER_PX * len(name):
            canvas.text((left + right) / 2, foot + 15, name, "middle", f"mono {kind}")
        first += count


def spark(values: Sequence[float], at: int | None, label: str, *, is_worse: bool = True) -> Svg:
    """Draw the last results of a series as dots; those after a change at `at` have its colour."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Svg()
    low, high = _range(finite)
    canvas = Canvas(SPARK_WIDTH, SPARK_HEIGHT, (0, max(1, len(values) - 1)), (low, high), Margins(4, 4, 3, 3))
    kind = "worse" if is_worse else "better"
    if at is not None and 0 < at < len(values):
        canvas.add(f'<path class="ch-line {kind}" d="M{length(canvas.x(at - 0.5))} 0V{length(SPARK_HEIGHT)}"/>')
    for number, value in enumerate(values):
        after = at is not None and number >= at
        canvas.add(
            f'<circle class="ch-{kind if after else "before"}" cx="{length(canvas.x(number))}"'
            f' cy="{length(canvas.y(value))}" r="1.8"/>'
        )
    return canvas.svg(label, "spark")
