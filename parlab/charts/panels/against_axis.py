"""A number of runs against the swept axis: a dot with its p10 to p90 range each, lines between runs of one series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from parlab.charts.axes import GPUS, SIZE_AXES
from parlab.charts.format import exact_quantity
from parlab.charts.points import devices, in_order, is_number
from parlab.charts.svg import CHARACTER_PX, Canvas, Margins, Svg, length, marker, ticks

from .frame import Runs, Size, run_group, shortened, spread_apart
from .shown import ShownRun, ends

MAX_LABELLED = 6
"""More lines cannot be named at their ends."""
DODGE = 5.0
KEY = 12
"""Room for the colour of a line before its name (px)."""


class Axis(NamedTuple):
    """The axis that answers the question: the numbers of devices, or a swept field."""

    field: str
    values: list[Any]

    def value(self, run: ShownRun) -> Any:
        return run.point.gpus if self.field == GPUS else run.values.get(self.field)

    def text(self, value: Any, runs: Sequence[ShownRun]) -> str:
        if self.field == GPUS:
            return f"{value:,}"
        return next((run.texts.get(self.field, "") for run in runs if run.values.get(self.field) == value), str(value))

    def place(self, value: Any) -> float:
        """Return where a value lies: numbers of devices by their logarithm, others side by side."""
        return math.log2(value) if self.field == GPUS else float(self.values.index(value))


def axis_of(runs: Runs) -> Axis | None:
    """Choose the axis: the number of devices where it varies, else the last swept number, else the first field."""
    measured = runs.measured
    counts = {run.point.gpus for run in measured}
    if len(counts) > 1 and None not in counts:
        return Axis(GPUS, sorted(count for count in counts if count))
    fields = runs.fields
    numeric = [field for field in fields if all(is_number(run.values.get(field)) for run in measured)]
    field = next(iter([*reversed(numeric), *fields]), "")
    present = [run for run in measured if field in run.values]
    return Axis(field, in_order(run.values[field] for run in present)) if field and present else None


def axis_note(runs: Runs) -> str:
    """Return what the axis shows where its values do not say it."""
    axis = axis_of(runs) if runs.measured else None
    return " by number of ranks" if axis is not None and axis.field == GPUS else ""


def needs(runs: Runs) -> str:
    """Return why there is nothing to draw; empty where there is."""
    if not runs.measured:
        return "no run has a speed"
    axis = axis_of(runs)
    return "" if axis and len(axis.values) > 1 else "needs runs that differ in a field"


def draw(runs: Runs, size: Size) -> Svg:
    axis = axis_of(runs)
    assert axis is not None
    lines = _lines(runs, axis)
    names = [_line_name(members, axis) for members in lines.values()]
    is_labelled = 1 < len(lines) <= MAX_LABELLED
    longest = max(map(len, names)) if is_labelled else 0
    canvas = _canvas(runs, axis, size, min(longest * CHARACTER_PX + 16 + KEY, size.width / 3) if longest else 14)
    if axis.field == GPUS:
        _ideal(canvas, runs, axis)
    tops = []
    for place, members in enumerate(lines.values()):
        tops.append(_line(canvas, runs, axis, members, _shift(place, len(lines), canvas, axis)))
    if is_labelled:
        looks = [members[0].look for members in lines.values()]
        for top, name, look in zip(spread_apart([top for _, top in tops]), names, looks, strict=True):
            left = size.width - canvas.margins.right + 6
            canvas.add(f'<path class="l {look.stroke}" d="M{length(left)} {length(top)}h{KEY - 2}"/>')
            canvas.text(left + KEY + 3, top + 3.5, shortened(name, size.width - left - KEY), kind="v")
    return canvas.svg(f"{runs.measure.title} of {len(runs.measured)} runs")


def _lines(runs: Runs, axis: Axis) -> dict[tuple[str, ...], list[ShownRun]]:
    """Return the runs of each line: those that differ in the axis alone."""
    lines: dict[tuple[str, ...], list[ShownRun]] = {}
    order = sorted(runs.measured, key=lambda run: run.number)
    for run in order:
        if axis.value(run) is None:
            continue
        others = [
            text
            for field, text in run.texts.items()
            if field != axis.field and not (axis.field == GPUS and (field in SIZE_AXES or field == GPUS))
        ]
        lines.setdefault(tuple(others), []).append(run)
    if axis.field == GPUS and all(len(members) == 1 for members in lines.values()):
        return {(): order}
    return lines


def _line_name(members: Sequence[ShownRun], axis: Axis) -> str:
    first = members[0]
    texts = [text for field, text in first.texts.items() if field != axis.field]
    return " \N{MIDDLE DOT} ".join(texts)


def _canvas(runs: Runs, axis: Axis, size: Size, right: float) -> Canvas:
    """Return a figure whose values start at zero, with its axes."""
    factor = runs.unit.factor
    _, high = ends([runs.spread(run) for run in runs.measured])
    values = ticks(0, high / factor, 4)
    if len(values) > 1 and values[-1] < high / factor:
        values.append(values[-1] + values[1] - values[0])
    texts = {value * factor: f"{value:g}" if value < 1e4 else f"{value:,.0f}" for value in values}
    left = max(map(len, texts.values())) * CHARACTER_PX + 10
    places = [axis.place(value) for value in axis.values]
    pad = 0.5 if axis.field != GPUS else max(0.25, (max(places) - min(places)) * 0.06)
    top = max(values[-1] * factor, high)
    canvas = Canvas(
        size.width, size.height, (min(places) - pad, max(places) + pad), (0, top), Margins(left, right, 10, 24)
    )
    canvas.y_axis(list(texts), lambda value: texts[value]).x_axis([])
    _name_places(canvas, runs, axis, places)
    return canvas


def _name_places(canvas: Canvas, runs: Runs, axis: Axis, places: Sequence[float]) -> None:
    """Write the values below the axis, those that do not cover each other."""
    room = canvas.x(places[1]) - canvas.x(places[0]) if len(places) > 1 else canvas.width
    last = -math.inf
    for value, place in zip(axis.values, places, strict=True):
        text = shortened(axis.text(value, runs.measured), max(room - 6, 30))
        at = canvas.x(place)
        if at - last >= len(text) * CHARACTER_PX + 4:
            canvas.text(at, canvas.height - 9, text, "middle")
            last = at


def _shift(place: int, lines: int, canvas: Canvas, axis: Axis) -> float:
    """Return how far the marks of a line stand beside their place, so that ranges do not cover each other."""
    if axis.field == GPUS:
        return 0.0
    room = (canvas.width - canvas.margins.left - canvas.margins.right) / max(1, len(axis.values))
    step = min(DODGE, room * 0.7 / max(1, lines))
    return (place - (lines - 1) / 2) * step


def _line(canvas: Canvas, runs: Runs, axis: Axis, members: Sequence[ShownRun], shift: float) -> tuple[float, float]:
    """Draw the runs of a line; returns where it ends."""
    by_place: dict[float, list[ShownRun]] = {}
    for run in members:
        by_place.setdefault(axis.place(axis.value(run)), []).append(run)
    middle = {place: fmean(_value(runs, run) for run in own) for place, own in sorted(by_place.items())}
    look = members[0].look
    if len(middle) > 1:
        points = "L".join(
            f"{length(canvas.x(place) + shift)} {length(canvas.y(value))}" for place, value in middle.items()
        )
        canvas.add(f'<path class="group l {look.stroke}" opacity=".55" d="M{points}"/>')
    for place, own in by_place.items():
        for run in own:
            canvas.add(_mark(canvas, runs, run, canvas.x(place) + shift))
    end = list(middle)[-1]
    return canvas.x(end) + shift, canvas.y(middle[end])


def _value(runs: Runs, run: ShownRun) -> float:
    return runs.measure.value(run.point) or 0.0


def _mark(canvas: Canvas, runs: Runs, run: ShownRun, left: float) -> str:
    spread = runs.spread(run)
    assert spread is not None
    bar = ""
    if spread.p10 is not None and spread.p90 is not None:
        bar = (
            f'<path class="wh {run.look.stroke}" opacity=".6"'
            f' d="M{length(left)} {length(canvas.y(spread.p10))}V{length(canvas.y(spread.p90))}"/>'
        )
    title = f"{run.name}: {exact_quantity(spread.median, runs.measure.unit)}"
    return run_group(run, bar + marker(left, canvas.y(spread.median), run.look, 4, title))


def _ideal(canvas: Canvas, runs: Runs, axis: Axis) -> None:
    """Draw the speed that grows with the number of devices, from the best run of the fewest."""
    if runs.measure.kind != "rate":
        return
    fewest = axis.values[0]
    start = max(_value(runs, run) for run in runs.measured if axis.value(run) == fewest)
    top = canvas.y_range[1]
    points = []
    for step in range(41):
        count = fewest * (axis.values[-1] / fewest) ** (step / 40)
        value = start * count / fewest
        if value <= top:
            points.append(f"{length(canvas.x(math.log2(count)))} {length(canvas.y(value))}")
    title = f"ideal: proportional to the number of {devices([run.point for run in runs.measured])}"
    canvas.add(f'<path class="ideal" d="M{"L".join(points)}"><title>{title}</title></path>')
