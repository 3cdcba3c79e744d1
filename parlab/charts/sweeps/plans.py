"""Pictures of a training plan as inline SVG: days against cost, memory against capacity, time of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from parlab.charts.format import SPACE, Unit, for_column, in_column, significant, unit_for
from parlab.charts.runs.step_bar import LOOKS
from parlab.charts.runs.step_bar import Look as PartLook
from parlab.charts.svg import CHARACTER_PX, CIRCLE, SQUARE, TRIANGLE, Canvas, Look, Margins, Svg, length, ticks

_SHAPES = (CIRCLE, SQUARE, TRIANGLE)
_WIDTH, _HEIGHT = 620.0, 290.0
_COLOURS = (1, 3, 2, 6)
_BAR_PX, _BAR_HEIGHT = 480.0, 38.0
"""Width for which texts are placed in a bar; on a wider page there is more room around them."""
_TOLD = 0.002
"""Share of the whole from which on a part is drawn."""
_CURVE_PX = 34.0
_CURVE_POINTS = 60
_RATE_PX = 44.0
"""Height of a row of published rates."""
_GIB = float(1 << 30)

MEMORY_LOOKS = {
    "weights_bytes": PartLook("Weights", "f3"),
    "gradients_bytes": PartLook("Gradients", "f2"),
    "optimizer_bytes": PartLook("Optimizer", "f4"),
    "activations_bytes": PartLook("Activations", "f1"),
    "logits_bytes": PartLook("Logits", "f5"),
    "buffers_bytes": PartLook("Buffers", "f8"),
    "overhead_bytes": PartLook("Context", "f7", 0.7),
}
"""By field of the planner's memory."""
TIME_KEYS = {
    "compute_s": "compute",
    "bubble_s": "bubble",
    "tensor_s": "tensor",
    "context_s": "context",
    "expert_s": "expert",
    "pipeline_s": "pipeline",
    "data_s": "data",
    "optimizer_s": "optimizer",
    "other_s": "fixed",
}
"""Field of the planner's timing -> key of the term in a waterfall, which has the same colour."""


class PlanPoint(NamedTuple):
    """A training on a number of devices."""

    device: str
    gpus: int
    days: float
    days_low: float
    days_high: float
    cost: float
    """In units of the currency."""
    text: str
    """All that is known of it, for the pointer."""


def frontier(points: Sequence[PlanPoint], own: PlanPoint | None, deadline: float | None, unit: Unit) -> Svg:
    """Draw cost (y) against days (x, log) with a line for each device, and the plan; bars are 80 % intervals."""
    every = [*points, own] if own else list(points)
    ends = [value for point in every for value in (point.days_low, point.days_high)] + ([deadline] if deadline else [])
    costs = [point.cost / unit.factor for point in every]
    low, high = min(ends), max(ends)
    gap = max(0.12 * (max(costs) - min(costs)), 0.06 * max(costs))
    canvas = Canvas(
        _WIDTH,
        _HEIGHT,
        (math.log2(low) - 0.15, math.log2(high) + 0.15),
        (max(0.0, min(costs) - gap), max(costs) + gap),
        Margins(44, 12, 14, 30),
    )
    if deadline:
        _late(canvas, deadline)
    canvas.y_axis(text=lambda value: f"{value:,g}")
    across = _doublings(low, high)
    canvas.x_axis([math.log2(value) for value in across], lambda value: significant(2**value, 2), "days")
    ordered = sorted(points, key=lambda point: (point.device, point.days))
    names = list(dict.fromkeys(point.device for point in points))
    for device, group in groupby(ordered, key=lambda point: point.device):
        number = names.index(device)
        look = Look(_COLOURS[number % len(_COLOURS)], number // len(_COLOURS), _SHAPES[number % len(_SHAPES)])
        _series(canvas, list(group), look, unit)
    if own:
        left, top = canvas.x(math.log2(own.days)), canvas.y(own.cost / unit.factor)
        canvas.add(
            f'<circle class="sa" fill="none" stroke-width="2" cx="{length(left)}" cy="{length(top)}" r="8">'
            f"<title>this plan: {escape(own.text)}</title></circle>"
        )
    return canvas.svg(f"Cost against days: {'; '.join(point.text for point in ordered)}")


def _late(canvas: Canvas, deadline: float) -> None:
    left = canvas.x(math.log2(deadline))
    top, foot = canvas.margins.top, canvas.height - canvas.margins.bottom
    right = canvas.width - canvas.margins.right
    canvas.add(
        f'<rect class="fg" x="{length(left)}" y="{length(top)}" width="{length(max(0.0, right - left))}"'
        f' height="{length(foot - top)}"/><path class="cur" d="M{length(left)} {length(top)}V{length(foot)}"/>'
    )
    is_right = left > canvas.width / 2
    canvas.text(left + (-5 if is_right else 5), top - 3, f"deadline {deadline:g} days", _side(is_right), "b")


def _side(is_right: bool) -> str:
    return "end" if is_right else "start"


def _doublings(low: float, high: float) -> list[float]:
    """Return round numbers of days, each about twice the one before."""
    rounds = (1, 2, 4, 7, 15, 30, 60, 120, 240, 500, 1000, 2000, 4000, 8000)
    inside = [float(value) for value in rounds if low * 0.95 <= value <= high * 1.05]
    return inside if len(inside) > 1 else ticks(low, high, 3)


def _series(canvas: Canvas, points: Sequence[PlanPoint], look: Look, unit: Unit) -> None:
    xs, ys = [math.log2(point.days) for point in points], [point.cost / unit.factor for point in points]
    for point, cost in zip(points, ys, strict=True):
        canvas.whisker(math.log2(point.days_low), math.log2(point.days_high), canvas.y(cost), look)
    canvas.line(xs, ys, look)
    for number, (point, left, top) in enumerate(zip(points, map(canvas.x, xs), map(canvas.y, ys), strict=True)):
        canvas.mark(left, top, look, 4, point.text)
        canvas.text(left, top + 20, f"{point.gpus:,}", "middle", "v")
        if number == 0:
            canvas.text(left, top - 12, point.device, "middle", "b")


class BarPart(NamedTuple):
    """A part of a bar and its key below."""

    look: PartLook
    value: float
    text: str
    """In the unit of the bar."""

    @property
    def key(self) -> Svg:
        shade = f' opacity="{self.look.opacity:g}"' if self.look.opacity < 1 else ""
        square = f'<rect class="{self.look.fill}" width="9" height="9" rx="2"{shade}/>'
        return Svg(f'<svg width="9" height="9" aria-hidden="true">{square}</svg>')


class PartsBar(NamedTuple):
    """A bar whose parts add up, with the texts of all parts."""

    parts: Sequence[BarPart]
    total: str
    svg: Svg


def time_bar(values: Sequence[tuple[str, float]], total_s: float, extent_s: float | None = None) -> PartsBar:
    """Draw the parts of an iteration, each a field of the planner's timing with its seconds.

    The width is `extent_s`, by default the whole iteration.
    """
    unit = unit_for([total_s], "s")
    column = for_column(unit, [(total_s, False)])
    parts = [
        BarPart(LOOKS[TIME_KEYS[name]], value, in_column(value, column))
        for name, value in values
        if value >= _TOLD * total_s
    ]
    total = f"{in_column(total_s, column)}{SPACE}{unit.name}"
    return PartsBar(parts, total, _bar(parts, extent_s or total_s, total, unit.name))


def memory_bar(values: Sequence[tuple[str, float]], total: float, extent: float) -> PartsBar:
    """Draw the parts of the memory, each a field of the planner's memory with its bytes, on a scale of `extent`."""
    column = Unit(_GIB, "GiB", "B", 1)
    parts = [
        BarPart(MEMORY_LOOKS[name], value, in_column(value, column)) for name, value in values if value >= _TOLD * total
    ]
    text = f"{in_column(total, column)}{SPACE}GiB"
    return PartsBar(parts, text, _bar(parts, extent, text, "GiB"))


def _bar(parts: Sequence[BarPart], extent: float, total: str, unit: str) -> Svg:
    """Draw parts side by side; a text stands in a part that has room for it in a bar of `_BAR_PX`."""
    begin, drawn = 0.0, []
    for part in parts:
        share = part.value / extent
        box = f'x="{100 * begin:.3f}%" width="{100 * share:.3f}%" height="{_BAR_HEIGHT:g}"'
        shade = f' opacity="{part.look.opacity:g}"' if part.look.opacity < 1 else ""
        drawn.append(
            f"<svg {box}><title>{escape(part.look.title)} {escape(part.text)} {unit}</title>"
            f'<rect class="{part.look.fill}"{shade} width="100%" height="{_BAR_HEIGHT:g}"/>'
            f'<rect class="edge" x="100%" width="1" height="{_BAR_HEIGHT:g}" transform="translate(-1)"/>'
            f"{_inside(part, share)}</svg>"
        )
        begin += share
    label = f"{total} = {', '.join(f'{part.look.title} {part.text}' for part in parts)}"
    return Svg(
        f'<svg class="partsbar" width="100%" height="{_BAR_HEIGHT:g}" role="img" aria-label="{escape(label)}">'
        f"{''.join(drawn)}</svg>"
    )


def _inside(part: BarPart, share: float) -> str:
    room, kind = share * _BAR_PX - 12, part.look.text
    if room >= CHARACTER_PX * max(len(part.look.title), len(part.text)):
        return (
            f'<text class="{kind}" x="6" y="15">{escape(part.look.title)}</text>'
            f'<text class="{kind}" x="6" y="30">{escape(part.text)}</text>'
        )
    if room + 6 >= CHARACTER_PX * len(part.text):
        return f'<text class="{kind}" x="50%" y="23" text-anchor="middle">{escape(part.text)}</text>'
    return ""


class Curve(NamedTuple):
    """How sure a number of bytes is."""

    quantiles: Sequence[float]
    """Bytes of evenly spaced probabilities, ascending."""
    capacity: float
    extent: float


def memory_curve(curve: Curve) -> Svg:
    """Draw the density of the memory above its bar, and the capacity of the device."""
    heights = _density(curve)
    top = max(heights, default=0.0) or 1.0
    points = [
        f"{1000 * place / (len(heights) - 1):.1f} {_CURVE_PX * (1 - height / top) + 1:.1f}"
        for place, height in enumerate(heights)
    ]
    share = 100 * curve.capacity / curve.extent
    at, is_right = f"{share:.2f}%", share > 70
    shift = -6 if is_right else 6
    return Svg(
        f'<svg class="memory-curve" width="100%" height="{_CURVE_PX + 2:g}" aria-hidden="true">'
        f'<svg viewBox="0 0 1000 {_CURVE_PX + 1:g}" width="100%" height="{_CURVE_PX + 2:g}" preserveAspectRatio="none">'
        f'<path class="area f1" d="M0 {_CURVE_PX + 1:g}L{"L".join(points)}L1000 {_CURVE_PX + 1:g}Z"/>'
        f'<path class="l s1" vector-effect="non-scaling-stroke" d="M{"L".join(points)}"/></svg>'
        f'<line class="sb" x1="{at}" x2="{at}" y1="0" y2="{_CURVE_PX + 2:g}" stroke-width="2"/>'
        f'<text class="b" x="{at}" dx="{shift}" y="11" text-anchor="{_side(is_right)}">'
        f"{curve.capacity / _GIB:g}{SPACE}GiB capacity</text></svg>"
    )


def _density(curve: Curve) -> list[float]:
    """Return the density at even places of the scale, from quantiles; smoothed over a fiftieth of the scale."""
    width = curve.extent / 50
    places = [curve.extent * place / _CURVE_POINTS for place in range(_CURVE_POINTS + 1)]
    return [sum(math.exp(-0.5 * ((at - each) / width) ** 2) for each in curve.quantiles) for at in places]


def interval(low: float, middle: float, high: float, extent: tuple[float, float], mark: float | None) -> Svg:
    """Draw a time with its 80 % interval in a cell of a table, and the deadline as a dashed line."""
    canvas = Canvas(150, 16, extent, margins=Margins(3, 3, 2, 2))
    if mark is not None and extent[0] <= mark <= extent[1]:
        canvas.add(f'<path class="cur" d="M{length(canvas.x(mark))} 1V15"/>')
    canvas.whisker(max(low, extent[0]), min(high, extent[1]), 8, Look(1))
    canvas.mark(canvas.x(middle), 8, Look(1))
    return canvas.svg(f"{significant(low)} to {significant(high)}", "cell")


def share_bar(share: float, label: str) -> Svg:
    """Draw a share of the capacity, which a line marks, in a cell of a table."""
    canvas = Canvas(76, 16, (0, max(1.0, share)), margins=Margins(1, 3, 3, 3))
    end = canvas.x(share)
    fill = "fb" if share > 1 else "f1"
    canvas.add('<rect class="fg" x="1" y="3" width="72" height="10"/>')
    canvas.add(f'<rect class="{fill}" opacity=".8" x="1" y="3" width="{length(end - 1)}" height="10"/>')
    canvas.add(f'<path class="sb" stroke-width="2" d="M{length(canvas.x(1))} 1V15"/>')
    return canvas.svg(label, "cell")


class Rate(NamedTuple):
    """TFLOP/s per GPU of a training as predicted, and as its authors printed it."""

    name: str
    predicted: float
    spread: float
    """Relative error that 80 % of such predictions stay within."""
    published: float | None = None


def against_published(rates: Sequence[Rate]) -> Svg:
    """Draw predicted rates with their 80 % intervals, and published ones beside them."""
    ends = [end for rate in rates for end in (rate.predicted / (1 + rate.spread), rate.predicted * (1 + rate.spread))]
    ends += [rate.published for rate in rates if rate.published]
    room = 0.08 * (max(ends) - min(ends)) or 0.05 * max(ends)
    height = 34 + _RATE_PX * len(rates)
    canvas = Canvas(430, height, (min(ends) - room, max(ends) + room), margins=Margins(122, 16, 4, 24))
    canvas.x_axis(text=lambda value: f"{value:,g}", has_grid=True)
    for number, rate in enumerate(rates):
        _rate(canvas, rate, 24.0 + _RATE_PX * number)
    return canvas.svg("; ".join(map(_rate_text, rates)))


def _rate(canvas: Canvas, rate: Rate, top: float) -> None:
    canvas.text(114, top + 4, rate.name, "end", "v" if rate.published else "b")
    canvas.whisker(rate.predicted / (1 + rate.spread), rate.predicted * (1 + rate.spread), top, Look(1))
    canvas.mark(canvas.x(rate.predicted), top, Look(1), 4, f"predicted {significant(rate.predicted)} TFLOP/s per GPU")
    canvas.text(canvas.x(rate.predicted), top - 8, significant(rate.predicted), "middle", "b")
    if rate.published:
        look = Look(7, shape=SQUARE)
        canvas.mark(canvas.x(rate.published), top, look, 4, f"published {significant(rate.published)} TFLOP/s per GPU")
        canvas.text(canvas.x(rate.published), top + 17, significant(rate.published), "middle", "v")


def _rate_text(rate: Rate) -> str:
    printed = f", published {significant(rate.published)}" if rate.published else ""
    return f"{rate.name}: {significant(rate.predicted)}{printed} TFLOP/s per GPU"
