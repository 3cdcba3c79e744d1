"""Parallel coordinates: values beside their axes, units once in the titles."""

from __future__ import annotations

from parlab.charts.points import RunPoint, Spread
from parlab.charts.sweeps.parallel import parallel


def point(number: int, variant: str, samples_per_s: float) -> RunPoint:
    return RunPoint(number, "finished", {"variant": variant}, 16, Spread(8 / samples_per_s), samples_per_s)


def test_values_are_whole_and_their_unit_is_in_the_title_of_the_axis() -> None:
    long_name = "DeepSpeed autotuning with offloaded states"
    drawing = parallel([point(1, "baseline", 25.0), point(2, long_name, 40.0)], ["one", "two"])
    assert drawing.figure is not None
    titles = drawing.figure.layout.xaxis.ticktext
    assert titles[0] == "Variant"
    assert "Throughput (samples/s)" in titles
    place = titles.index("Throughput (samples/s)")
    labels = [label for label in drawing.figure.layout.annotations if label.name == "axis value"]
    assert [label.text for label in labels if label.x == place] == ["25.0", "40.0"]
    assert [label.hovertext for label in labels if label.x == 0] == ["baseline", long_name]
