"""The figures of an experiment: which data they draw, and what they say where there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parlab.charts import axes, theme
from parlab.charts.axes import log_ticks
from parlab.charts.measures import Options
from parlab.charts.points import RunPoint, Spread, Timer
from parlab.charts.sweeps import heatmap, memory, phases, throughput

MICRO = "train.micro_batch_size"
SCHEDULE = "parallel.schedule"


def point(number: int, values: dict[str, Any], samples_per_s: float | None = 10.0, **more: Any) -> RunPoint:
    more = {"state": "finished", "gpus": 2, "global_batch_size": 32, **more}
    if samples_per_s is not None:
        more.setdefault("step_time_s", Spread(32 / samples_per_s, 0.9 * 32 / samples_per_s, 1.25 * 32 / samples_per_s))
    return RunPoint(number=number, values=values, samples_per_s=samples_per_s, **more)


def test_a_caption_names_the_first_of_many_settings_and_the_run() -> None:
    many = point(9, {f"axis {letter}": 1 for letter in "abcdef"})
    assert many.full_label == "axis a 1, axis b 1, axis c 1, … (run 9)"
    assert many.label.count("axis") == 6
    assert point(2, {SCHEDULE: "gpipe", MICRO: 4}).full_label == "schedule gpipe, micro batch size 4 (run 2)"


def traces(drawing: theme.Drawing) -> dict[str, Any]:
    assert drawing.figure is not None
    return {trace.name: trace for trace in drawing.figure.data}


def sweep() -> list[RunPoint]:
    return [
        point(number, {SCHEDULE: schedule, MICRO: size}, samples_per_s=100 + 10 * number)
        for number, (schedule, size) in enumerate([(s, m) for s in ("gpipe", "1f1b") for m in (4, 1, 2)], 1)
    ]


def test_throughput_has_a_line_per_schedule_over_sorted_micro_batches() -> None:
    drawn = traces(throughput.figure(sweep()))
    assert list(drawn) == ["gpipe", "1f1b"]
    assert list(drawn["gpipe"].x) == [1, 2, 4]
    assert list(drawn["gpipe"].y) == [120, 130, 110]
    assert drawn["gpipe"].mode == "lines+markers"


def test_labels_keep_the_digits_of_a_file() -> None:
    rates = {("gpipe", 1): 2502.236, ("gpipe", 2): 2600.5, ("1f1b", 1): 2700.25, ("1f1b", 2): 2800.125}
    points = [
        point(number, {SCHEDULE: schedule, MICRO: size}, rate, is_printed=True, memory_max=11.21 * 2**30)
        for number, ((schedule, size), rate) in enumerate(rates.items(), 1)
    ]
    assert "2,800.125" in (throughput.figure(points).caption or "")
    assert "11.21" in (memory.figure(points).caption or "")
    grid = heatmap.figure(points)
    assert grid.figure is not None
    assert sorted(grid.figure.data[0].text) == ["2,502.236", "2,600.5", "2,700.25", "2,800.125"]
    assert "2,800.125" in (grid.caption or "")
    measured = [point._replace(is_printed=False) for point in points]
    assert "2,800" in (throughput.figure(measured).caption or "")
    assert "2,800.1" not in (throughput.figure(measured).caption or "")


def test_error_bars_are_the_percentiles_of_step_time_as_throughput() -> None:
    bars = traces(throughput.figure(sweep()))["gpipe"].error_y
    assert bars.array[0] == pytest.approx(120 / 0.9 - 120)
    assert bars.arrayminus[0] == pytest.approx(120 - 120 / 1.25)


def test_a_schedule_has_its_colour_whatever_else_is_drawn() -> None:
    alone = traces(throughput.figure([point(1, {SCHEDULE: "1f1b", MICRO: 1}), point(2, {SCHEDULE: "zb", MICRO: 2})]))
    both = traces(throughput.figure(sweep()))
    assert both["1f1b"].line.color == alone["1f1b"].line.color == theme.VERMILLION
    assert alone["zb"].line.color not in (theme.VERMILLION, theme.BLUE)
    assert both["gpipe"].marker.symbol != both["1f1b"].marker.symbol


def test_gpus_are_drawn_on_a_log_axis_with_the_ideal_line() -> None:
    points = [point(n, {"parallel.data_parallel_size": 2**n}, 10.0 * 2**n * 0.9**n, gpus=2**n) for n in range(4)]
    drawing = throughput.figure(points)
    drawn = traces(drawing)
    assert drawing.figure is not None
    assert drawing.figure.layout.xaxis.type == "log"
    assert list(drawing.figure.layout.xaxis.ticktext) == ["1", "2", "4", "8"]
    assert list(drawn["ideal from 1"].y) == [10.0, 20.0, 40.0, 80.0]
    assert list(drawn["measured"].x) == [1, 2, 4, 8]
    assert "Strong scaling: 32 samples" in drawing.caption


def test_an_axis_that_is_the_number_of_gpus_under_another_name_makes_one_line() -> None:
    drawing = throughput.figure([point(n, {"gpus": gpus}, 10.0 * gpus, gpus=gpus) for n, gpus in enumerate((1, 4, 2))])
    (line,) = [trace for name, trace in traces(drawing).items() if "ideal" not in str(name)]
    assert list(line.x) == [1, 2, 4]


def test_four_systems_on_as_many_numbers_of_gpus_are_one_series_and_three_are_lines() -> None:
    points = [point(n, {"system": f"system {n}"}, 10.0, gpus=2**n) for n in range(4)]
    assert axes.plan(points) == axes.Plan(axes.GPUS, [])
    assert axes.plan(points[:3]) == axes.Plan(axes.GPUS, ["system"])


def test_an_axis_is_logarithmic_from_four_times_its_smallest_value() -> None:
    assert axes.x_axis([1, 2, 4], MICRO)["type"] == "log"
    assert axes.x_axis([1, 2, 3], MICRO)["type"] == "linear"


def test_the_caption_names_weak_scaling() -> None:
    points = [point(n, {"gpus": n}, 10.0 * n, gpus=n, global_batch_size=8 * n) for n in (1, 2)]
    assert "Weak scaling: 8 samples per step per GPU" in throughput.figure(points).caption


def test_layouts_on_the_same_number_of_gpus_are_separate_lines() -> None:
    pairs = [(1, 2), (2, 1), (2, 2)]
    names = ("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size")
    points = [point(i, dict(zip(names, pair, strict=True)), gpus=pair[0] * pair[1]) for i, pair in enumerate(pairs)]
    drawn = traces(throughput.figure(points))
    assert "tensor parallel size 1, pipeline parallel size 2" in drawn
    assert "tensor parallel size 2, pipeline parallel size 1" in drawn


def test_runs_out_of_memory_are_marked_and_counted() -> None:
    points = [*sweep(), point(7, {SCHEDULE: "gpipe", MICRO: 8}, None, state="oom")]
    drawing = throughput.figure(points)
    mark = traces(drawing)["OOM"]
    assert list(mark.x) == [8]
    assert list(mark.y) == [0.0]
    assert "1 of 7 ran out of memory" in drawing.caption


def test_what_a_run_reached_before_it_ran_out_of_memory_is_no_throughput() -> None:
    drawing = throughput.figure([*sweep(), point(7, {SCHEDULE: "gpipe", MICRO: 8}, 999.0, state="oom")])
    assert 8 not in traces(drawing)["gpipe"].x
    assert drawing.caption.startswith("Highest: 160")


def test_a_run_with_other_axes_is_named_instead_of_drawn() -> None:
    drawing = throughput.figure([*sweep(), point(9, {"method": "ZeRO-3"}, None, state="oom")])
    assert "OOM" not in traces(drawing)
    assert "run 9 (method ZeRO-3: OOM)" in drawing.caption
    assert 9 in [row[0] for row in drawing.table.rows]


def test_axes_without_numbers_become_markers_without_lines() -> None:
    drawn = traces(throughput.figure([point(1, {SCHEDULE: "gpipe"}), point(2, {SCHEDULE: "1f1b"})]))
    assert [trace.mode for trace in drawn.values()] == ["markers"]


def test_a_single_run_is_a_figure_too() -> None:
    assert list(traces(throughput.figure([point(1, {})]))["measured"].y) == [10.0]


def test_names_from_people_are_not_markup() -> None:
    timers = {"<b>t</b>": Timer(1, 1, 1)}
    texts = {"<b>x</b>": "<b>y</b>"}, {"<b>x</b>": "<b>z</b>"}
    points = [point(n, v, memory_by_rank={0: 1.0}, timers=timers) for n, v in enumerate(texts)]
    for drawing in (throughput.figure(points), phases.figure(points), memory.figure(points)):
        assert drawing.figure is not None
        assert "&lt;b&gt;" in drawing.figure.to_json()
        assert "<b>" not in drawing.figure.to_json()


def test_without_numbers_the_figures_say_why() -> None:
    published, measured = [point(1, {}, 5.0, is_published=True)], [point(1, {}, 5.0)]
    assert throughput.figure([]).empty == "Throughput: no run has finished."
    assert throughput.figure([point(1, {}, None, state="oom")]).figure is None
    unmeasured = throughput.figure([point(1, {}, None)])
    assert unmeasured.empty == "Throughput: no finished run has samples per second."
    assert memory.figure([]).empty == "Memory per rank: no run has finished."
    assert memory.figure(measured).empty == "Memory per rank: the runs did not measure it."
    assert memory.figure(published).empty == "Memory per rank: the published figures do not include it."
    assert phases.figure([]).empty == "Time per phase: no run has finished."
    assert phases.figure(measured).empty == "Time per phase: the runs printed no timers."
    assert phases.figure(published).empty == "Time per phase: the published figures do not include timers."


def test_of_very_many_runs_the_fastest_are_drawn_and_the_table_holds_all() -> None:
    timers = {"optimizer": Timer(0.1, 0.1, 0.1)}
    points = [
        point(n, {"train.seed": f"s{n}", MICRO: m}, n, memory_by_rank={0: 1.0}, timers=timers)
        for n in range(1, 101)
        for m in (1, 2)
    ]
    points = [run._replace(number=number) for number, run in enumerate(points, 1)]
    lines = throughput.figure(points)
    assert list(traces(lines)) == [f"s{n}" for n in range(77, 101)]
    assert "Only the 24 fastest of 100 lines are drawn" in lines.caption
    for drawing in (memory.figure(points), phases.figure(points)):
        assert drawing.figure is not None
        assert len(drawing.figure.data[0].x) == 60
        assert drawing.figure.data[0].x[0].startswith("#141 ")
        assert "Only the 60 fastest of 200 runs are drawn" in drawing.caption
        assert len(drawing.table.rows) == 200


def test_memory_has_a_bar_per_rank_in_the_shown_unit() -> None:
    points = [
        point(1, {MICRO: 1}, memory_by_rank={0: 3 * 2**30, 1: 2 * 2**30}, memory_min=2 * 2**30, memory_max=3 * 2**30),
        point(2, {MICRO: 2}, memory_by_rank={0: 5 * 2**30, 1: 4 * 2**30}, memory_min=4 * 2**30, memory_max=5 * 2**30),
    ]
    drawing = memory.figure(points)
    drawn = traces(drawing)
    assert list(drawn["rank 0"].y) == [3.0, 5.0]
    assert list(drawn["rank 1"].y) == [2.0, 4.0]
    assert drawing.figure is not None
    assert drawing.figure.layout.yaxis.title.text == "Peak memory (GiB)"
    assert drawing.table.rows[0] == [1, 1, "finished", 0, 3 * 2**30]


def test_many_ranks_become_a_range_and_oom_is_hatched() -> None:
    ranks = {rank: float(2**30 + rank) for rank in range(20)}
    points = [
        point(1, {MICRO: 1}, memory_by_rank=ranks, memory_min=2**30, memory_max=2**30 + 2**29),
        point(2, {MICRO: 2}, None, state="oom", memory_by_rank=ranks, memory_min=2**30, memory_max=2**31),
        point(3, {MICRO: 4}, None, state="oom"),
    ]
    drawn = traces(memory.figure(points))
    assert list(drawn["all ranks"].base) == [1.0, 1.0]
    assert list(drawn["all ranks"].y) == [0.5, 1.0]
    assert list(drawn["all ranks"].marker.pattern.shape) == ["", "/"]
    assert list(drawn["OOM"].x) == ["#3 4"]


def test_phases_are_stacked_and_the_rest_of_the_step_is_grey() -> None:
    timers = {"backward-compute": Timer(0.5, 0.4, 0.6), "forward-compute": Timer(0.3, 0.3, 0.3)}
    drawn = traces(phases.figure([point(1, {}, 32.0, step_time_s=Spread(1.0), timers=timers)]))
    assert list(drawn) == ["forward-compute", "backward-compute", "not timed"]
    assert [list(trace.y) for trace in drawn.values()] == [[0.3], [0.5], [pytest.approx(0.2)]]


def test_timers_inside_others_are_not_added_twice() -> None:
    names = ["forward-backward", "forward-compute", "backward-compute", "optimizer", "optimizer-clip-main-grad"]
    timers = {name: Timer(1.0, 1.0, 1.0) for name in names}
    assert list(phases.parts(timers)) == ["forward-compute", "backward-compute", "optimizer"]


def test_a_drawing_is_valid_json_with_title_units_and_fixed_height() -> None:
    answer = json.loads(throughput.figure(sweep()).to_json())
    layout = answer["figure"]["layout"]
    assert layout["title"]["text"] == "Throughput"
    assert layout["yaxis"]["title"]["text"] == "Throughput (samples/s)"
    assert layout["xaxis"]["title"]["text"] == "Micro batch size"
    assert layout["height"] == theme.HEIGHT
    assert answer["caption"]
    assert answer["empty"] is None


def scaling(oom: int = 0) -> list[RunPoint]:
    """Two micro batches on 1 to 8 GPUs, memory falling; the larger one does not fit on so many of the smallest."""
    return [
        point(
            number,
            {"parallel.data_parallel_size": gpus, MICRO: size},
            gpus=gpus,
            state="oom" if size == 4 and gpus <= oom else "finished",
            memory_min=None if size == 4 and gpus <= oom else size * 2**30 / gpus,
            memory_max=None if size == 4 and gpus <= oom else 2 * size * 2**30 / gpus,
        )
        for number, (size, gpus) in enumerate([(s, g) for s in (2, 4) for g in (1, 2, 4, 8)], 1)
    ]


def test_memory_against_gpus_is_a_band_from_the_least_to_the_most_of_the_ranks() -> None:
    drawing = memory.figure(scaling())
    assert drawing.figure is not None
    low, high = drawing.figure.data[:2]
    assert low.name == high.name == "micro batch size 2"
    assert high.fill == "tonexty"
    assert list(high.x) == [1, 2, 4, 8]
    assert [most / least for least, most in zip(low.y, high.y, strict=True)] == [2, 2, 2, 2]
    assert high.line.color == drawing.figure.data[1].marker.color != drawing.figure.data[3].line.color
    assert (drawing.figure.layout.xaxis.title.text, drawing.figure.layout.xaxis.type) == ("GPUs", "log")
    assert len(drawing.table.rows) == 16


def test_out_of_memory_runs_are_marked_below_the_bands_once_per_place() -> None:
    drawn = traces(memory.figure([*scaling(oom=2), *scaling(oom=1)]))
    assert list(drawn["OOM"].x) == [1, 2]
    assert list(drawn["OOM"].text) == ["2 OOM", "OOM"]


def test_memory_follows_the_axis_that_a_person_chose() -> None:
    drawing = memory.figure(scaling(), Options(x=MICRO))
    assert drawing.figure is not None
    assert drawing.figure.layout.xaxis.title.text == "Micro batch size"
    assert list(drawing.figure.data[1].x) == [2, 4]


def test_phases_as_shares_make_bars_of_equal_height() -> None:
    times = {"forward-compute": Timer(1, 1, 1), "backward-compute": Timer(2, 2, 2)}
    points = [
        point(number, {MICRO: number}, step_time_s=Spread(4.0 * number), timers=times if number == 1 else
              {name: Timer(*(2 * part for part in timer)) for name, timer in times.items()})
        for number in (1, 2)
    ]  # fmt: skip
    drawn = traces(phases.figure(points, Options(as_share=True)))
    assert [sum(trace.y[at] for trace in drawn.values()) for at in (0, 1)] == pytest.approx([100, 100])
    assert list(drawn["forward-compute"].y) == [25, 25]
    drawing = phases.figure(points, Options(as_share=True))
    assert drawing.figure is not None
    assert drawing.figure.layout.yaxis.title.text == "Share of the step (%)"


def test_the_axis_of_many_runs_shows_only_their_numbers() -> None:
    few, many = theme.runs_axis(["#1 gpipe", "#2 1f1b"]), theme.runs_axis([f"#{n} gpipe 4" for n in range(1, 61)])
    assert "ticktext" not in few
    assert many["ticktext"][:2] == ["#1", "#6"]
    assert len(many["ticktext"]) <= 14
    assert len(many["categoryarray"]) == 60


@pytest.mark.parametrize(
    ("values", "step"), [([3, 9], None), ([1, 500], "D2"), ([0.001, 10], 1), ([1e-6, 1e12], 3), ([], None)]
)
def test_numbers_of_a_log_axis_do_not_lie_on_each_other(values: list[float], step: object) -> None:
    assert log_ticks(values).get("dtick") == step


def test_thousands_are_grouped_on_axes_as_in_texts() -> None:
    points = [RunPoint(n, "finished", {"g": g}, g, None, 2.0 * g) for n, g in enumerate((256, 1024, 2048), 1)]
    drawing = throughput.figure(points)
    assert drawing.figure is not None
    assert list(drawing.figure.layout.xaxis.ticktext) == ["256", "1,024", "2,048"]
    assert drawing.figure.layout.yaxis.tickformat == ",~g"  # 4,096, not 4.096k
    large = throughput.figure([point._replace(samples_per_s=1000.0 * point.number**3) for point in points])
    assert large.figure is not None
    assert large.figure.layout.yaxis.tickformat == "~s"  # 27k


def test_a_log_axis_has_few_numbers_where_only_the_ideal_reaches_far() -> None:
    drawing = throughput.figure(scaling())  # as fast on 8 GPUs as on 1, so all that spreads is the ideal
    assert max(traces(drawing)["ideal from 1"].y) == 80
    assert drawing.figure is not None
    assert drawing.figure.layout.yaxis.type == "log"
    assert drawing.figure.layout.yaxis.dtick == "D2"
