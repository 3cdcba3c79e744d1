"""Predicted against measured, and training days against nodes."""

from __future__ import annotations

import pytest

from parlab.charts.sweeps import predicted
from parlab.charts.sweeps.predicted import PredictedPoint, SizePoint


def point(number: int, measured: float | None, guess: float, plain: float) -> PredictedPoint:
    return PredictedPoint(
        number, {"train.micro_batch_size": number}, measured, guess, plain, 1e9, 2e9, False, True, "b"
    )


def test_each_timed_run_has_a_calibrated_and_an_uncalibrated_mark() -> None:
    drawing = predicted.figure([point(1, 1.0, 1.1, 2.0), point(2, 2.0, 1.9, 4.0), point(3, None, 1.0, 1.0)])
    assert drawing.figure is not None
    calibrated, plain, agree = drawing.figure.data
    assert list(calibrated.y) == [1.1, 1.9]
    assert list(plain.y) == [2.0, 4.0]
    assert list(agree.x) == list(agree.y) == [1.0, 4.0]
    assert "within 100 % without calibration, within 7.50 %" in drawing.caption
    assert [row[0] for row in drawing.table.rows] == [1, 2, 3]


def test_without_a_calibration_there_is_one_mark_for_each_run() -> None:
    drawing = predicted.figure([point(1, 1.0, 2.0, 2.0)])
    assert drawing.figure is not None
    assert [trace.name for trace in drawing.figure.data] == ["not calibrated", "agree"]


def test_nothing_timed_says_so() -> None:
    assert predicted.figure([point(1, None, 1.0, 1.0)]).empty


def test_days_are_drawn_over_nodes_with_ideal_scaling_from_the_fewest() -> None:
    sizes = [
        SizePoint(4, 32, None, None, None, "", None, None),
        SizePoint(8, 64, 100.0, 90.0, 111.0, "TP 8", 153_600.0, 3e5),
        SizePoint(16, 128, 60.0, 54.0, 67.0, "TP 8", 184_320.0, 3.6e5),
    ]
    drawing = predicted.trade_off(sizes, wanted_days=70)
    assert drawing.figure is not None
    ideal, days = drawing.figure.data
    assert list(ideal.y) == [100.0, 50.0]
    assert list(days.x) == [8, 16]
    assert list(days.error_y.array) == pytest.approx([11, 7])
    assert "83.3" in drawing.caption
    assert "1 number of nodes has no layout that fits" in drawing.caption
    assert len(drawing.table.rows) == 3


def test_the_trade_off_without_a_feasible_number_of_nodes_gives_the_reason() -> None:
    assert predicted.trade_off([SizePoint(1, 8, None, None, None, "", None, None)]).empty


def test_a_large_error_is_written_as_a_factor() -> None:
    assert "within a factor of 51.0 without" in predicted.figure([point(1, 1.0, 51.0, 51.0)]).caption
