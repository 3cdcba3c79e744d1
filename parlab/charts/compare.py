"""Comparison of runs of any experiments: overlaid curves, and parallel coordinates of settings and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from . import theme
from .curves import Curve, rounded
from .format import field_title, field_value, unit_for
from .measures import MEASURES, Measure
from .points import RunPoint, in_order, is_number
from .theme import Drawing, Table

MAX_AXES = 12
"""More parallel axes are not readable."""
MAX_NUMBERS = 7
"""Axes for results; settings get the others."""
MAX_LEGEND = 20
"""A legend of more lines would be larger than the figure; hovering names them."""
OVER = {"steps": "Step", "time": "Time since the first point (s)", "tokens": "Tokens"}
"""Choice of the horizontal axis -> its title."""
PALETTE = [theme.BLUE, theme.VERMILLION, theme.GREEN, theme.PURPLE, theme.ORANGE, theme.SKY, theme.GREY, theme.YELLOW]


class Line(NamedTuple):
    """A run in a figure of several."""

    name: str
    curve: Curve
    start: float | None = None
    """Time of the first point of the whole series, if the curve is a part of it."""
    tokens_per_step: float | None = None
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Smallest and largest values at the points of a mean of several runs."""


class ComparedSeries(NamedTuple):
    """A series for the comparison of runs."""

    title: str
    unit: str
    metrics: tuple[str, ...]
    """Names of stored metrics; the first that a run has is used."""


CURVES = {
    "step-time": ComparedSeries("Step time", "s", ("step_time_s",)),
    "loss": ComparedSeries("Loss", "", ("loss", "lm_loss")),
    "memory": ComparedSeries("Memory", "B", ("memory_bytes", "gpu_mem_bytes")),
    "samples": ComparedSeries("Throughput", "samples/s", ("samples_per_s",)),
    "tflops": ComparedSeries("Compute per GPU", "TFLOP/s", ("tflops_per_gpu",)),
    "utilisation": ComparedSeries("GPU utilisation", "%", ("gpu_util_pct",)),
}


def style(place: int) -> theme.Style:
    """Style the run at a place: colour, then symbol and dash, so that twenty runs can be told apart."""
    return theme.Style(
        PALETTE[place % len(PALETTE)],
        theme.SYMBOLS[place % len(theme.SYMBOLS)],
        theme.DASHES[(place // len(PALETTE)) % len(theme.DASHES)],
    )


def curves(
    kind: str,
    lines: Mapping[int, Line],
    *,
    over: str = "steps",
    is_log: bool = False,
    middle: Sequence[float] = (),
) -> Drawing:
    """Draw one curve per run, by its place among the runs, against an axis of OVER.

    `middle` are the medians of the whole curves if these are parts of them, since both share an axis.
    """
    compared = CURVES[kind]
    present = {
        place: line
        for place, line in lines.items()
        if len(line.curve.values) and (over != "tokens" or line.tokens_per_step)
    }
    if not present:
        sizes = " and a number of tokens per step" if over == "tokens" else ""
        return theme.missing(compared.title, f"none of these runs has this series{sizes}")
    unit = unit_for(middle or [v for line in present.values() for v in line.curve.values], compared.unit)
    factor, name = (unit.factor, unit.name) if compared.unit in ("s", "B", "samples/s") else (1.0, compared.unit)
    drawing = go.Figure(
        layout=theme.layout(
            title=compared.title,
            subtitle="one line per run: its slowest rank, or the one with most memory",
            x=OVER[over],
            y=f"{compared.title} ({name})" if name else compared.title,
            yaxis={"type": "log"} if is_log else {} if kind == "loss" else {"rangemode": "tozero"},
        )
    )
    for place, line in present.items():
        look = style(place)
        x = _positions(line, over)
        if line.band is not None:
            _add_band(drawing, x, line.band, look.colour, factor)
        drawing.add_trace(
            go.Scatter(
                x=x,
                y=rounded(line.curve.values, factor),
                name=theme.plain(line.name),
                mode="lines+markers" if len(line.curve.values) <= 60 else "lines",
                line={"color": look.colour, "dash": look.dash, "width": 1.5},
                marker={"symbol": look.symbol, "size": 5},
                hovertemplate=f"{theme.plain(line.name)}<br>%{{x}}: %{{y}} {name}<extra></extra>",
            )
        )
    drawing.update_layout(showlegend=len(present) <= MAX_LEGEND)
    rows = [
        [line.name, int(step), float(time), float(value)]
        for line in present.values()
        for step, time, value in zip(line.curve.steps, line.curve.times, line.curve.values, strict=True)
    ]
    return Drawing(
        drawing,
        _how_many(len(present), len(lines)),
        Table(["run", "step", "unix_time_s", kind.replace("-", "_")], rows),
    )


def _how_many(present: int, total: int) -> str:
    absent = total - present
    if absent:
        return f"{absent} of {total} runs {'does' if absent == 1 else 'do'} not have this series."
    return f"{present} runs."


def _positions(line: Line, over: str) -> list[float]:
    if over == "time":
        start = float(line.curve.times[0]) if line.start is None else line.start
        return [round(float(time) - start, 3) for time in line.curve.times]
    factor = (line.tokens_per_step or 0) if over == "tokens" else 1
    return [int(step) * factor for step in line.curve.steps]


def _add_band(
    drawing: go.Figure, x: Sequence[float], band: tuple[Sequence[float], Sequence[float]], colour: str, factor: float
) -> None:
    """Fill the range between the smallest and the largest value."""
    for place, values in enumerate(band):
        drawing.add_trace(
            go.Scatter(
                x=x,
                y=rounded(values, factor),
                mode="lines",
                line={"width": 0, "color": colour},
                fill="tonexty" if place else None,
                fillcolor=theme.faint(colour),
                hoverinfo="skip",
                showlegend=False,
            )
        )


class _Axis(NamedTuple):
    """A vertical axis: where each run crosses it, from 0 to 1, and the labels of its ticks."""

    title: str
    heights: list[float | None]
    texts: list[str]
    ticks: list[tuple[float, str]]


def parallel(points: Sequence[RunPoint], names: Sequence[str]) -> Drawing:
    """Draw each run as a line across parallel axes: differing settings on the left, results on the right."""
    settings = _varied(points)
    numbers = [measure for measure in MEASURES.values() if _differs(measure, points)][:MAX_NUMBERS]
    drawn = _most_informative(settings, points, MAX_AXES - len(numbers))
    axes = [_setting(name, points) for name in drawn] + [_measured(measure, points) for measure in numbers]
    if len(points) < 2 or len(axes) < 2:
        return theme.missing("Parallel coordinates", "needs runs that differ in at least two fields or results")
    left_out = len(settings) - len(drawn)
    drawing = go.Figure(
        layout=theme.layout(
            title="Parallel coordinates",
            subtitle="each line is a run, each axis spans the values of these runs",
            x="",
            y="",
            xaxis={
                "tickmode": "array", "tickvals": list(range(len(axes))), "ticks": "", "side": "bottom",
                "ticktext": [theme.plain(axis.title) for axis in axes], "range": [-0.3, len(axes) - 0.6],
                "showline": False,
            },
            yaxis={"visible": False, "range": [-0.06, 1.06]},
        )
    )  # fmt: skip
    for place, axis in enumerate(axes):
        drawing.add_shape(type="line", x0=place, x1=place, y0=0, y1=1, line={"color": theme.GREY, "width": 1})
        for height, text in axis.ticks:
            drawing.add_annotation(
                name="on lines",
                x=place,
                y=height,
                text=theme.plain(text),
                showarrow=False,
                xanchor="left",
                xshift=4,
                font={"size": 11},
            )
    for place, (point, name) in enumerate(zip(points, names, strict=True)):
        drawing.add_trace(_run_line(place, point, name, axes))
    drawing.update_layout(showlegend=True)
    header = ["run", *(axis.title for axis in axes)]
    rows: list[list[Any]] = [[name, *(axis.texts[n] for axis in axes)] for n, name in enumerate(names)]
    caption = (
        f"{left_out} more {'field differs' if left_out == 1 else 'fields differ'}; the table above lists all."
        if left_out
        else "A gap means that the value was not measured."
    )
    return Drawing(drawing, caption, Table(header, rows))


def _run_line(place: int, point: RunPoint, name: str, axes: Sequence[_Axis]) -> go.Scatter:
    look = style(place)
    texts = [f"{axis.title}: {axis.texts[place]}" for axis in axes]
    return go.Scatter(
        x=list(range(len(axes))),
        y=[axis.heights[place] for axis in axes],
        name=theme.plain(name),
        mode="lines+markers",
        line={"color": look.colour, "dash": look.dash, "width": 2},
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
        return _Axis(field_title(name), heights, [field_value(v) for v in values], _ends(distinct, low, high))
    places = {repr(value): n / max(1, len(distinct) - 1) for n, value in enumerate(distinct)}
    ticks = [(places[repr(value)], field_value(value)[:16]) for value in distinct] if len(distinct) <= 8 else []
    return _Axis(field_title(name), [places.get(repr(v)) for v in values], [field_value(v) for v in values], ticks)


def _ends(values: Sequence[Any], low: float, high: float) -> list[tuple[float, str]]:
    labelled = values if len(values) <= 6 else [values[0], values[-1]]
    return [((float(value) - low) / (high - low), field_value(value)) for value in labelled]


def _measured(measure: Measure, points: Sequence[RunPoint]) -> _Axis:
    values = [measure.value(point) for point in points]
    measured = [value for value in values if value is not None]
    low, high = min(measured), max(measured)
    heights = [None if value is None else (value - low) / (high - low) for value in values]
    return _Axis(
        measure.title,
        heights,
        [measure.text_of(point) for point in points],
        [(0.0, measure.text_of(points[values.index(low)])), (1.0, measure.text_of(points[values.index(high)]))],
    )
