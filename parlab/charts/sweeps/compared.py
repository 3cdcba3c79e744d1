"""Pictures of a comparison as inline SVG: the bridge from one step to another, how sure differences are, a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from parlab.charts.format import MINUS, SPACE, Unit, significant
from parlab.charts.svg import CHARACTER_PX, Canvas, Margins, Svg, fitting, length, text_px, ticks

_BRIDGE = (860.0, 300.0)
_ROW = 52.0
_CELL = 40.0
_HATCH = (
    '<pattern id="{}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="s7" d="M0 0V6" stroke-width="1.5" opacity=".6"/></pattern>'
)
_SHADES = 5
_MOST_STEPS = 7
_REACHES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Ends of the axis of differences."""
"""Terms that stand alone in a bridge; the smaller ones are one step."""


class BridgeStep(NamedTuple):
    """A term of the step that changed."""

    title: str
    seconds: float
    is_unexplained: bool = False


def bridge(names: tuple[str, str], totals_s: tuple[float, float], steps: Sequence[BridgeStep], unit: Unit) -> Svg:
    """Draw how one step time becomes another, term by term; less time is green, more is red, unexplained hatched."""
    shown = _gathered(steps)
    first, last = (total / unit.factor for total in totals_s)
    levels, level = [first], first
    for step in shown:
        level += step.seconds / unit.factor
        levels.append(level)
    canvas = Canvas(*_BRIDGE, (0, len(shown) + 2), (0, 1.12 * max(*levels, last)), Margins(44, 8, 8, 42))
    canvas.add(f"<defs>{_HATCH.format('hatch-bridge')}</defs>")
    canvas.y_axis()
    _column(canvas, 0, 0.0, first, "f1", significant(first), names[0])
    for place, step in enumerate(shown, start=1):
        before, after = levels[place - 1], levels[place]
        change = step.seconds / unit.factor
        sign = "+" if change > 0 else MINUS
        fill = "hatch" if step.is_unexplained else "fb" if change > 0 else "fok"
        _column(canvas, place, before, after, fill, f"{sign}{significant(abs(change), 2)}", step.title)
        top = length(canvas.y(before))
        canvas.add(f'<path class="ax" d="M{length(canvas.x(place - 0.14))} {top}H{length(canvas.x(place + 0.14))}"/>')
    _column(canvas, len(shown) + 1, 0.0, last, "f2", significant(last), names[1])
    told = "; ".join(f"{step.title} {significant(step.seconds / unit.factor, 2)}" for step in shown)
    return canvas.svg(f"From {significant(first)} to {significant(last)} {unit.name}: {told}")


def _gathered(steps: Sequence[BridgeStep]) -> list[BridgeStep]:
    """Return the largest steps by size, the improvements first, and all smaller ones as one."""
    ordered = sorted((step for step in steps if step.seconds), key=lambda step: -abs(step.seconds))
    alone, rest = ordered[:_MOST_STEPS], ordered[_MOST_STEPS:]
    kept = sorted(alone, key=lambda step: step.seconds)
    left = sum(step.seconds for step in rest)
    return [*kept, BridgeStep("Other", left)] if left else kept


def _column(canvas: Canvas, place: int, low: float, high: float, fill: str, text: str, title: str) -> None:
    left, right = canvas.x(place + 0.14), canvas.x(place + 0.86)
    top, foot = canvas.y(max(low, high)), canvas.y(min(low, high))
    paint = 'fill="url(#hatch-bridge)" class="edge-7"' if fill == "hatch" else f'class="{fill}"'
    canvas.add(
        f'<rect {paint} x="{length(left)}" width="{length(right - left)}" y="{length(top)}"'
        f' height="{length(max(1.0, foot - top))}" rx="1"><title>{escape(title)} {escape(text)}</title></rect>'
    )
    canvas.text((left + right) / 2, top - 6, text, "middle", "b")
    room = int((canvas.x(1) - canvas.x(0)) / CHARACTER_PX)
    lines = _lines(title, room)
    for number, line in enumerate(lines[:2]):
        canvas.text((left + right) / 2, canvas.height - canvas.margins.bottom + 16 + 13 * number, line, "middle", "v")


def _lines(title: str, room: int) -> list[str]:
    """Break a title into lines of at most `room` characters; a longer word is cut."""
    lines: list[str] = []
    for word in title.split():
        if lines and len(lines[-1]) + 1 + len(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word if len(word) <= room else f"{word[: room - 1]}\N{HORIZONTAL ELLIPSIS}")
    return lines


class Sureness(NamedTuple):
    """The difference of a result, as a share of the first run."""

    title: str
    share: float
    low: float | None
    high: float | None
    word: str
    """proven, not proven, certain, identical, unknown."""
    is_good: bool | None
    """Whether the second run is better; None if that is not sure."""


def sureness(rows: Sequence[Sureness]) -> Svg:
    """Draw differences with their 95 % intervals, in per cent of the first run; what leaves the axis has an arrow."""
    reach = _reach(rows)
    canvas = Canvas(400, 26 + _ROW * len(rows), (-reach, reach), (0, 1), Margins(132, 88, 4, 24))
    middle = canvas.x(0)
    foot = canvas.height - canvas.margins.bottom
    canvas.add(f'<path class="ax" d="M{round(middle) + 0.5} 4V{length(foot)}"/>')
    for place, row in enumerate(rows):
        top = 26 + place * _ROW
        kind = "v" if row.is_good is None else "good-text" if row.is_good else "bad-text"
        canvas.text(0, top - 3, row.title, "start", "b")
        canvas.text(0, top + 12, _with_interval(row), "start", "v")
        if row.low is not None and row.high is not None:
            low, high = (canvas.x(max(-reach, min(reach, value))) for value in (row.low, row.high))
            canvas.add(
                f'<rect class="fl" x="{length(low)}" width="{length(max(2.0, high - low))}" y="{top - 3}" height="6"'
                ' rx="3"/>'
            )
        at = canvas.x(max(-reach, min(reach, row.share)))
        canvas.add(f'<circle class="ft" cx="{length(at)}" cy="{top}" r="4.5"/>')
        for end, way in ((row.low, -1), (row.high, 1)):
            if end is not None and way * end > reach:
                tip = canvas.x(way * reach) + way * 5
                canvas.add(f'<path class="fl" d="M{length(tip)} {top}l{-5 * way} -5v10z"/>')
        canvas.text(400, top + 4, row.word, "end", kind)
    for value in (-reach, 0.0, reach):
        canvas.text(canvas.x(value), foot + 16, _percent(value), "middle")
    return canvas.svg("; ".join(f"{row.title} {_percent(row.share)}, {row.word}" for row in rows))


def _reach(rows: Sequence[Sureness]) -> float:
    """Return the end of the axis, a round share: it holds all differences, and their intervals up to thrice as far."""
    furthest = max((abs(row.share) for row in rows), default=0.0)
    ends = [abs(end) for row in rows for end in (row.low, row.high) if end is not None]
    wanted = 1.1 * max(furthest, min(max(ends, default=0.0), 3 * furthest or math.inf))
    return next((end for end in _REACHES if end >= wanted), _REACHES[-1])


def _with_interval(row: Sureness) -> str:
    """Return a difference and the ends of its interval, `+20 % (+19 to +21)`; within noise with one digit."""
    digits = 1 if row.word == "not proven" else 2
    if row.low is None or row.high is None:
        return _percent(row.share, digits)
    low, high = (_percent(end).removesuffix(f"{SPACE}%") for end in (row.low, row.high))
    return f"{_percent(row.share, digits)} ({low} to {high})"


def _percent(share: float, digits: int = 2) -> str:
    if abs(share) < 5e-5:
        return "0"
    return f"{'+' if share > 0 else MINUS}{significant(abs(100 * share), digits)}{SPACE}%"


class Lost(NamedTuple):
    """What a run takes beyond the best one."""

    name: str
    value: float
    """In the unit of the figure; 0 of the best."""
    share: float
    is_noise: bool


def lost_bars(rows: Sequence[Lost]) -> Svg:
    """Draw what each run takes beyond the best one, the least first; hatched: within noise."""
    longest = max((text_px(row.name) for row in rows), default=0.0)
    left = min(longest + 12, 170.0)
    most = max((row.value for row in rows), default=0.0) or 1.0
    canvas = Canvas(430, _BAR * len(rows) + 26, (0, most), (0, 1), Margins(left, 96, 2, 24))
    canvas.add(f"<defs>{_HATCH.format('hatch-lost')}</defs>")
    canvas.x_axis(ticks(0, most, 3), lambda value: f"{value:g}", has_grid=True)
    for place, row in enumerate(rows):
        top = 2 + (place + 0.5) * _BAR
        cut = row.name if text_px(row.name) <= left - 8 else fitting(row.name, left - 14)
        name = row.name if cut == row.name else f"{cut}\N{HORIZONTAL ELLIPSIS}"
        canvas.text(left - 8, top + 4, name, "end", "b" if not row.value else "v")
        paint = 'fill="url(#hatch-lost)" class="edge-7"' if row.is_noise else 'class="fb"'
        width = max(1.0, canvas.x(row.value) - left)
        told = "the best" if not row.value else f"+{significant(row.value)}, {_percent(row.share)}"
        canvas.add(
            f'<rect {paint} x="{length(left)}" y="{length(top - 6)}" width="{length(width)}" height="12">'
            f"<title>{escape(row.name)}: {escape(told)}</title></rect>"
        )
        canvas.text(left + width + 5, top + 4, f"\N{ALMOST EQUAL TO} {told}" if row.is_noise else told, "start", "v")
    return canvas.svg("; ".join(f"{row.name} +{significant(row.value)}" for row in rows))


_BAR = 21.0


class MatrixCell(NamedTuple):
    """How much a run is above another one, as a share; None: within noise, or not measured."""

    share: float | None
    is_noise: bool = False


def matrix(names: Sequence[str], cells: Sequence[Sequence[MatrixCell]]) -> Svg:
    """Draw how much the run of a row is above that of a column, in per cent; hatched: within noise.

    Runs are ordered from the best, so that only the upper half is drawn.
    """
    room = min(150.0, 10 + CHARACTER_PX * max(map(len, names)))
    width, height = room + _CELL * len(names) + 40, 12 + _CELL * len(names) + 76
    canvas = Canvas(width, height)
    canvas.add(f"<defs>{_HATCH.format('hatch-matrix')}</defs>")
    most = max((cell.share for row in cells for cell in row if cell.share), default=1.0) or 1.0
    for down, name in enumerate(names):
        top = 8 + down * _CELL
        canvas.text(room - 8, top + _CELL / 2 + 4, _cut(name, int(room / CHARACTER_PX)), "end", "v")
        for across in range(down, len(names)):
            _cell(canvas, room + across * _CELL, top, cells[down][across], most, is_own=across == down)
        left, foot = room + down * _CELL + _CELL / 2, 8 + len(names) * _CELL + 14
        canvas.add(
            f'<text class="v" text-anchor="end" transform="translate({length(left + 4)} {length(foot)}) rotate(-40)">'
            f"{escape(_cut(name, 16))}</text>"
        )
    told = "; ".join(
        f"{names[down]} over {names[across]} {_percent(cell.share)}"
        for down, row in enumerate(cells)
        for across, cell in enumerate(row)
        if across > down and cell.share is not None
    )
    return canvas.svg(f"Row over column: {told}")


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}\N{HORIZONTAL ELLIPSIS}"


def _cell(canvas: Canvas, left: float, top: float, cell: MatrixCell, most: float, *, is_own: bool) -> None:
    box = f'x="{length(left + 1)}" y="{length(top + 1)}" width="{_CELL - 2:g}" height="{_CELL - 2:g}" rx="3"'
    if is_own:
        canvas.add(f'<rect class="fg" {box}/>')
    elif cell.share is None or cell.is_noise:
        canvas.add(f'<rect fill="url(#hatch-matrix)" class="edge-7" {box}/>')
        text = "\N{ALMOST EQUAL TO}" if cell.is_noise else "\N{EN DASH}"
        canvas.text(left + _CELL / 2, top + _CELL / 2 + 4, text, "middle", "v")
    else:
        shade = min(_SHADES, max(0, math.ceil(_SHADES * cell.share / most)))
        canvas.add(f'<rect class="q{shade}" {box}/>')
        kind = "on" if shade >= 4 else "v"
        canvas.text(left + _CELL / 2, top + _CELL / 2 + 4, significant(100 * cell.share, 2), "middle", kind)
