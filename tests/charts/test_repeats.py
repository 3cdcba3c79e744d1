"""Repeats in every figure of an experiment: one point with its spread, and differences that are only noise."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.charts.points import Roof, RunPoint, Spread, Timer
from parlab.charts.registry import EXPERIMENT_FIGURES, Figure, Source
from parlab.charts.repeats import bars_over, lead_note, pooled
from parlab.charts.sweeps.bandwidth import Message
from parlab.charts.sweeps.predicted import PredictedPoint

MICRO, SCHEDULE = "train.micro_batch_size", "parallel.schedule"
FACTORS = (0.96, 1.0, 1.04)


def repeat(number: int, values: dict[str, Any], gpus: int, seconds: float) -> RunPoint:
    return RunPoint(
        number,
        "finished",
        values,
        gpus,
        Spread(seconds, seconds, seconds),
        samples_per_s=8 / seconds,
        memory_by_rank={0: seconds * 1e9, 1: seconds * 1.1e9},
        memory_min=seconds * 1e9,
        memory_max=seconds * 1.1e9,
        timers={name: Timer(seconds / 3, seconds / 4, seconds / 2) for name in ("forward-compute", "optimizer")},
        mfu_pct=30 / seconds,
        flops_per_gpu=1e14 / seconds,
        roof=Roof(3e14, 1e12, 4096.0 * values.get(MICRO, 1)),
    )


def points() -> list[RunPoint]:
    """Four points of three repeats; the two with micro batch size 2 differ by 1 %, repeats by 4 %."""
    times = {("gpipe", 1): 1.0, ("gpipe", 2): 0.505, ("1f1b", 1): 0.9, ("1f1b", 2): 0.5}
    groups = [
        [repeat(10 * n + k, {SCHEDULE: s, MICRO: m}, m, seconds * factor) for k, factor in enumerate(FACTORS)]
        for n, ((s, m), seconds) in enumerate(times.items(), 1)
    ]
    return [pooled(group) for group in groups]


def data_of(figure: Figure) -> Any:
    if figure.source is Source.MESSAGES:
        return [Message(n, "all-reduce", 2, 1024, 1e9 * factor, 1e9 * factor) for n, factor in enumerate(FACTORS)]
    if figure.source is Source.PREDICTIONS:
        return [PredictedPoint(1, {}, 1.0, 1.1, 1.1, None, 0.0, False, True, "", FACTORS)], []
    return points()


@pytest.mark.parametrize("name", EXPERIMENT_FIGURES)
def test_every_figure_draws_repeats_as_one_point_with_its_spread(name: str) -> None:
    figure = EXPERIMENT_FIGURES[name]
    drawing = figure.drawing(data_of(figure))
    assert drawing.figure is not None, drawing.empty
    bars = [
        length
        for trace in drawing.figure.data
        for error in (getattr(trace, "error_y", None), getattr(trace, "error_x", None))
        if error is not None
        for length in error.array or ()
    ]
    texts = [text for trace in drawing.figure.data for text in trace.text or ()]
    assert any(length > 0 for length in bars) or any("±" in text for text in texts)
    said = f"{drawing.figure.layout.title.subtitle.text} {drawing.caption} {texts}"
    assert "repeats" in said


@pytest.mark.parametrize("name", ["throughput", "heatmap", "memory", "utilisation", "roofline", "efficiency"])
def test_a_lead_smaller_than_the_noise_of_repeats_is_called_so(name: str) -> None:
    caption = EXPERIMENT_FIGURES[name].drawing(points()).caption
    assert "smaller than the noise of the repeats" in caption


def test_bandwidths_of_different_settings_are_lines_and_no_repeats() -> None:
    figure = EXPERIMENT_FIGURES["bandwidth"]
    messages = [Message(n, "all-reduce", 2, 1024, 1e9, 1e9 * n, variant=f"delay {n} ms") for n in (1, 2)]
    drawing = figure.drawing(messages)
    assert drawing.figure is not None
    assert {trace.name.partition(":")[0] for trace in drawing.figure.data} == {
        "all-reduce, 2 ranks, delay 1 ms",
        "all-reduce, 2 ranks, delay 2 ms",
    }


def test_bars_reach_up_to_the_largest_repeat_and_down_to_the_smallest() -> None:
    bars = bars_over([(10.0, (9.0, 10.0, 13.0)), (None, (1.0, 2.0)), (5.0, ())])
    assert (bars["array"], bars["arrayminus"]) == ([3.0, 0.0, 0.0], [1.0, 0.0, 0.0])


def test_the_noise_of_a_lead_over_a_single_run_counts_the_repeats_of_the_best() -> None:
    best = pooled([repeat(n, {MICRO: 1}, 1, seconds) for n, seconds in enumerate((0.98, 1.0, 1.02), 1)])
    note = lead_note([best, repeat(9, {MICRO: 2}, 1, 2.0)], lambda run: run.samples_per_s, least_is_best=False)
    # Student's t of 2 degrees of freedom x 2 % x sqrt(1 / 3 + 1)
    assert note == " It leads by more than the noise of the repeats (9.9\N{NARROW NO-BREAK SPACE}%)."
