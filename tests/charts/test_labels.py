"""Names at the ends of lines, and the best point."""

from __future__ import annotations

import itertools

import plotly.graph_objects as go
import pytest

from parlab.charts.labels import BEST, LINE_END, label_ends, mark_best
from parlab.charts.panels.frame import told_apart


def lines(*ends: float, log: bool = False, name: str = "line") -> go.Figure:
    axis = {"type": "log"} if log else {}
    drawing = go.Figure(layout={"xaxis": axis, "yaxis": axis, "showlegend": True})
    for number, end in enumerate(ends):
        drawing.add_trace(go.Scatter(x=[1, 10, 100], y=[1.0, 2.0, end], mode="lines+markers", name=f"{name} {number}"))
    return drawing


def test_a_few_lines_are_named_at_their_ends() -> None:
    drawing = lines(3.0, 8.0)
    label_ends(drawing)
    assert [(label.text, label.x, label.y) for label in drawing.layout.annotations] == [
        ("line 0", 100, 3.0),
        ("line 1", 100, 8.0),
    ]
    assert {label.name for label in drawing.layout.annotations} == {LINE_END}
    assert drawing.layout.showlegend is False
    assert drawing.layout.margin.r > 40


def test_labels_of_lines_that_end_at_one_place_stand_beside_each_other() -> None:
    drawing = lines(5.0, 5.0, 5.0, 9.0)
    label_ends(drawing)
    heights = [label.y / 9.0 * 280 + label.yshift for label in drawing.layout.annotations]
    assert all(second - first >= 13.9 for first, second in itertools.pairwise(heights))


def test_labels_lie_on_logarithmic_axes() -> None:
    drawing = lines(10.0, 1000.0, log=True)
    label_ends(drawing)
    assert [(label.x, label.y) for label in drawing.layout.annotations] == [(2.0, 1.0), (2.0, 3.0)]


@pytest.mark.parametrize(
    "drawing", [lines(3.0), lines(1, 2, 3, 4, 5, 6, 7), lines(3.0, 4.0, name="a name that is much too long for this")]
)
def test_one_line_many_lines_and_long_names_keep_their_legend(drawing: go.Figure) -> None:
    label_ends(drawing)
    assert not drawing.layout.annotations
    assert drawing.layout.showlegend is True


def test_points_without_lines_keep_the_legend_of_all() -> None:
    drawing = lines(3.0, 4.0)
    drawing.add_trace(go.Scatter(x=[1], y=[2.0], mode="markers", name="alone"))
    label_ends(drawing)
    assert drawing.layout.showlegend is True


def test_series_of_single_points_are_named_beside_them_towards_the_middle() -> None:
    drawing = go.Figure(layout={"xaxis": {"type": "log"}, "yaxis": {"type": "log"}, "showlegend": True})
    for number, x in enumerate([512, 768, 4096, 10752, 10752]):
        drawing.add_trace(
            go.Scatter(x=[x], y=[2.0 * x], mode="markers", name=f"system {number}, global batch size 2048")
        )
    drawing.add_trace(go.Scatter(x=[512, 10752], y=[1024, 21504], mode="lines", name="ideal"))
    label_ends(drawing)
    sides = {label.text[:8]: label.xanchor for label in drawing.layout.annotations}
    assert sides == {
        "system 0": "left",
        "system 1": "left",
        "system 2": "right",
        "system 3": "right",
        "system 4": "right",
        "ideal": "right",
    }
    assert drawing.layout.showlegend is False
    mark_best(drawing, 10752, 21504, "best 21,504 tokens/s")
    assert drawing.layout.annotations[-1].ay > 0


def test_the_best_point_is_named() -> None:
    drawing = lines(3.0, 8.0)
    mark_best(drawing, 100, 8.0, "best 8 samples/s <b>")
    (label,) = drawing.layout.annotations
    assert (label.name, label.text, label.y) == (BEST, "best 8 samples/s &lt;b&gt;", 8.0)


def test_lines_outside_of_the_legend_are_not_named() -> None:
    drawing = lines(3.0, 4.0)
    drawing.add_trace(go.Scatter(x=[1, 2], y=[2.0, 2.0], mode="lines", name="least", showlegend=False))
    label_ends(drawing)
    assert len(drawing.layout.annotations) == 2
    assert drawing.layout.showlegend is False


def test_names_that_are_cut_stay_different() -> None:
    names = [f"Megatron BERT 345M on 16 A100, global batch {batch}" for batch in (64, 128, 256)]
    cut = told_apart(names, 150)
    assert len(set(cut)) == 3
    assert cut == [f"\N{HORIZONTAL ELLIPSIS}{batch}" for batch in (64, 128, 256)]
    assert told_apart(["short", "short"], 150) == ["short", "short"]
