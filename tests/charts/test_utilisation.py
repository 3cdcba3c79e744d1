"""MFU, HFU and GPU utilisation of an experiment's runs."""

from __future__ import annotations

from typing import Any

from parlab.charts.points import RunPoint
from parlab.charts.sweeps import utilisation


def point(number: int, **shares: Any) -> RunPoint:
    return RunPoint(number=number, state="finished", values={"train.micro_batch_size": number}, gpus=8, **shares)


def test_only_shares_that_some_run_has_are_drawn() -> None:
    drawing = utilisation.figure([point(1, mfu_pct=30.0, hfu_pct=30.0), point(2, mfu_pct=40.0), point(3)])
    assert drawing.figure is not None
    # Nothing is computed again, so HFU would repeat MFU.
    assert [trace.name.partition(":")[0] for trace in drawing.figure.data] == ["MFU"]
    assert list(drawing.figure.data[0].y) == [30.0, 40.0]
    assert [row[0] for row in drawing.table.rows] == [1, 2]


def test_recomputation_and_busy_gpus_have_bars_of_their_own() -> None:
    drawing = utilisation.figure([point(1, mfu_pct=30.0, hfu_pct=38.0, gpu_util_pct=97.0)])
    assert drawing.figure is not None
    assert [trace.name.partition(":")[0] for trace in drawing.figure.data] == ["MFU", "HFU", "GPU utilisation"]
    assert "run 1" in drawing.figure.data[0].hovertext[0]


def test_the_peak_is_named_under_the_figure() -> None:
    same = [point(n, mfu_pct=10.0 * n, peak="312 TFLOP/s in bf16 (A100)") for n in (1, 2)]
    assert utilisation.figure(same).caption.endswith("micro batch size 2 (run 2), of 312 TFLOP/s in bf16 (A100).")
    other = point(3, mfu_pct=5.0, peak="989 TFLOP/s in bf16 (H100)")
    assert "2 different peaks" in utilisation.figure([*same, other]).caption


def test_without_any_share_the_figure_says_where_one_comes_from() -> None:
    assert (utilisation.figure([point(1)]).empty or "").startswith(
        "Utilisation: the peak FLOP/s of the devices is unknown"
    )


def test_the_numbers_of_a_figure_name_the_kinds_of_imported_ones() -> None:
    imported = point(1, mfu_pct=40.0)._replace(is_printed=True, kinds={"mfu_pct": "average"})
    table = utilisation.figure([imported, point(2, mfu_pct=41.0)]).table
    column = table.header.index("kind of mfu_pct")
    assert [row[column] for row in table.rows] == ["average", ""]
    assert not any(name.startswith("kind of") for name in utilisation.figure([point(1, mfu_pct=40.0)]).table.header)
