"""Scaling efficiency: what is left of each GPU's speed when there are more of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from . import theme
from .axes import GPUS, alike, emulation_mark, names_of, plan, series_name, x_axis
from .format import significant
from .measures import AUTO, Options
from .points import RunPoint, in_order
from .theme import Drawing, Table


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw throughput per GPU in per cent of that of the smallest run of the same line (y) against GPUs (x)."""
    measured = [point for point in points if point.samples_per_s and point.state != "oom"]
    if len({point.gpus for point in measured}) < 2:
        return theme.nothing("No efficiency: it compares runs of different numbers of GPUs.")
    members, _ = alike(measured, measured)
    chosen = plan(members, options._replace(x=GPUS))
    lines: dict[tuple[str, ...], list[RunPoint]] = {}
    for point in members:
        lines.setdefault(names_of(point, chosen.lines), []).append(point)
    lines = {names: sorted(line, key=lambda p: p.gpus) for names, line in lines.items() if len(line) > 1}
    if not lines:
        return theme.nothing("No efficiency: no two runs differ in their number of GPUs only.")
    counts = in_order(point.gpus for line in lines.values() for point in line)
    drawing = go.Figure(
        layout=theme.layout(
            title="Scaling efficiency",
            subtitle="throughput per GPU, the smallest run of each line is 100 %",
            x=GPUS,
            y="Efficiency (%)",
            xaxis=x_axis(counts, GPUS, options),
            yaxis={"rangemode": "tozero"},
        )
    )
    styles = theme.styles(list(lines))
    for names, line in lines.items():
        drawing.add_trace(
            _line(line, theme.plain(series_name(names, chosen.lines) + emulation_mark(line)), styles[names])
        )
    drawing.add_hline(y=100, line={"color": theme.GREY, "dash": "dash", "width": 1})
    drawing.update_layout(showlegend=len(lines) > 1)
    rows = [
        [point.number, point.gpus, point.samples_per_s, of_line(line, point), point.outcome]
        for line in lines.values()
        for point in line
    ]
    return Drawing(drawing, _caption(lines), Table(["run", "gpus", "samples_per_s", "efficiency", "state"], rows))


def of_line(line: Sequence[RunPoint], point: RunPoint) -> float:
    """Throughput per GPU of a point in units of that of the fastest of the smallest runs of its line."""
    least = min(one.gpus for one in line)
    base = max((one.samples_per_s or 0.0) / one.gpus for one in line if one.gpus == least)
    return (point.samples_per_s or 0.0) / point.gpus / base


def _line(line: Sequence[RunPoint], name: str, style: theme.Style) -> go.Scatter:
    shares = [100 * of_line(line, point) for point in line]
    return go.Scatter(
        x=[point.gpus for point in line],
        y=shares,
        name=name,
        mode="lines+markers",
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={"color": style.colour, "symbol": style.symbol, "size": 9},
        hovertext=[
            point.hover(("efficiency", share, "%"), ("samples/s", point.samples_per_s, ""))
            for point, share in zip(line, shares, strict=True)
        ],
        hoverinfo="text",
    )


def _caption(lines: dict[tuple[str, ...], list[RunPoint]]) -> str:
    ends: list[tuple[float, Any]] = [(of_line(line, line[-1]), line) for line in lines.values()]
    share, line = max(ends, key=lambda end: end[0])
    return (
        f"{significant(100 * share)} % is left from {line[0].gpus} to {line[-1].gpus} GPUs"
        f" in the line that keeps most (run {line[-1].number})."
    )
