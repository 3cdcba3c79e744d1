"""A series of results with the places where it changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import quantity, unit_for
from parlab.charts.theme import Drawing, Table

MAX_NODES = 6
"""Nodes with a colour of their own; more cannot be told apart."""


class Point(NamedTuple):
    """A result: its value, and what the tooltip states."""

    number: int
    value: float
    at: str
    node: str
    commit: str


class Step(NamedTuple):
    """A change: number of the first result after it, its size as text, and whether it is for the worse."""

    number: int
    text: str
    is_worse: bool


class Level(NamedTuple):
    """The level of the results between two changes."""

    first: int
    last: int
    value: float


def figure(
    title: str, unit: str, points: Sequence[Point], levels: Sequence[Level] = (), steps: Sequence[Step] = ()
) -> Drawing:
    """Draw results (y) in order (x), coloured by node, with the level of each segment and the changes between them."""
    if not points:
        return theme.missing(title, "no result has this measure yet")
    scale = unit_for([point.value for point in points], unit)
    axis = f"{title} ({scale.name})" if scale.name else title
    drawing = go.Figure(
        layout=theme.layout(
            title=title, subtitle=f"{len(points)} results", x="Result", y=axis, xaxis={"tickformat": "d"}
        )
    )
    nodes = list(dict.fromkeys(point.node for point in points))
    groups = nodes if len(nodes) <= MAX_NODES else ["all nodes"]
    for group, colour in zip(groups, [theme.BLUE, *theme.FREE], strict=False):
        own = [point for point in points if point.node == group] if len(nodes) <= MAX_NODES else list(points)
        drawing.add_scatter(
            x=[point.number for point in own],
            y=[point.value / scale.factor for point in own],
            mode="markers",
            name=theme.plain(group or "results"),
            marker={"color": colour, "size": 7, "opacity": 0.8, "symbol": theme.SYMBOLS[groups.index(group)]},
            hovertext=[_hover(point, unit) for point in own],
            hoverinfo="text",
        )
    for level in levels:
        drawing.add_scatter(
            x=[level.first - 0.4, level.last + 0.4],
            y=[level.value / scale.factor] * 2,
            mode="lines",
            line={"color": theme.GREY, "width": 2},
            showlegend=False,
            hoverinfo="skip",
        )
    for step in steps:
        colour = theme.VERMILLION if step.is_worse else theme.GREEN
        drawing.add_vline(x=step.number - 0.5, line={"color": colour, "width": 1.5, "dash": "dash"})
        drawing.add_annotation(
            x=step.number - 0.5, y=1, yref="paper", yanchor="top", xanchor="left", text=theme.plain(step.text),
            showarrow=False, font={"color": colour, "size": 12},
        )  # fmt: skip
    table = Table(
        ["result", "at", "node", "commit", unit or "value"],
        [[point.number, point.at, point.node, point.commit, point.value] for point in points],
    )
    return Drawing(drawing, _levels_caption(steps), table)


def _hover(point: Point, unit: str) -> str:
    lines = [f"result {point.number}: {quantity(point.value, unit, 5)}", point.at, point.node, point.commit]
    return "<br>".join(theme.plain(line) for line in lines if line)


def _levels_caption(steps: Sequence[Step]) -> str:
    if not steps:
        return "Each point is one result; grey lines are levels. No change has been detected."
    changes = "; ".join(f"{step.text} with result {step.number}" for step in steps[-5:])
    return f"Each point is one result; grey lines are the levels between changes: {changes}."
