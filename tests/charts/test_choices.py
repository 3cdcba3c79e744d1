"""Figures whose axes a person chose: numbers, scales, efficiency, maps and rooflines."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.charts.measures import MEASURES, Available, Options, measured
from parlab.charts.points import Roof, RunPoint, Spread
from parlab.charts.sweeps import efficiency, heatmap, memory, roofline, throughput

from .test_experiment_figures import MICRO, SCHEDULE, point, sweep, traces


def scaling(*speeds: float) -> list[RunPoint]:
    """Runs on 1, 2, 4, ... GPUs with these samples/s."""
    return [
        point(n, {"parallel.data_parallel_size": 2**n}, speed, gpus=2**n, tokens_per_s=16 * speed)
        for n, speed in enumerate(speeds)
    ]


def layout(drawing: Any) -> Any:
    assert drawing.figure is not None
    return drawing.figure.layout


def test_time_per_sample_falls_along_its_ideal_line() -> None:
    drawing = throughput.figure(scaling(10.0, 18.0, 30.0), Options(y="ms_per_sample"))
    drawn = traces(drawing)
    assert list(drawn["measured"].y) == pytest.approx([100, 1000 / 18, 1000 / 30])
    assert list(drawn["ideal from 1"].y) == pytest.approx([100, 50, 25])
    assert layout(drawing).yaxis.title.text == "Time per sample (ms)"
    assert drawing.caption.startswith("Lowest: ")


def test_step_time_has_the_unit_of_its_values_and_its_own_percentiles() -> None:
    drawing = throughput.figure(sweep(), Options(y="step_time"))
    assert layout(drawing).yaxis.title.text == "Step time (ms)"
    (first, *_), bars = traces(drawing)["gpipe"].y, traces(drawing)["gpipe"].error_y
    assert first == pytest.approx(1000 * 32 / 120)
    assert bars.array[0] == pytest.approx(first * 0.25)
    assert bars.arrayminus[0] == pytest.approx(first * 0.1)


def test_memory_has_no_ideal_and_no_percentiles() -> None:
    points = [p._replace(memory_max=2.0**30 * (p.gpus or 0)) for p in scaling(10.0, 18.0)]
    drawing = throughput.figure(points, Options(y="memory"))
    assert list(traces(drawing)) == ["measured"]
    assert list(traces(drawing)["measured"].y) == pytest.approx([1.0, 2.0])
    assert layout(drawing).yaxis.title.text == "Peak memory (GiB)"


def test_what_the_wire_does_to_the_loss_is_drawn_least_best() -> None:
    points = [
        point(number, {"parallel.wire_precision": wire}, loss=loss)
        for number, (wire, loss) in enumerate([("same", 5.43912), ("int8", 5.43915)], start=1)
    ]
    assert "loss" in measured(points)
    drawing = throughput.figure(points, Options(y="loss"))
    assert drawing.figure is not None
    assert drawing.figure.layout.yaxis.title.text == "Loss of the last step"
    assert drawing.caption.startswith("Lowest: 5.44, wire precision same (run 1).")


def test_numbers_that_leave_a_page_say_which_runs_only_waited() -> None:
    points = [
        point(
            number,
            {MICRO: number},
            gpus=2**number,
            marks=("emulated",) if number == 1 else (),
            memory_by_rank={0: 2.0**20},
        )
        for number in (1, 2)
    ]
    for drawing in (throughput.figure(points), memory.figure(points)):
        state = drawing.table.header.index("state")
        assert {row[0]: row[state] for row in drawing.table.rows} == {1: "finished, emulated", 2: "finished"}


def test_axes_lines_and_scales_are_those_that_were_chosen() -> None:
    chosen = Options(x=SCHEDULE, by=(MICRO,), y_scale="log")
    drawing = throughput.figure(sweep(), chosen)
    assert list(traces(drawing)) == [f"micro batch size {n}" for n in (4, 1, 2)]  # the order of the runs
    assert list(layout(drawing).xaxis.categoryarray) == ["gpipe", "1f1b"]
    assert layout(drawing).yaxis.type == "log"
    linear = throughput.figure(scaling(10.0, 18.0), Options(x_scale="linear", y_scale="linear"))
    assert layout(linear).xaxis.type == "linear"
    assert layout(linear).yaxis.type is None


@pytest.mark.parametrize("options", [Options(y="nonsense"), Options(x="nobody.has_this"), Options(by=("nor.this",))])
def test_choices_that_make_no_sense_are_left_to_the_figure(options: Options) -> None:
    assert traces(throughput.figure(sweep(), options)).keys() == traces(throughput.figure(sweep())).keys()


def test_only_measures_that_a_run_has_are_offered() -> None:
    assert list(measured(scaling(10.0))) == ["samples_per_s", "tokens_per_s", "step_time", "ms_per_sample"]
    assert not measured([point(1, {}, 5.0, state="oom")])
    assert next(iter(MEASURES)) == Options().y


def test_efficiency_compares_each_gpu_with_the_smallest_run_of_its_line() -> None:
    drawing = efficiency.figure(scaling(10.0, 18.0, 30.0))
    assert list(traces(drawing)["measured"].y) == pytest.approx([100, 90, 75])
    assert drawing.caption == "Efficiency: 90.0 % on 2 GPUs (run 1) at best, 75.0 % on 4 GPUs (run 2)."
    assert [row[3] for row in drawing.table.rows] == pytest.approx([1, 0.9, 0.75])
    assert efficiency.figure(sweep()).empty == "Scaling efficiency: needs runs on different numbers of GPUs."


def test_a_map_hatches_what_ran_out_of_memory() -> None:
    points = [*sweep(), point(7, {SCHEDULE: "gpipe", MICRO: 8}, None, state="oom")]
    drawing = heatmap.figure(points)
    shown = layout(drawing)
    assert list(shown.xaxis.ticktext) == ["1", "2", "4", "8"]
    assert list(shown.yaxis.ticktext) == ["gpipe", "1f1b"]
    assert drawing.figure is not None
    cells, too_big = drawing.figure.data
    assert list(zip(cells.x, [round(base + 0.47) for base in cells.base], cells.customdata, strict=True)) == [
        (0, 0, 120), (1, 0, 130), (2, 0, 110), (0, 1, 150), (1, 1, 160), (2, 1, 140),
    ]  # fmt: skip
    assert (list(too_big.x), list(too_big.text), too_big.marker.pattern.shape) == ([3], ["OOM"], "/")
    assert (
        drawing.caption
        == "Best: 160 samples/s, schedule 1f1b, micro batch size 2 (run 6). 1 of 7 cells ran out of memory."
    )


def test_a_map_shows_the_best_of_several_runs_in_a_cell() -> None:
    points = [p._replace(values={**p.values, "train.seed": n}) for n in (1, 2) for p in sweep()]
    points = [
        p._replace(samples_per_s=(p.samples_per_s or 0) * (2 if p.values["train.seed"] == 2 else 1)) for p in points
    ]
    drawing = heatmap.figure(points, Options(x=MICRO, by=(SCHEDULE,)))
    assert drawing.figure is not None
    assert drawing.figure.data[0].customdata[0] == 240
    assert layout(drawing).title.subtitle.text.startswith("the best run of each cell")
    slow = heatmap.figure(points, Options(y="ms_per_sample", x=MICRO, by=(SCHEDULE,)))
    assert slow.figure is not None
    assert slow.figure.data[0].customdata[0] == pytest.approx(1000 / 240)


def test_a_map_needs_two_axes() -> None:
    assert heatmap.figure([point(1, {MICRO: 1}), point(2, {MICRO: 2})]).empty == (
        "Heatmap: needs runs that differ on two axes."
    )


def test_a_roofline_bends_where_memory_becomes_the_limit() -> None:
    points = [
        point(n, {MICRO: n}, 10.0, flops_per_gpu=1e12 * n, mfu_pct=float(n), roof=Roof(100e12, 1e12, 50.0 * n))
        for n in (1, 4)
    ]
    drawing = roofline.figure(points)
    roof = next(trace for name, trace in traces(drawing).items() if name.startswith("peak"))
    assert list(roof.x) == [25.0, 100.0, 400.0]
    assert list(roof.y) == pytest.approx([25e12, 100e12, 100e12])
    assert drawing.caption.startswith("Best: 4.00 % of peak FLOP/s, micro batch size 4 (run 4).")
    assert drawing.caption.endswith("1 of 2 runs are limited by memory bandwidth, not by compute.")
    flat = roofline.figure([p._replace(roof=Roof(100e12, None, 5.0)) for p in points])
    assert list(next(t for name, t in traces(flat).items() if name.startswith("peak")).y) == [100e12, 100e12]
    assert roofline.figure([point(1, {}, 5.0)]).figure is None


def test_names_from_people_are_not_markup_in_maps_either() -> None:
    points = [point(2 * n + m, {"<b>x</b>": f"<i>{n}</i>", MICRO: m, "z": 3 - n}) for n in (1, 2) for m in (1, 2)]
    for drawing in (heatmap.figure(points), throughput.figure(points, Options(x="<b>x</b>"))):
        assert drawing.figure is not None
        assert "<b>" not in drawing.figure.to_json()
        assert "<i>" not in drawing.figure.to_json()


def test_a_point_without_spread_has_no_bars() -> None:
    bare = [point(1, {MICRO: 1}, 10.0, step_time_s=Spread(3.2)), point(2, {MICRO: 2}, 20.0, step_time_s=Spread(1.6))]
    assert layout(throughput.figure(bare)).title.subtitle.text == "one point per run"


def test_shades_span_the_scale_in_either_direction_or_between_given_ends() -> None:
    ends = [heatmap.SCALE[0], heatmap.SCALE[-1]]
    light, dark = "rgb(241, 246, 251)", "rgb(0, 114, 178)"
    assert heatmap.shades([3.0, 1.0], ends) == [dark, light]
    assert heatmap.shades([3.0, 1.0], ends, is_reversed=True) == [light, dark]
    assert heatmap.shades([9.0, 0.0], ends, low=1.0, high=2.0) == [dark, light]
    assert heatmap.shades([2.0], ends) == [light]
    assert heatmap.shades([], ends) == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("loss", 0.0065, "0.00650"), ("mfu", 41.23, "41.2 %"), ("step_time", 0.0065, "6.50 ms")],
)
def test_a_number_is_written_with_its_unit_and_a_prefix_only_where_it_has_one(
    name: str, value: float, text: str
) -> None:
    assert MEASURES[name].text(value).replace("\N{NARROW NO-BREAK SPACE}", " ") == text


def test_a_run_with_an_unknown_number_of_gpus_is_left_out_of_scaling() -> None:
    points = [
        point(number, {}, gpus=gpus, samples_per_s=10.0 * number, step_time_s=Spread(1.0 / number), global_batch_size=8)
        for number, gpus in ((1, 1), (2, 2), (3, None))
    ]
    for drawing in (efficiency.figure(points), throughput.figure(points)):
        assert "number of GPUs is unknown: run 3" in drawing.caption
        assert drawing.figure is not None
        assert all(None not in trace.x for trace in drawing.figure.data)
    alone = [p._replace(gpus=None) for p in points]
    assert efficiency.missing(Available(alone)) == "the number of GPUs is unknown"
