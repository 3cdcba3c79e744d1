"""The curves of one run."""

from __future__ import annotations

import json
import math

from parlab.charts.runs import curves
from parlab.charts.runs.curves import Curve


def curve(values: list[float], start: float = 1000.0) -> Curve:
    return Curve(list(range(1, len(values) + 1)), [start + i for i in range(len(values))], values)


def test_step_time_has_a_line_per_rank_and_shades_the_warmup() -> None:
    drawing = curves.step_time({1: curve([0.9, 0.4]), 0: curve([0.8, 0.3])}, warmup_steps=1, iterations=20)
    assert drawing.figure is not None
    assert [trace.name for trace in drawing.figure.data] == ["rank 0", "rank 1"]
    assert list(drawing.figure.data[0].y) == [800.0, 300.0]
    assert drawing.figure.layout.yaxis.title.text == "Step time (ms)"
    assert (drawing.figure.layout.shapes[0].x0, drawing.figure.layout.shapes[0].x1) == (0.5, 1.5)
    assert drawing.caption.startswith("2 of 20 steps.")


def test_steps_beyond_those_that_were_planned_are_drawn_too() -> None:
    for planned in (0, 2):
        drawing = curves.step_time({0: curve([0.5] * 30)}, warmup_steps=0, iterations=planned)
        assert drawing.figure is not None
        assert list(drawing.figure.layout.xaxis.range) == [0.5, 30.5]
        assert drawing.caption == "30 steps."


def test_of_many_ranks_only_the_fastest_and_the_slowest_are_drawn_but_all_are_in_the_table() -> None:
    many = {rank: curve([1.0 + rank, 1.0 + rank]) for rank in range(32)}
    drawing = curves.step_time(many, warmup_steps=0, iterations=2)
    assert drawing.figure is not None
    assert [trace.name for trace in drawing.figure.data] == ["rank 0", "rank 31"]
    assert len(drawing.table.rows) == 64


def test_as_many_ranks_as_there_are_colours_are_all_drawn_and_rank_0_is_one_of_them() -> None:
    for count, drawn in ((8, range(8)), (9, (0, 8))):
        drawing = curves.step_time({rank: curve([1.0 + rank]) for rank in range(count)}, warmup_steps=0, iterations=1)
        assert drawing.figure is not None
        assert [trace.name for trace in drawing.figure.data] == [f"rank {rank}" for rank in drawn]
        assert (f"Of {count} ranks" in drawing.caption) is (count == 9)


def test_memory_runs_from_the_first_measurement_and_names_the_whole_process_tree() -> None:
    drawing = curves.memory({-1: curve([2**28, 2**29], 998.0), 0: curve([2**27, 2**28], 1000.0)})
    assert drawing.figure is not None
    assert [trace.name for trace in drawing.figure.data] == ["all processes", "rank 0"]
    assert list(drawing.figure.data[0].x) == [0.0, 1.0]
    assert list(drawing.figure.data[1].x) == [2.0, 3.0]
    assert drawing.caption.startswith("Peak: 512")


def test_nan_is_a_gap_and_the_answer_stays_json() -> None:
    drawing = curves.step_time({0: curve([0.5, math.nan, 0.5])}, warmup_steps=0, iterations=3)
    assert json.loads(drawing.to_json(), parse_constant=lambda name: 1 / 0)["figure"]["data"][0]["y"][1] is None


def test_before_the_first_step_the_curves_say_so() -> None:
    assert curves.step_time({0: curve([])}, warmup_steps=1, iterations=5).figure is None
    assert curves.memory({}).empty


def test_memory_of_several_nodes_names_them_and_of_many_draws_the_extremes() -> None:
    few = curves.memory({-2: curve([2**29], 1.0), -1: curve([2**28], 1.0), 0: curve([2**27], 1.0)}, nodes=["a", "b"])
    assert few.figure is not None
    assert [trace.name for trace in few.figure.data] == ["all processes of node b", "all processes of node a", "rank 0"]
    many = {-1 - node: curve([2.0**28 + node], 1.0) for node in range(16)}
    drawing = curves.memory(many, nodes=[f"n{node}" for node in range(16)])
    assert drawing.figure is not None
    assert [trace.name for trace in drawing.figure.data] == ["all processes of node n15", "all processes of node n0"]
    assert len(drawing.table.rows) == 16


def test_steps_left_out_are_named_by_their_reason_and_an_ended_run_has_the_axis_of_its_steps() -> None:
    drawing = curves.step_time(
        {0: Curve(steps=range(100, 108), times=[float(step) for step in range(8)], values=[1.6] * 8)},
        warmup_steps=0,
        iterations=71_680,
        left_out=[100, 104],
        why="warm-up, recorded by the profiler",
        is_over=True,
    )
    assert drawing.figure is not None
    assert [shape.label.text for shape in drawing.figure.layout.shapes] == ["warm-up", "profiler"]
    assert list(drawing.figure.layout.xaxis.range) == [99.5, 107.5]
    assert drawing.caption.startswith("107 of 71680 steps.")
