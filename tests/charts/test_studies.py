"""Figures of a study."""

from __future__ import annotations

from parlab.charts.sweeps import studies
from parlab.charts.sweeps.studies import Course, Setting, Trial


def trial(number: int, size: int, value: float | None, state: str = "finished", passes: int = 1) -> Trial:
    return Trial(number, f"z0_gas{passes}_tmbspg{size}", state, "z0", size, passes, value, 10.0, "why")


SETTINGS = [Setting(f"z0_gas1_tmbspg{size}", "z0", size, 1, 10.0, "fits") for size in (1, 2)]


def test_before_a_launch_has_ended_no_empty_axes_are_drawn() -> None:
    assert studies.progress([], "samples/s").empty
    assert studies.progress([trial(1, 1, None, "running")], "samples/s").empty


def test_a_space_without_trials_shows_the_predictions_or_says_what_it_needs() -> None:
    predicted = [Setting(f"z0_gas1_tmbspg{size}", "z0", size, 1, 10.0 * size, "fits") for size in (1, 2)]
    drawing = studies.space([*predicted, Setting("z0_gas1_tmbspg4", "z0", 4, 1, 40.0, "does not fit")], [], "samples/s")
    assert drawing.figure is not None
    assert [text.replace("\u202f", " ") for text in drawing.figure.data[-1].text] == [
        "\u2248 10.0",
        "\u2248 20.0",
        "too big",
    ]
    assert "The best prediction is that of z0_gas1_tmbspg2." in drawing.caption
    blank = [setting._replace(predicted=None) for setting in predicted]
    assert studies.space(blank, [], "samples/s").empty == "Search space: no trial has been launched yet."


def test_other_searches_of_the_space_are_lines_beside() -> None:
    others = [Course("study 2, random", [None, 5.0, 9.0, 9.0])]
    drawing = studies.progress([trial(1, 1, 8.0)], "samples/s", others)
    assert drawing.figure is not None
    line = next(trace for trace in drawing.figure.data if trace.name == "study 2, random")
    assert list(line.x) == [2, 3, 4]
    assert list(drawing.figure.layout.xaxis.range) == [0.5, 4.5]


def test_a_setting_between_the_points_of_the_sweep_has_a_place_on_the_map() -> None:
    drawing = studies.space(SETTINGS, [trial(1, 2, 8.0), trial(2, 3, 9.0, passes=2)], "samples/s")
    assert drawing.figure is not None
    assert list(drawing.figure.layout.xaxis.ticktext) == ["1", "2", "3"]
    assert list(drawing.figure.layout.yaxis.ticktext) == ["z0, gas 1", "z0, gas 2"]
    assert "1 of 2 settings were launched. 1 more were chosen between them." in drawing.caption
    assert drawing.figure.data[0].type == "bar"  # a heatmap would break the Content-Security-Policy
