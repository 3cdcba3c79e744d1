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


def test_what_a_file_states_has_its_digits_and_what_is_computed_from_it_three() -> None:
    points = [point(1, "slow", 1000 / 108.4375), point(2, "fast", 9.6386)]
    printed = [each._replace(is_printed=True, global_batch_size=64, step_time_s=Spread(6.94)) for each in points]
    drawing = parallel(printed, ["one", "two"])
    assert drawing.figure is not None
    places = {title: place for place, title in enumerate(drawing.figure.layout.xaxis.ticktext)}
    labels = [label for label in drawing.figure.layout.annotations if label.name == "axis value"]
    texts = {title: [label.text for label in labels if label.x == place] for title, place in places.items()}
    assert "9.6386" in texts["Throughput (samples/s)"]
    assert texts["Time per sample (ms)"] == ["104", "108"]
