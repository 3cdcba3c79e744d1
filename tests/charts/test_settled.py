"""What figures say of scaling, what they call their devices, where labels stand, and axes of constant series."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go
import pytest

from parlab.charts.labels import BEST, mark_best
from parlab.charts.points import counted_devices, devices
from parlab.charts.sweeps import efficiency, heatmap, throughput
from parlab.charts.theme import Drawing, Table, layout, settled

from .test_choices import scaling
from .test_experiment_figures import point, sweep

# Throughput on 1, 2, 4 and 8 devices: on 2 the efficiency is 40 %, on 8 it is 7.89 %.
FALLING = (10.0, 8.0, 8.0, 6.312)


def drawn(y: list[float], **axis: Any) -> Any:
    figure = go.Figure(
        go.Scatter(x=list(range(len(y))), y=y), layout=layout(title="", subtitle="", x="", y="", yaxis=axis)
    )
    return json.loads(Drawing(figure, "", Table([], [])).to_json())["figure"]["layout"]


def test_the_worst_point_is_not_called_the_best() -> None:
    caption = efficiency.figure(scaling(*FALLING)).caption
    assert caption == "Efficiency: 40.0 % on 2 GPUs (run 1) at best, 7.89 % on 8 GPUs (run 3)."
    assert "Best scaling" not in caption


def test_an_efficiency_that_is_best_on_the_most_devices_is_named_once() -> None:
    assert efficiency.figure(scaling(10.0, 18.0, 40.0)).caption == "Efficiency: 100 % on 4 GPUs (run 2)."


def test_lines_are_compared_on_equally_many_devices() -> None:
    fast = [p._replace(values={**p.values, "parallel.schedule": "gpipe"}) for p in scaling(10.0, 9.0, 8.0)]
    slow = [
        p._replace(number=10 + p.number, values={**p.values, "parallel.schedule": "1f1b"}) for p in scaling(10.0, 16.0)
    ]
    assert efficiency.figure([*fast, *slow]).caption == (
        "Efficiency: 80.0 % on 2 GPUs (run 11) at best, 20.0 % on 4 GPUs (run 2)."
    )


def test_processes_on_processors_are_not_called_gpus() -> None:
    points = [p._replace(is_on_cpu=True) for p in scaling(*FALLING)]
    for drawing in (efficiency.figure(points), throughput.figure(points)):
        text = drawing.to_json()
        assert "GPU" not in text
        assert "processes" in text
        assert json.loads(text)["figure"]["layout"]["xaxis"]["title"]["text"] == "Processes"
    assert "8 processes" in efficiency.figure(points).to_json()
    assert devices([*points[:1], *scaling(1.0)]) == "GPUs or processes"
    assert counted_devices(points, 1) == "1 process"
    assert counted_devices(scaling(1.0), 1024) == "1,024 GPUs"


def test_a_grid_over_processes_has_their_name() -> None:
    points = [p._replace(is_on_cpu=True, gpus=2 ** (p.number % 2)) for p in sweep()]
    assert "GPUs" not in heatmap.figure(points).to_json()


def test_the_best_value_covers_no_point() -> None:
    figure = go.Figure(go.Scatter(x=[1, 2, 3], y=[1.0, 2.0, 3.0], mode="markers"))
    mark_best(figure, 2, 2.0, "best 2")
    [label] = figure.layout.annotations
    assert (label.name, label.ay) == (BEST, -24)
    crowd = [y / 20 for y in range(60)]
    crowded = go.Figure(go.Scatter(x=[x for x in range(20) for _ in crowd], y=crowd * 20, mode="markers"))
    mark_best(crowded, 10, 2.0, "best 2")
    assert not crowded.layout.annotations


def test_a_label_avoids_lines_and_error_bars() -> None:
    bars = {"array": [0.5] * 5, "arrayminus": [0.5] * 5}
    figure = go.Figure(go.Scatter(x=[1, 2, 3, 4, 5], y=[1.0, 1.0, 2.0, 1.0, 1.0], mode="lines+markers", error_y=bars))
    mark_best(figure, 3, 2.0, "best 2 samples/s")
    assert all(abs(label.ay) != 24 or label.ax for label in figure.layout.annotations)


@pytest.mark.parametrize(
    ("value", "axis", "expected"),
    [
        (11.0, {}, [9.9, 12.1]),
        (0.0001, {}, [0.00009, 0.00011]),
        (-4.0, {}, [-4.4, -3.6]),
        (0.0, {}, [-1, 1]),
        (3.0, {"rangemode": "tozero"}, [0, 6]),
        (0.0, {"rangemode": "tozero"}, [0, 1]),
    ],
)
def test_a_constant_series_lies_in_the_middle_of_its_axis(
    value: float, axis: dict[str, Any], expected: list[float]
) -> None:
    assert drawn([value] * 5, **axis)["yaxis"]["range"] == pytest.approx(expected)


def test_series_that_vary_and_chosen_ranges_stay() -> None:
    assert "range" not in drawn([1.0, 2.0])["yaxis"]
    assert "range" not in drawn([float("nan")] * 3)["yaxis"]
    assert drawn([1.0, 1.0], range=[0, 7])["yaxis"]["range"] == [0, 7]
    assert "range" not in drawn([1.0, 1.0], type="log")["yaxis"]
    bars = settled(go.Figure(go.Bar(x=["a", "b"], y=[1.0, 1.0])))
    assert bars.layout.yaxis.range is None
    spread = go.Figure(go.Scatter(x=[1, 2], y=[1.0, 1.0], error_y={"array": [0.5, 0.5]}))
    assert settled(spread).layout.yaxis.range is None


def test_ticks_between_whole_numbers_have_decimals() -> None:
    figure = go.Figure(go.Scatter(x=[10, 11, 12], y=[1.0, 2.0, 3.0]), layout={"xaxis": {"tickformat": "d"}})
    fine, coarse = settled(figure).layout.xaxis.tickformatstops
    assert (fine.value, coarse.value) == ("~g", ",d")


def test_an_out_of_memory_run_has_its_word_too() -> None:
    assert "process" in point(1, {}, 5.0)._replace(is_on_cpu=True, gpus=1).hover()
