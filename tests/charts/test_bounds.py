"""What figures draw beside the points: bounds, names at bars, and axes that fit the runs."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.charts import theme
from parlab.charts.axes import plan
from parlab.charts.labels import BEST, BOUND, LINE_END
from parlab.charts.measures import Available, Options
from parlab.charts.points import MemoryBound, RunPoint, Spread, Timer
from parlab.charts.sweeps import efficiency, heatmap, memory, phases, throughput

GIB = 2.0**30
H100 = MemoryBound(80 * GIB, "H100 SXM")
MICRO = "train.micro_batch_size"


def point(number: int, values: dict[str, Any], gib: float | None = None, **more: Any) -> RunPoint:
    return RunPoint(
        number,
        more.pop("state", "finished"),
        values,
        more.pop("gpus", 8),
        memory_max=gib and gib * GIB,
        memory_bound=more.pop("bound", H100),
        **more,
    )


def notes(drawing: theme.Drawing, name: str) -> list[str]:
    assert drawing.figure is not None
    return [note.text for note in drawing.figure.layout.annotations if note.name == name]


def test_memory_shows_the_bound_of_the_device_where_runs_come_near_it() -> None:
    sizes = [point(n, {MICRO: n}, 30.0 * n) for n in (1, 2)]
    too_big = point(4, {MICRO: 4}, state="oom")
    for drawing in (memory.figure([*sizes, too_big]), memory.figure([*sizes, too_big], Options(x=MICRO))):
        assert drawing.figure is not None
        assert notes(drawing, BOUND) == ["80.0\N{NARROW NO-BREAK SPACE}GiB, H100 SXM"]
        assert drawing.figure.layout.shapes[0].y0 == 80.0
    assert notes(memory.figure([*sizes, too_big], Options(x=MICRO)), BEST)[0].startswith("least 30.0")


def test_a_bound_far_above_the_runs_is_a_sentence() -> None:
    drawing = memory.figure([point(n, {MICRO: n}, 2.0 * n) for n in (1, 2)])
    assert notes(drawing, BOUND) == []
    assert "That is 5.0" in drawing.caption
    assert "H100 SXM" in drawing.caption


def test_memory_has_a_band_per_line_up_to_as_many_lines_as_can_be_told_apart() -> None:
    for count in (memory.MAX_BANDS, memory.MAX_BANDS + 1):
        values = [
            {MICRO: micro, "parallel.schedule": f"schedule {line:02}"} for line in range(count) for micro in (1, 2)
        ]
        drawing = memory.figure([point(n, axes, 10.0 + n) for n, axes in enumerate(values)], Options(x=MICRO))
        assert drawing.figure is not None
        lines = [trace for trace in drawing.figure.data if trace.type == "scatter" and trace.name]
        assert len({trace.name for trace in lines}) == (count if count == memory.MAX_BANDS else 0)


def test_bars_of_ranks_and_phases_are_named_in_the_figure_and_not_by_a_legend() -> None:
    ranks = [point(n, {MICRO: n}, memory_by_rank={rank: (rank + n) * GIB for rank in range(8)}) for n in (1, 2)]
    drawing = memory.figure(ranks)
    assert drawing.figure is not None
    assert drawing.figure.layout.showlegend is False
    assert [trace.text for trace in drawing.figure.data] == [str(rank) for rank in range(8)]
    names = ("forward-compute", "backward-compute", "optimizer")
    timed = [
        point(n, {MICRO: n}, step_time_s=Spread(4.0), timers={name: Timer(1.0, 1.0, 1.0) for name in names})
        for n in (1, 2)
    ]
    drawing = phases.figure(timed)
    assert drawing.figure is not None
    assert notes(drawing, LINE_END) == [*names, phases.OTHER]
    assert drawing.figure.layout.showlegend is False
    without = timed[1]._replace(timers={names[0]: Timer(1.0, 1.0, 1.0)})
    partial = phases.figure([timed[0], without])
    assert partial.figure is not None
    assert partial.figure.layout.showlegend is True


def test_rows_that_differ_in_everything_are_one_series_and_no_grid() -> None:
    counts = (512, 768, 4096, 6144, 10240, 10752, 10752)
    rows = [point(n, {"system": f"cluster {n}"}, gpus=gpus, tokens_per_s=gpus * 900.0) for n, gpus in enumerate(counts)]
    assert plan(rows).lines == []
    assert "has one" in heatmap.missing(Available(rows))
    drawing = throughput.figure(rows)
    assert drawing.figure is not None
    # Ticks that would overlap are left out, the last one never.
    assert list(drawing.figure.layout.xaxis.tickvals) == [512, 768, 4096, 6144, 10752]


def test_efficiency_of_tokens_is_drawn_where_no_run_states_samples() -> None:
    rows = [point(n, {"parallel.data_parallel_size": n}, gpus=8 * n, tokens_per_s=1e4 * n * 0.9**n) for n in (1, 2, 3)]
    drawing = efficiency.figure(rows)
    assert drawing.figure is not None
    assert list(drawing.figure.data[0].y) == pytest.approx([100.0, 90.0, 81.0])


def test_fields_in_figures_have_their_names_and_units() -> None:
    delays = [
        point(n, {"network.delay_ms": 5 * n, "train.recompute": "none"}, samples_per_s=10.0 + n) for n in range(1, 4)
    ]
    drawing = throughput.figure(delays)
    assert drawing.figure is not None
    assert drawing.figure.layout.xaxis.title.text == "Delay (ms)"
    assert "delay 15\N{NARROW NO-BREAK SPACE}ms" in drawing.caption
