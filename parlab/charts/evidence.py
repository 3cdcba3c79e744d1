"""Pictures of what an item of the inbox is about: small beside its line, large on its page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from statistics import median
from typing import NamedTuple

from parlab.charts.format import quantity, significant
from parlab.charts.svg import CHARACTER_PX, Canvas, Margins, Svg, length


class Size(NamedTuple):
    """Size of a picture in pixels."""

    width: float
    height: float

    @property
    def is_small(self) -> bool:
        return self.height < 60

    @property
    def margins(self) -> Margins:
        return Margins(3, 3, 4, 4) if self.is_small else Margins(52, 16, 12, 24)


SMALL, LARGE, PHONE = Size(92, 34), Size(760, 220), Size(330, 180)


def change(values: Sequence[float], at: int, label: str, size: Size = SMALL) -> Svg:
    """Draw results before and after a change, with the level of each side."""
    if not values:
        return Canvas(*size).svg(label)
    canvas = Canvas(*size, (0, max(1, len(values) - 1)), (min(values), max(values)), size.margins)
    if not size.is_small:
        canvas.y_axis()
    between = length(canvas.x(at - 0.5))
    foot = length(size.height - size.margins.bottom + 2)
    canvas.add(f'<path class="st0" stroke-dasharray="2 2" d="M{between} {length(size.margins.top - 2)}V{foot}"/>')
    for part, first, kind in ((values[:at], 0, "s7"), (values[at:], at, "sb")):
        if part:
            level = length(canvas.y(median(part)))
            ends = length(canvas.x(first)), length(canvas.x(first + len(part) - 1))
            canvas.add(f'<path class="{kind}" stroke-width="1.5" d="M{ends[0]} {level}H{ends[1]}"/>')
    for place, value in enumerate(values):
        _dot(canvas, place, value, "f7" if place < at else "fb", 1.7 if size.is_small else 3.5)
    return canvas.svg(label)


def curve(points: Sequence[tuple[float, float]], label: str, *, bad_from: float, size: Size = SMALL) -> Svg:
    """Draw a loss over its steps; from `bad_from` in red, and there is the mark of the highest value."""
    if not points:
        return Canvas(*size).svg(label)
    steps, values = [step for step, _ in points], [value for _, value in points]
    canvas = Canvas(*size, (steps[0], steps[-1]), (min(values), max(values)), size.margins)
    if not size.is_small:
        canvas.y_axis()
        canvas.x_axis(text=lambda step: f"{step:,.0f}", title="step")
    first = next((place for place, step in enumerate(steps) if step >= bad_from), len(steps) - 1)
    line = '<path class="l {}" d="{}"/>'
    canvas.add(line.format("s7", canvas.path(steps[: first + 1], values[: first + 1])))
    canvas.add(line.format("sb", canvas.path(steps[max(0, first - 1) :], values[max(0, first - 1) :])))
    top = max(range(first, len(steps)), key=lambda place: values[place])
    _dot(canvas, steps[top], values[top], "fb", 2.5 if size.is_small else 4.5)
    return canvas.svg(label)


def cells(before: Sequence[float], count: int, label: str, *, first_step: int | None = None, size: Size = SMALL) -> Svg:
    """Draw values as cells: the last finite ones, then those that are not."""
    shown = 3 if size.is_small else max(3, int(size.width // 82))
    room = max(shown - count, 1 if size.is_small else shown // 2)
    good = [_brief(value) for value in before][-room:]
    bad = min(count, shown - len(good))
    width = size.width / shown
    high = 20.0 if size.is_small else 44.0
    canvas = Canvas(size.width, size.height if size.is_small else 84)
    top = (canvas.height - high) / 2 if size.is_small else 8
    for place in range(len(good) + bad):
        is_bad = place >= len(good)
        left = place * width
        canvas.add(
            f'<rect class="{"bad-cell" if is_bad else "fg"}" x="{length(left)}" y="{length(top)}"'
            f' width="{length(width - 3)}" height="{length(high)}" rx="3"/>'
        )
        text, kind = ("nan", "bad-text") if is_bad else (good[place], "v")
        canvas.text(left + (width - 3) / 2, top + high / 2 + 4, text, "middle", kind)
        if not size.is_small and first_step is not None:
            canvas.text(left + (width - 3) / 2, top + high + 18, f"step {first_step - len(good) + place}", "middle")
    return canvas.svg(label)


def _brief(value: float) -> str:
    """Write a number into a cell: at most three digits, or a power of ten."""
    text = significant(value)
    return text if len(text) <= 5 else f"{value:.0e}".replace("e+0", "e").replace("e+", "e")


def overflow(asked: float | None, free: float | None, capacity: float | None, label: str, size: Size = SMALL) -> Svg:
    """Draw a memory with what was asked beyond its end; without numbers only that it is full."""
    size = size if size.is_small else Size(size.width, 92)
    canvas = Canvas(*size)
    room = capacity or max((asked or 0) * 4, (free or 0) * 4) or 4.0
    asked, free = (asked if asked is not None else 0.1 * room), (free if free is not None else 0.0)
    used, over = max(0.0, room - free), max(0.0, asked - free)
    scale = (size.width - (8 if size.is_small else 48)) / max(room + over, 1.0)
    top, high = (11.0, 12.0) if size.is_small else (28.0, 34.0)
    end = 2 + room * scale
    canvas.add(_rect("f7", 2, top, used * scale, high, ' opacity=".45"'))
    canvas.add(
        _rect(
            "fb",
            2 + used * scale,
            top + (0 if size.is_small else high + 4),
            asked * scale,
            high if size.is_small else 10,
        )
    )
    canvas.add(f'<path class="st0" stroke-width="1.5" d="M{length(end)} {length(top - 5)}V{length(top + high + 5)}"/>')
    if not size.is_small:
        canvas.text(10, top + high / 2 + 4, f"in use {quantity(used, 'B')}", kind="v")
        canvas.text(end, top - 10, f"limit {quantity(capacity, 'B')}" if capacity else "limit", "end", "b")
        below = top + high + 13
        canvas.text(
            2 + used * scale - 6, below, f"asked {quantity(asked, 'B')}, free {quantity(free, 'B')}", "end", "bad-text"
        )
    return canvas.svg(label)


def heartbeat(label: str, size: Size = SMALL) -> Svg:
    """Draw a heartbeat that ends."""
    canvas = Canvas(*size) if size.is_small else Canvas(size.width, 100)
    width, middle = canvas.width, canvas.height / 2
    beat = width / 9
    path = f"M2 {length(middle)}"
    for place in (1, 3):
        left, reach = place * beat, middle * 0.75
        path += (
            f"H{length(left)}L{length(left + beat * 0.35)} {length(middle - reach)}"
            f"L{length(left + beat * 0.8)} {length(middle + reach)}L{length(left + beat * 1.15)} {length(middle)}"
        )
    stop = length(5.2 * beat)
    canvas.add(f'<path class="l st0" d="{path}H{stop}"/>')
    canvas.add(f'<path class="l sb" stroke-dasharray="3 3" d="M{stop} {length(middle)}H{length(width - 2)}"/>')
    canvas.add(f'<circle class="fb" cx="{stop}" cy="{length(middle)}" r="3"/>')
    return canvas.svg(label)


def two_numbers(first: tuple[str, str], second: tuple[str, str], label: str, size: Size = SMALL) -> Svg:
    """Write a number above another one that contradicts it; each is (number, what it is)."""
    canvas = Canvas(size.width, 34 if size.is_small else 68)
    scale, kind = (1.0, "") if size.is_small else (2.0, " big")
    left = 11 + CHARACTER_PX * max(len(first[0]), len(second[0]), 4) * (1.0 if size.is_small else 1.8)
    has_room = left + CHARACTER_PX * max(len(first[1]), len(second[1])) <= size.width + 8
    for (number, name), top, tone in ((first, 13, "b"), (second, 28, "bad-text struck")):
        canvas.text(2, top * scale, number, kind=tone + kind)
        if has_room:
            canvas.text(left, top * scale, name)
    return canvas.svg(label)


def stopped(label: str, size: Size = SMALL) -> Svg:
    """Draw a run that ends before its time."""
    canvas = Canvas(*size) if size.is_small else Canvas(size.width, 60)
    top, end = canvas.height / 2 - 4, canvas.width * 0.6
    canvas.add(_rect("fl", 2, top, canvas.width - 4, 8))
    canvas.add(_rect("f7", 2, top, end - 2, 8))
    cross = f"M{length(end - 4)} {length(top)}l8 8m0 -8l-8 8"
    return canvas.add(f'<path class="sb" stroke-width="2" d="{cross}"/>').svg(label)


def _dot(canvas: Canvas, across: float, up: float, kind: str, radius: float) -> None:
    if math.isfinite(up):
        place = f'cx="{length(canvas.x(across))}" cy="{length(canvas.y(up))}" r="{radius}"'
        canvas.add(f'<circle class="{kind}" {place}><title>{escape(significant(up))}</title></circle>')


def _rect(kind: str, left: float, top: float, width: float, height: float, more: str = "") -> str:
    place = f'x="{length(left)}" y="{length(top)}" width="{length(max(0.0, width))}" height="{length(height)}"'
    return f'<rect class="{kind}" {place} rx="2"{more}/>'
