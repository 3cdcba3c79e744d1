"""The figure of two waterfalls."""

from __future__ import annotations

from parlab.charts.runs.waterfall import Bar, Column, Delta, difference_figure, figure


def bar(title: str, seconds: float) -> Bar:
    return Bar(title, title, seconds, "computed", "formula")


def test_a_term_that_only_the_second_column_has_follows_its_predecessor() -> None:
    first = Column("Run 1", 3.0, [bar("Ideal", 1.0), bar("Optimizer", 2.0), bar("Unexplained", 0.0)])
    second = Column("Predicted", 2.0, [bar("Ideal", 0.5), bar("Bubble", 0.5), bar("Optimizer", 1.0)])
    drawing = figure([first, second])
    assert drawing.figure is not None
    assert drawing.figure.layout.yaxis.ticktext == ("Ideal", "Bubble", "Optimizer", "Unexplained", "Step")
    assert list(drawing.figure.data[0].base) == [0.0, 1.0, 3.0]
    assert [trace.showlegend for trace in drawing.figure.data] == [True, False, False, False]
    assert "the largest loss is optimizer" in drawing.caption


def test_useful_work_is_no_loss() -> None:
    bars = [Bar("compute", "Compute", 3.0, "measured", "timers", is_useful=True), bar("Optimizer", 1.0)]
    assert "the largest loss is optimizer" in figure([Column("Run 1", 4.0, bars)]).caption
    assert "largest loss" not in figure([Column("Run 1", 3.0, bars[:1])]).caption


def test_without_terms_or_changes_the_reason_is_given() -> None:
    assert figure([]).empty == "Where the time goes: needs a measured step time."
    assert difference_figure([Delta("Ideal", 1.0, 1.0)], ("a", "b")).empty is not None
