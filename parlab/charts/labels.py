"""Names at the ends of lines instead of a legend, and the best point of a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import plotly.graph_objects as go

from . import theme

MAX_LABELLED = 6
"""More lines than this have a legend."""
MAX_LENGTH = 34
"""A longer name would leave too little room for the lines."""
MAX_POINTS, MAX_POINT_LENGTH = 12, 48
"""More series of a single point have a legend, also those with longer names; the names stand inside the plot."""
LINE_END, BEST, BOUND = "line end", "best", "bound"
"""Names of annotations; static/js/figures/figures.js replaces the labels of narrow figures by a legend."""
NUMBERED = {"textposition": "inside", "insidetextanchor": "start", "textangle": 0, "constraintext": "none"}
"""Text at the foot of bars that names them instead of a legend."""
_CHARACTER_PX, _ROW_PX, _PLOT_PX = 6.4, 14.0, 280.0


class _End(NamedTuple):
    """The last point of a line; the height is a share of the axis."""

    trace: Any
    x: Any
    y: float
    height: float


def label_ends(drawing: go.Figure) -> None:
    """Write names at the ends of a few lines, or beside series of single points, and hide the legend."""
    traces = list(drawing.data)
    lines, points = _nameable(traces), _nameable_points(traces)
    if not lines and not points:
        return
    is_log = drawing.layout.yaxis.type == "log"
    low, high = _reach(traces, is_log)
    ends = sorted((_end(trace, low, high, is_log) for trace in lines or points), key=lambda end: end.height)
    longest = max(len(str(end.trace.name)) for end in ends)
    drawing.update_layout(showlegend=False)
    if lines:
        drawing.update_layout(margin={"r": 16 + math.ceil(_CHARACTER_PX * longest)})
    across = _across(drawing, traces)
    has_log_x = drawing.layout.xaxis.type == "log"
    names = []
    for end, shift in zip(ends, _shifts([end.height * _PLOT_PX for end in ends]), strict=True):
        is_left = not lines and across(end.x) > 0.5
        x, y = math.log10(end.x) if has_log_x else end.x, math.log10(end.y) if is_log else end.y
        names.append(_label(end.trace.name, (x, y), -10 if is_left else 8, shift))
    _annotate(drawing, names)


def _label(name: str, place: tuple[Any, float], across: int, up: float) -> dict[str, Any]:
    """Return the annotation that names a trace at a place, shifted by pixels; to the left, it ends there."""
    side = "right" if across < 0 else "left"
    return {
        "name": LINE_END,
        "x": place[0],
        "y": place[1],
        "text": name,
        "showarrow": False,
        "xanchor": side,
        "xshift": across,
        "yshift": up,
        "align": side,
        "font": {"size": 12},
    }


def _annotate(drawing: go.Figure, names: Sequence[dict[str, Any]]) -> None:
    # At once: Plotly checks all annotations again with each that is added.
    drawing.layout.annotations = [*drawing.layout.annotations, *names]


def _nameable(traces: Sequence[Any]) -> list[Any]:
    """Return the lines if all traces are lines that can be named at their ends; else nothing."""
    shown = [trace for trace in traces if trace.showlegend is not False]
    lines = [trace for trace in shown if "lines" in (trace.mode or "") and trace.name and len(trace.x or ()) > 1]
    others = [trace for trace in shown if trace not in lines and trace.name != "OOM"]
    fits = 1 < len(lines) <= MAX_LABELLED and max(len(str(trace.name)) for trace in lines) <= MAX_LENGTH
    return lines if fits and not others else []


def _nameable_points(traces: Sequence[Any]) -> list[Any]:
    """Return the series if all have a single point at a number, beside lines without markers; else nothing."""
    shown = [trace for trace in traces if trace.showlegend is not False and trace.name]
    points = [trace for trace in shown if trace.mode == "markers" and len(trace.x or ()) == 1]
    others = [trace for trace in shown if trace not in points and trace.mode != "lines"]
    fits = 1 < len(points) <= MAX_POINTS and max(len(str(trace.name)) for trace in points) <= MAX_POINT_LENGTH
    has_numbers = all(isinstance(trace.x[0], int | float) for trace in points)
    return shown if fits and has_numbers and not others else []


def _across(drawing: go.Figure, traces: Sequence[Any]) -> Callable[[Any], float]:
    """Return the function from x to its share of the width; 0 where x is no number."""
    place = math.log10 if drawing.layout.xaxis.type == "log" else float
    values = [place(x) for trace in traces for x in trace.x if isinstance(x, int | float)]
    low, span = min(values, default=0.0), (max(values, default=1.0) - min(values, default=0.0)) or 1.0
    return lambda x: (place(x) - low) / span if isinstance(x, int | float) else 0.0


def _reach(traces: Sequence[Any], is_log: bool) -> tuple[float, float]:
    """Return the ends of the vertical axis; a linear one begins at zero."""
    values = [float(y) for trace in traces for y in trace.y if y is not None and (y > 0 or not is_log)]
    return min(values) if is_log else min(0.0, *values), max(values)


def _end(trace: Any, low: float, high: float, is_log: bool) -> _End:
    y = float(trace.y[-1])
    place = math.log10 if is_log else float
    span = (place(high) - place(low)) or 1.0
    return _End(trace, trace.x[-1], y, (place(y) - place(low)) / span)


def _shifts(heights: Sequence[float]) -> list[float]:
    """Return how far to move labels, given in ascending order in pixels, so that none covers another."""
    places: list[float] = []
    for height in heights:
        places.append(max(height, places[-1] + _ROW_PX) if places else height)
    # Labels were only moved up: move the stack down by the mean, so that each stays near its line.
    down = sum(place - height for place, height in zip(places, heights, strict=True)) / len(places)
    return [place - down - height for place, height in zip(places, heights, strict=True)]


def label_stack(drawing: go.Figure) -> None:
    """Write the names of stacked bars beside the last bar and hide the legend, where that bar has all parts."""
    bars = [trace for trace in drawing.data if trace.type == "bar"]
    if not 1 < len(bars) <= MAX_POINTS or not all(trace.y[-1] for trace in bars):
        return
    top = max(sum(trace.y[at] or 0.0 for trace in bars) for at in range(len(bars[0].y)))
    middles, height = [], 0.0
    for trace in bars:
        middles.append(height + trace.y[-1] / 2)
        height += trace.y[-1]
    longest = max(len(str(trace.name)) for trace in bars)
    drawing.update_layout(showlegend=False, margin={"r": 16 + math.ceil(_CHARACTER_PX * longest)})
    places = len(bars[0].x)
    shifts = _shifts([middle / top * _PLOT_PX for middle in middles])
    ends = zip(bars, middles, shifts, strict=True)
    _annotate(drawing, [_label(trace.name, (places - 0.5, middle), 4, shift) for trace, middle, shift in ends])
    # A category axis begins half a category before its first bar.
    drawing.update_layout(xaxis={"range": [-0.5, places - 0.5]})


_PLOT_WIDTHS = (340.0, 620.0)
"""Widths of plots between which a label must be free of points."""
_MARK_PX, _MIDDLES = 6.0, 6
_PLACES = ((0, -24), (0, 24), (0, -42), (0, 42), (70, -26), (-70, -26), (70, 26), (-70, 26))
"""Where the label of a point may stand, in pixels to the right and down, in order of preference."""


def mark_best(drawing: go.Figure, x: Any, y: float, text: str, *, is_below: bool = False) -> None:
    """Write the best value near its point where it covers no other; nowhere if there is no such place.

    It prefers to stand above, or below where asked and where names of points stand beside them.
    """
    is_named = any(label.name == LINE_END and label.xanchor == "right" for label in drawing.layout.annotations)
    places = sorted(_PLACES, key=lambda place: (place[1] < 0) == (is_named or is_below))
    free = [place for place in places if all(_is_free(drawing, (x, y), place, text, wide) for wide in _PLOT_WIDTHS)]
    if not free:
        return
    drawing.add_annotation(
        name=BEST,
        x=math.log10(x) if drawing.layout.xaxis.type == "log" and isinstance(x, int | float) else x,
        y=math.log10(y) if drawing.layout.yaxis.type == "log" else y,
        text=theme.plain(text),
        showarrow=True,
        arrowhead=0,
        arrowwidth=1,
        ax=free[0][0],
        ay=free[0][1],
        font={"size": 12},
        bgcolor="rgba(0,0,0,0)",
    )


_Locate = Callable[[Any, float], tuple[float, float]]
"""From a value of both axes to its pixels in a plot, from the lower left corner."""


def _is_free(drawing: go.Figure, point: tuple[Any, float], place: tuple[int, int], text: str, width: float) -> bool:
    """Return whether a label at a place beside a point covers no point or line of a plot of this width."""
    locate = _locator(drawing, width)
    left, up = locate(*point)
    middle, height = left + place[0], up - place[1]
    half = _CHARACTER_PX * len(text) / 2
    if not (half - 40 <= middle <= width - half + 16 and 0 <= height <= _PLOT_PX + 16):
        return False
    return not any(
        abs(x - middle) < half + _MARK_PX and abs(y - height) < _ROW_PX / 2 + _MARK_PX
        for trace in drawing.data
        for x, y in _drawn(trace, locate)
    )


def _locator(drawing: go.Figure, width: float) -> _Locate:
    traces = list(drawing.data)
    is_log = drawing.layout.yaxis.type == "log"
    low, high = _reach(traces, is_log)
    place = math.log10 if is_log else float
    span = (place(high) - place(low)) or 1.0
    order = {value: at for at, value in enumerate(drawing.layout.xaxis.categoryarray or ())}
    across = _across(drawing, traces)

    def locate(x: Any, y: float) -> tuple[float, float]:
        share = (order[x] + 0.5) / len(order) if x in order else across(x)
        # Automatic axes leave a margin around their points.
        return width * (0.05 + 0.9 * share), _PLOT_PX * 0.95 * (place(max(y, low)) - place(low)) / span

    return locate


def _drawn(trace: Any, locate: _Locate) -> list[tuple[float, float]]:
    """Return where the marks, error bars and lines of a trace are, in pixels."""
    rows = [row for row in zip(trace.x, trace.y, _bars_of(trace), strict=True) if row[1] is not None]
    points = [locate(x, float(y)) for x, y, _ in rows]
    bars = [locate(x, float(y) + share * bar) for x, y, both in rows for bar in both for share in (0.5, 1.0)]
    if "lines" not in (trace.mode or ""):
        return [*points, *bars]
    between = [
        (first[0] + (second[0] - first[0]) * at / _MIDDLES, first[1] + (second[1] - first[1]) * at / _MIDDLES)
        for first, second in pairwise(points)
        for at in range(1, _MIDDLES)
    ]
    return [*points, *bars, *between]


def _bars_of(trace: Any) -> list[tuple[float, float]]:
    """Return how far the error bar of each point reaches up, and down as a negative number."""
    bars = trace.error_y
    up = [0.0] * len(trace.x) if bars.array is None else list(bars.array)
    down = up if bars.arrayminus is None else list(bars.arrayminus)
    return [(float(high or 0.0), -float(low or 0.0)) for high, low in zip(up, down, strict=True)]
