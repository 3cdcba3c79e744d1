"""Parallel coordinates: each run as a line across axes of settings and results, and selections of ranges on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.fields import field_heading
from parlab.charts.format import Unit, field_value, in_sentence, significant, unit_for
from parlab.charts.measures import MEASURES, Measure
from parlab.charts.points import RunPoint, in_order, is_number
from parlab.charts.theme import Drawing, Table

from .compare import style

MAX_AXES = 12
"""More parallel axes are not readable."""
MAX_NUMBERS = 7
"""Axes for results; settings get the others."""
MAX_LEGEND = 20
"""A legend of more lines would be larger than the figure; hovering names them."""
TOLERANCE = 1e-9
UNSELECTED = 0.12
"""Opacity of runs outside of the selection."""


class Brush(NamedTuple):
    """A selected range of an axis, both ends included; of an axis of texts, from one value to another."""

    axis: str
    low: str
    high: str

    @property
    def text(self) -> str:
        """The range in an address: `train.micro_batch_size:1..4`."""
        return f"{self.axis}:{self.low}..{self.high}"


def brush_of(text: str) -> Brush | None:
    """Read the range of an address; None if it is not one."""
    axis, _, ends = text.partition(":")
    low, dots, high = ends.partition("..")
    return Brush(axis, low, high) if axis and dots and low and high else None


class _Axis(NamedTuple):
    """A vertical axis: where each run crosses it, from 0 to 1, and the labels of its ticks."""

    name: str
    title: str
    low: float
    """The value at the lower end; of texts 0."""
    high: float
    """The value at the upper end; of texts the place of the last."""
    labels: list[str]
    """Texts by place; empty for an axis of numbers."""
    heights: list[float | None]
    texts: list[str]
    ticks: list[tuple[float, str]]


def _axes(points: Sequence[RunPoint]) -> tuple[list[_Axis], int]:
    """Return the axes that are drawn, and the number of settings without one."""
    settings = _varied(points)
    numbers = {name: measure for name, measure in MEASURES.items() if _differs(measure, points)}
    measures = list(numbers)[:MAX_NUMBERS]
    drawn = _most_informative(settings, points, MAX_AXES - len(measures))
    # The first measure, which sets the colour, is the last axis.
    ordered = [*measures[1:], *measures[:1]]
    axes = [_setting(name, points) for name in drawn] + [_measured(name, numbers[name], points) for name in ordered]
    return axes, len(settings) - len(drawn)


def _height(axis: _Axis, text: str) -> float | None:
    """Return where a value stands on an axis; None if it is not one of its values."""
    if axis.labels:
        return axis.labels.index(text) / max(1, len(axis.labels) - 1) if text in axis.labels else None
    try:
        return (float(text) - axis.low) / (axis.high - axis.low)
    except ValueError:
        return None


def _extents(axes: Sequence[_Axis], brushes: Sequence[Brush]) -> list[tuple[int, float, float]]:
    """Return the selected part of each axis with a selection: place, lower and upper end."""
    by_name = {axis.name: place for place, axis in enumerate(axes)}
    extents = []
    for brush in brushes:
        if (place := by_name.get(brush.axis)) is not None:
            ends = [_height(axes[place], end) for end in (brush.low, brush.high)]
            heights = [end for end in ends if end is not None]
            if len(heights) == 2:
                extents.append((place, min(heights), max(heights)))
    return extents


def selected(points: Sequence[RunPoint], brushes: Sequence[Brush]) -> list[bool]:
    """Return which points lie within all selected ranges; a point without the value does not."""
    axes, _ = _axes(points)
    chosen = [True] * len(points)
    for place, low, high in _extents(axes, brushes):
        for index, height in enumerate(axes[place].heights):
            is_inside = height is not None and low - TOLERANCE <= height <= high + TOLERANCE
            chosen[index] = chosen[index] and is_inside
    return chosen


def axis_titles(points: Sequence[RunPoint]) -> list[tuple[str, str, list[str]]]:
    """Return name, title and, for texts, the values of each axis, for fields that select a range."""
    return [(axis.name, axis.title, axis.labels) for axis in _axes(points)[0]]


def parallel(points: Sequence[RunPoint], names: Sequence[str], brushes: Sequence[Brush] = ()) -> Drawing:
    """Draw each run as a line across parallel axes: differing settings on the left, results on the right.

    Runs outside of the selected ranges are faint.
    """
    axes, left_out = _axes(points)
    if len(points) < 2 or len(axes) < 2:
        return theme.missing("Parallel coordinates", "needs runs that differ in at least two fields or results")
    chosen = selected(points, brushes)
    drawing = go.Figure(
        layout=theme.layout(
            title="Parallel coordinates",
            subtitle=f"drag along an axis to select runs{_colour_note(axes)}",
            x="",
            y="",
            xaxis={
                "tickmode": "array", "tickvals": list(range(len(axes))), "ticks": "", "side": "bottom",
                "ticktext": [theme.plain(axis.title) for axis in axes], "range": [-0.3, len(axes) - 0.35],
                "showline": False,
            },
            yaxis={"visible": False, "range": [-0.06, 1.06]},
            dragmode=False,
            meta={"axes": [[axis.name, axis.low, axis.high, axis.labels] for axis in axes]},
        )
    )  # fmt: skip
    for place, axis in enumerate(axes):
        _add_axis(drawing, place, axis)
    for place, low, high in _extents(axes, brushes):
        band = {"fillcolor": theme.faint(theme.BLUE, 0.25), "line": {"color": theme.BLUE, "width": 1}}
        ends = max(-0.01, low - 0.01), min(1.01, high + 0.01)
        drawing.add_shape(type="rect", x0=place - 0.05, x1=place + 0.05, y0=ends[0], y1=ends[1], **band)
    for place, (point, name) in enumerate(zip(points, names, strict=True)):
        drawing.add_trace(_run_line(place, point, name, axes, is_selected=chosen[place]))
    drawing.update_layout(showlegend=not _is_coloured(axes) and len(points) <= MAX_LEGEND)
    caption = (
        f"{left_out} more {'field differs' if left_out == 1 else 'fields differ'}; the table below lists all."
        if left_out
        else "A gap means that the value was not measured."
    )
    if not all(chosen):
        caption = f"{sum(chosen)} of {len(chosen)} runs are selected. {caption}"
    return Drawing(drawing, caption, _table(points, names, axes))


def _table(points: Sequence[RunPoint], names: Sequence[str], axes: Sequence[_Axis]) -> Table:
    """Return the values on the axes, and the kinds of the results that files state."""
    stated = [axis for axis in axes if axis.name in MEASURES] if any(point.is_printed for point in points) else []
    header = ["run", *(axis.title for axis in axes), *(f"kind of {axis.title}" for axis in stated)]
    rows: list[list[Any]] = []
    for place, (point, name) in enumerate(zip(points, names, strict=True)):
        kinds = ["" if axis.heights[place] is None else point.kind_of(axis.name) for axis in stated]
        rows.append([name, *(axis.texts[place] for axis in axes), *kinds])
    return Table(header, rows)


def _is_coloured(axes: Sequence[_Axis]) -> bool:
    """Whether the last axis is a result, which sets the colour of the lines."""
    return axes[-1].name in MEASURES


def _colour_note(axes: Sequence[_Axis]) -> str:
    return f"; dark: high {in_sentence(axes[-1].title)}" if _is_coloured(axes) else ""


def _colour(axes: Sequence[_Axis], place: int) -> str:
    """Return the colour of a run by its place on the last axis; grey without a value."""
    height = axes[-1].heights[place]
    if height is None:
        return theme.GREY
    last = len(theme.SEQUENCE) - 1
    return theme.SEQUENCE[max(0, min(last, int(height * len(theme.SEQUENCE))))]


def _add_axis(drawing: go.Figure, place: int, axis: _Axis) -> None:
    drawing.add_shape(type="line", x0=place, x1=place, y0=0, y1=1, line={"color": theme.GREY, "width": 1})
    for height, text in axis.ticks:
        drawing.add_annotation(
            name="axis value",
            x=place,
            y=height,
            text=theme.plain(text),
            hovertext=theme.plain(text),
            showarrow=False,
            xanchor="left",
            xshift=4,
            font={"size": 11},
        )


def _run_line(place: int, point: RunPoint, name: str, axes: Sequence[_Axis], *, is_selected: bool) -> go.Scatter:
    look = style(place)
    colour = _colour(axes, place) if _is_coloured(axes) else look.colour
    texts = [f"{axis.title}: {axis.texts[place]}" for axis in axes]
    return go.Scatter(
        x=list(range(len(axes))),
        y=[axis.heights[place] for axis in axes],
        name=theme.plain(name),
        mode="lines+markers",
        opacity=1.0 if is_selected else UNSELECTED,
        line={"color": colour, "dash": "solid" if _is_coloured(axes) else look.dash, "width": 2},
        marker={"symbol": look.symbol, "size": 8},
        hovertext=[theme.plain(f"{name} ({point.state})") + "<br>" + theme.plain(text) for text in texts],
        hoverinfo="text",
    )


def _varied(points: Sequence[RunPoint]) -> list[str]:
    names = dict.fromkeys(name for point in points for name in point.values)
    return [name for name in names if len({repr(point.values.get(name)) for point in points}) > 1]


def _most_informative(names: Sequence[str], points: Sequence[RunPoint], limit: int) -> list[str]:
    """Return the settings that most runs have and, among these, those with the most values."""

    def worth(name: str) -> tuple[int, int]:
        values = [point.values.get(name) for point in points]
        return sum(value is not None for value in values), len({repr(value) for value in values})

    best = sorted(names, key=worth, reverse=True)[:limit]
    return [name for name in names if name in best]


def _differs(measure: Measure, points: Sequence[RunPoint]) -> bool:
    return len({measure.value(point) for point in points} - {None}) > 1


def _setting(name: str, points: Sequence[RunPoint]) -> _Axis:
    values = [point.values.get(name) for point in points]
    distinct = in_order(value for value in values if value is not None)
    if all(is_number(value) for value in distinct) and len(distinct) > 1:
        low, high = float(distinct[0]), float(distinct[-1])
        heights = [None if v is None else (float(v) - low) / (high - low) for v in values]
        texts = [field_value(v) for v in values]
        return _Axis(name, field_heading(name), low, high, [], heights, texts, _ends(distinct, low, high))
    places = {repr(value): n / max(1, len(distinct) - 1) for n, value in enumerate(distinct)}
    ticks = [(places[repr(value)], field_value(value)) for value in distinct] if len(distinct) <= 8 else []
    labels, texts = [field_value(value) for value in distinct], [field_value(v) for v in values]
    last = float(max(1, len(distinct) - 1))
    return _Axis(name, field_heading(name), 0.0, last, labels, [places.get(repr(v)) for v in values], texts, ticks)


def _ends(values: Sequence[Any], low: float, high: float) -> list[tuple[float, str]]:
    labelled = values if len(values) <= 6 else [values[0], values[-1]]
    return [((float(value) - low) / (high - low), field_value(value)) for value in labelled]


def _measured(name: str, measure: Measure, points: Sequence[RunPoint]) -> _Axis:
    values = [measure.value(point) for point in points]
    measured = [value for value in values if value is not None]
    low, high = min(measured), max(measured)
    unit = Unit(1.0, measure.unit, measure.unit) if measure.is_as_it_is else unit_for(measured, measure.unit)
    ends = [(0.0, points[values.index(low)], low), (1.0, points[values.index(high)], high)]
    heights = [None if value is None else (value - low) / (high - low) for value in values]
    return _Axis(
        name,
        f"{measure.title} ({unit.name})" if unit.name else measure.title,
        low,
        high,
        [],
        heights,
        [measure.text_of(point) for point in points],
        [(height, significant(end / unit.factor, measure.digits(point, end))) for height, point, end in ends],
    )
