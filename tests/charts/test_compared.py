"""The pictures of a comparison: nothing is hidden, and nothing is claimed within noise."""

from __future__ import annotations

import re

from parlab.charts.format import unit_for
from parlab.charts.sweeps.compared import BridgeStep, MatrixCell, Sureness, bridge, matrix, sureness
from parlab.charts.sweeps.schedule_bars import ScheduleBar, schedule_bars
from parlab.charts.sweeps.trials import TrialBar, trials

UNIT = unit_for([0.4], "s")


def test_a_bridge_has_every_term_and_the_small_ones_as_one() -> None:
    steps = [BridgeStep(f"term {n}", -0.001 * n) for n in range(1, 12)] + [BridgeStep("Unexplained", 0.02, True)]
    drawing = str(bridge(("A", "B"), (0.4, 0.354), steps, UNIT))
    titles = re.findall(r"<title>(.*?)</title>", drawing)
    assert len(titles) == 2 + 7 + 1
    assert "hatch-bridge" in drawing
    assert any(title.startswith("Other") for title in titles)
    drawn = sum(float(title.split()[-1].replace("\N{MINUS SIGN}", "-")) for title in titles[1:-1])
    assert abs(drawn - (354 - 400)) < 1


def test_sureness_names_what_is_known() -> None:
    rows = [
        Sureness("Step time", -0.21, -0.41, 0.06, "not proven", None),
        Sureness("Peak memory", -0.08, None, None, "certain", True),
    ]
    drawing = str(sureness(rows))
    assert "not proven" in drawing
    assert "good-text" in drawing
    assert drawing.count('class="fl"') == 1


def test_a_matrix_hatches_what_is_within_noise() -> None:
    cells = [[MatrixCell(0.0), MatrixCell(None, is_noise=True)], [MatrixCell(0.0), MatrixCell(0.0)]]
    drawing = str(matrix(["<fast>", "slow"], cells))
    assert "\N{ALMOST EQUAL TO}" in drawing
    assert "<fast>" not in drawing


def test_schedules_are_links_and_stand_above_their_bound() -> None:
    bars = [ScheduleBar("gpipe", 0.4, 0.3, "?two=gpipe&x=1"), ScheduleBar("1f1b", 0.3, 0.1, "?two=1f1b", True, True)]
    drawing = str(schedule_bars(bars, 0.28, UNIT))
    assert 'href="?two=gpipe&amp;x=1"' in drawing
    assert "recommended" in drawing
    assert "no schedule below" in drawing


def test_trials_show_what_is_measured_running_and_out_of_memory() -> None:
    bars = [
        TrialBar(1, "z0", "search", "finished", 12.0, 10.0, "/r/1/", is_best=True),
        TrialBar(2, "z1", "search", "oom", None, 14.0, "/r/2/"),
        TrialBar(3, "z2", "search", "running", None, 11.0, "/r/3/"),
    ]
    drawing = str(trials(bars, "samples/s", 20))
    assert drawing.count("<a href=") == 3
    assert 'class="running"' in drawing
    assert ">OOM<" in drawing
    assert 'class="expected"' in drawing
    assert "f3" in drawing


def test_the_axis_of_sureness_ends_round_and_no_text_lies_below_a_point() -> None:
    rows = [
        Sureness("Step time", -0.2, -0.21, -0.19, "proven", True),
        Sureness("Loss", 0.03, -1.9, 1.96, "not proven", None),
    ]
    drawing = str(sureness(rows))
    assert re.findall(r"[+\N{MINUS SIGN}]\d+\N{NARROW NO-BREAK SPACE}%<", drawing)[-2:] == [
        "\N{MINUS SIGN}100\N{NARROW NO-BREAK SPACE}%<",
        "+100\N{NARROW NO-BREAK SPACE}%<",
    ]
    assert "\N{MINUS SIGN}20\N{NARROW NO-BREAK SPACE}% (\N{MINUS SIGN}21 to \N{MINUS SIGN}19)" in drawing
    assert drawing.count('<path class="fl"') == 2  # the interval of the loss goes on at both ends
    narrow = str(sureness(rows[:1]))
    assert "\N{MINUS SIGN}25\N{NARROW NO-BREAK SPACE}%" in narrow
