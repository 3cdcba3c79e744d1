"""Timelines: which bars are drawn, where, and what is said of them."""

from __future__ import annotations

import json
from typing import Any

from parlab.charts import theme
from parlab.charts.runs import timeline
from parlab.charts.runs.timeline import Bar, Timeline


def timeline_of(title: str = "1f1b", iteration_s: float = 4.0, ranks: int = 2) -> Timeline:
    bars = [
        Bar(0, "forward", 0, 0.0, 1.0),
        Bar(0, "activations", 0, 1.0, 1.5, note=" to rank 1"),
        Bar(1, "forward", 0, 1.5, 2.0),
        Bar(1, "backward", 0, 2.0, 3.0),
        Bar(0, "backward", 0, 3.0, 4.0),
    ]
    return Timeline(title, iteration_s, bars, [0.5, 0.625][:ranks], [1, 1])


def traces(drawing: theme.Drawing) -> dict[str, Any]:
    assert drawing.figure is not None
    return {trace.name: trace for trace in drawing.figure.data}


def test_each_kind_is_one_trace_of_bars_in_the_lane_of_its_rank() -> None:
    drawn = traces(timeline.figure([timeline_of()]))
    assert list(drawn["backward"].base) == [2.0, 3.0]
    assert list(drawn["backward"].x) == [1.0, 1.0]
    assert list(drawn["backward"].y) == [-1.0, 0.0]
    link = drawn["activations on the link"]
    assert link.y[0] < 0
    assert link.y[0] - link.width / 2 > -0.5
    assert list(drawn["forward"].customdata[0]) == ["micro batch 0", 0, 1.0, ""]
    assert "takes %{customdata[2]" in drawn["forward"].hovertemplate


def test_waiting_is_what_passes_leave_of_the_iteration() -> None:
    waiting = traces(timeline.figure([timeline_of()]))["waiting (bubble)"]
    assert list(waiting.x) == [4.0, 4.0]
    assert "rank 1 waits 62.5 % of the iteration<br>stores up to 1 micro batches" in waiting.hovertext[1]


def test_two_schedules_share_the_time_axis() -> None:
    drawing = timeline.figure([timeline_of("slow <b>", 8.0), timeline_of("fast")])
    drawn = traces(drawing)
    assert drawing.figure is not None
    layout = drawing.figure.layout
    assert len(layout.yaxis.tickvals) == 4
    assert list(layout.yaxis.ticktext) == ["0", "1", "0", "1"]
    assert min(layout.yaxis.tickvals[:2]) > max(layout.yaxis.tickvals[2:])
    assert layout.annotations[0].text.startswith("8")
    assert layout.annotations[0].text.endswith(": slow &lt;b&gt;")
    assert layout.xaxis.range[1] > 8
    assert len(drawn["forward"].x) == 4
    assert "The slower schedule takes 2.00 times as long." in drawing.caption


def test_short_iterations_are_drawn_in_their_own_unit() -> None:
    short = Timeline("x", 0.004, [Bar(0, "forward", 0, 0.0, 0.001)], [0.75])
    drawing = timeline.figure([short])
    assert drawing.figure is not None
    assert drawing.figure.layout.xaxis.title.text == "Time since the start of the iteration (ms)"
    assert traces(drawing)["forward"].x[0] == 1.0


def test_the_numbers_are_seconds_of_every_bar() -> None:
    table = timeline.figure([timeline_of()]).table
    assert table.header == ["schedule", "rank", "kind", "micro_batch", "chunk", "begin_s", "end_s"]
    assert ["1f1b", 1, "backward", 0, 0, 2.0, 3.0] in table.rows


def test_bars_beyond_the_limit_are_omitted_with_a_note_but_remain_in_the_table() -> None:
    count = timeline.MAX_BARS + 10
    bars = [Bar(0, "forward", k, k * 1.0, k + 1.0) for k in range(count)]
    drawing = timeline.figure([Timeline("long", float(count), bars, [0.0])])
    assert len(traces(drawing)["forward"].x) == timeline.MAX_BARS
    assert "Drawn up to" in drawing.caption
    assert len(drawing.table.rows) == count


def test_nothing_to_draw_says_so() -> None:
    drawing = timeline.figure([Timeline("x", 0.0, [], [])])
    assert json.loads(drawing.to_json())["figure"] is None
    assert drawing.empty
