"""Names at the ends of lines instead of a legend, and the best point of a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from . import theme

MAX_LABELLED = 6
"""More lines than this have a legend."""
MAX_LENGTH = 34
"""A longer name would leave too little room for the lines."""
LINE_END, BEST = "line end", "best"
"""Names of annotations; static/js/figures.js replaces the labels of narrow figures by a legend."""
_CHARACTER_PX, _ROW_PX, _PLOT_PX = 6.4, 14.0, 280.0


class _End(NamedTuple):
    """The last point of a line; the height is a share of the axis."""

    trace: Any
    x: Any
    y: float
    height: float


def label_ends(drawing: go.Figure) -> None:
    """Write the names of up to MAX_LABELLED lines at their ends, and hide the legend."""
    lines = _nameable(list(drawing.data))
    if not lines:
        return
    is_log = drawing.layout.yaxis.type == "log"
    low, high = _reach(list(drawing.data), is_log)
    ends = sorted((_end(trace, low, high, is_log) for trace in lines), key=lambda end: end.height)
    longest = max(len(str(trace.name)) for trace in lines)
    drawing.update_layout(showlegend=False, margin={"r": 16 + math.ceil(_CHARACTER_PX * longest)})
    for end, shift in zip(ends, _shifts([end.height * _PLOT_PX for end in ends]), strict=True):
        drawing.add_annotation(
            name=LINE_END,
            x=math.log10(end.x) if drawing.layout.xaxis.type == "log" else end.x,
            y=math.log10(end.y) if is_log else end.y,
            text=end.trace.name,
            showarrow=False,
            xanchor="left",
            xshift=8,
            yshift=shift,
            align="left",
            font={"size": 12},
        )


def _nameable(traces: Sequence[Any]) -> list[Any]:
    """Return the lines if all traces are lines that can be named at their ends; else nothing."""
    shown = [trace for trace in traces if trace.showlegend is not False]
    lines = [trace for trace in shown if "lines" in (trace.mode or "") and trace.name and len(trace.x or ()) > 1]
    others = [trace for trace in shown if trace not in lines and trace.name != "OOM"]
    fits = 1 < len(lines) <= MAX_LABELLED and max(len(str(trace.name)) for trace in lines) <= MAX_LENGTH
    return lines if fits and not others else []


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


def mark_best(drawing: go.Figure, x: Any, y: float, text: str) -> None:
    """Write the best value at its point."""
    drawing.add_annotation(
        name=BEST,
        x=math.log10(x) if drawing.layout.xaxis.type == "log" and isinstance(x, int | float) else x,
        y=math.log10(y) if drawing.layout.yaxis.type == "log" else y,
        text=theme.plain(text),
        showarrow=True,
        arrowhead=0,
        arrowwidth=1,
        ax=0,
        ay=-22,
        font={"size": 12},
        bgcolor="rgba(0,0,0,0)",
    )
