"""Points with their p10 to p90 on one scale, as SVG: small figures of an experiment on lists and cards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .format import SPACE, significant, unit_for
from .svg import CHARACTER_PX, Canvas, Look, Margins, Svg, ticks

_MARK_PX, _ROW_PX = 9, 21
"""Height of a mark within a row, and of a row with one mark."""
MAX_ROWS, MAX_MARKS = 6, 4
_LABEL_CHARACTERS = 19


class Dot(NamedTuple):
    """A point on a scale."""

    value: float
    low: float | None = None
    high: float | None = None
    look: Look = Look()
    title: str = ""
    is_out: bool = False
    """Whether it ran out of memory: a word stands in its place."""


class DotRow(NamedTuple):
    """The points of one value of the leading field."""

    label: str
    dots: Sequence[Dot]
    is_best: bool = False


def dot_plot(rows: Sequence[DotRow], unit: str, label: str, *, width: float = 360) -> Svg:
    """Draw a row for each group, from zero, with the unit at the end of the axis; of many rows the first ones."""
    if not any(row.dots for row in rows):
        return Svg()
    shown = [row._replace(dots=row.dots[:MAX_MARKS]) for row in rows[:MAX_ROWS]]
    heights = [max(_ROW_PX, _MARK_PX * len(row.dots) + 8) for row in shown]
    longest = max((len(_cut(row.label)) for row in shown), default=0)
    left = min(126.0, 14 + CHARACTER_PX * longest)
    top = max((dot.high or dot.value for row in shown for dot in row.dots), default=1.0) or 1.0
    column = unit_for([top], unit)
    margins = Margins(left, 14, 4, 22)
    canvas = Canvas(width, 4 + sum(heights) + 24, (0, 1.04 * top / column.factor), (0, 1), margins)
    values = ticks(0, 1.04 * top / column.factor)
    name = column.name.replace(SPACE, " ")
    canvas.x_axis(values, lambda value: f"{value:g}", name, has_grid=True)
    at = 4.0
    for row, height in zip(shown, heights, strict=True):
        canvas.text(left - 10, at + height / 2 + 4, _cut(row.label), "end", "b" if row.is_best else "v")
        for place, dot in enumerate(row.dots):
            _draw(canvas, dot, at + height / 2 + _MARK_PX * (place - (len(row.dots) - 1) / 2), column.factor)
        at += height
    return canvas.svg(label)


def _draw(canvas: Canvas, dot: Dot, height: float, factor: float = 1.0) -> None:
    if dot.is_out:
        canvas.add(f'<text class="oom" x="{canvas.x(0) + 4:.1f}" y="{height + 4:.1f}">OOM</text>')
        return
    if dot.low is not None and dot.high is not None:
        canvas.whisker(dot.low / factor, dot.high / factor, height, dot.look)
    canvas.mark(canvas.x(dot.value / factor), height, dot.look, title=dot.title)


def strip(dots: Sequence[Dot], label: str, *, width: float = 200, height: float = 30) -> Svg:
    """Draw points on three lines without an axis, from zero at the left; the largest is that of the best run."""
    top = max((dot.high or dot.value for dot in dots), default=0.0)
    canvas = Canvas(width, height, (0, top or 1.0), (0, 1), Margins(2, 6, 0, 0))
    canvas.add(f'<path class="gl" d="M2.5 2V{height - 2:g}"/>')
    lines = min(3, len(dots))
    for place, dot in enumerate(dots):
        _draw(canvas, dot, height * (place % lines + 1) / (lines + 1))
    return canvas.svg(label)


def hover(name: str, value: float, unit: str, low: float | None, high: float | None) -> str:
    """Return what a mark says on hover: all digits, and its range."""
    text = f"{name}: {value:.10g}{SPACE}{unit}"
    return text if low is None or high is None else f"{text} ({significant(low)} to {significant(high)})"


def _cut(text: str) -> str:
    return text if len(text) <= _LABEL_CHARACTERS else f"{text[: _LABEL_CHARACTERS - 1]}…"
