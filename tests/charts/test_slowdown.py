"""The heatmap of slowdowns."""

from __future__ import annotations

from parlab.charts.sweeps import slowdown
from parlab.charts.sweeps.slowdown import Slowdown

CELLS = [
    Slowdown("gpipe", 1, "0.1 ms", 1.0, 6.64),
    Slowdown("gpipe", 1, "10 ms", 1.26, 8.38),
    Slowdown("1f1b", 1, "0.1 ms", 1.0, 6.54),
    Slowdown("1f1b", 1, "10 ms", 1.71, 11.21),
    Slowdown("1f1b", 2, "10 ms", None),
]


def test_networks_go_down_schedules_and_micro_batches_across() -> None:
    drawing = slowdown.figure(CELLS, "measured")
    assert drawing.figure is not None
    (heat,) = drawing.figure.data
    assert list(drawing.figure.layout.yaxis.ticktext) == ["0.1 ms", "10 ms"]
    assert list(drawing.figure.layout.xaxis.ticktext) == [
        "gpipe, micro batch 1",
        "1f1b, micro batch 1",
        "1f1b, micro batch 2",
    ]
    rows = [base + height / 2 for base, height in zip(heat.base, heat.y, strict=True)]
    cells = zip(heat.x, rows, heat.customdata, strict=True)
    assert list(cells) == [(0, 0, 1.0), (0, 1, 1.26), (1, 0, 1.0), (1, 1, 1.71)]
    assert heat.text[3].startswith("1.71")
    assert "1f1b with micro batch 1 on 10 ms, 1.71 times" in drawing.caption
    assert ["measured", "1f1b", 1, "10 ms", 1.71, 11.21] in drawing.table.rows


def test_a_slowdown_without_two_networks_gives_the_reason() -> None:
    assert slowdown.figure([], "measured").empty
