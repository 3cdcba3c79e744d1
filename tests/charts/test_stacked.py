"""Panels above each other: names at the ends of their lines, or one legend."""

from __future__ import annotations

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.labels import LINE_END, label_ends
from parlab.charts.stacked import stacked
from parlab.charts.theme import Drawing, Table


def panel(lines: int) -> Drawing:
    figure = go.Figure(layout=theme.layout(title="t", subtitle="s", x="Step", y="Loss"))
    for number in range(lines):
        figure.add_trace(go.Scatter(x=[1, 2], y=[1.0, 2.0 + number], name=f"run {number}", mode="lines"))
    label_ends(figure)
    return Drawing(figure, "", Table(["step", "loss"], []))


def test_lines_of_several_panels_are_named_at_their_ends() -> None:
    figure = stacked([panel(2), panel(2), panel(1)], "t", "s").figure
    assert figure is not None
    labels = [(label.text, label.yref) for label in figure.layout.annotations if label.name == LINE_END]
    assert labels == [("run 0", "y"), ("run 1", "y"), ("run 0", "y2"), ("run 1", "y2")]
    assert figure.layout.showlegend is False
    assert figure.layout.margin.r > 40


def test_panels_with_many_lines_share_one_legend() -> None:
    figure = stacked([panel(2), panel(8)], "t", "s").figure
    assert figure is not None
    assert [label for label in figure.layout.annotations if label.name == LINE_END] == []
    assert figure.layout.showlegend is True
    assert [trace.name for trace in figure.data if trace.showlegend] == [f"run {number}" for number in range(8)]


def test_panels_of_the_same_single_line_need_no_legend() -> None:
    figure = stacked([panel(1), panel(1)], "t", "s").figure
    assert figure is not None
    assert figure.layout.showlegend is False
