"""The step of a run as a bar: what it says adds up, parts lie beside each other, texts do not overlap."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from parlab.advice.waterfalls.terms import TERMS
from parlab.charts.runs.step_bar import (
    LOOKS,
    NOMINAL_PX,
    Chip,
    Part,
    StepBar,
    chip_places,
    places,
    step_bar,
    term_bar,
    tried_bar,
)

PARTS = [Part("ideal", 0.030, "30"), Part("kernels", 0.085, "85", "<b>"), Part("optimizer", 0.001, "1")]


def bar(*parts: Part, total_s: float = 0.116) -> StepBar:
    return StepBar("#1", total_s, "116 ms", "ms", parts or PARTS)


def test_each_term_of_a_waterfall_has_a_name_and_a_colour() -> None:
    assert list(LOOKS) == list(TERMS)


def test_parts_lie_beside_each_other_and_end_with_the_step() -> None:
    placed = places(bar(), 0.116)
    for before, after in pairwise(placed):
        assert after.begin == pytest.approx(before.begin + before.share)
    assert placed[-1].begin + placed[-1].share == pytest.approx(1)


def test_a_part_links_to_its_definition_and_a_short_one_is_named_above() -> None:
    drawn = step_bar(bar(), 0.116, "/time/")
    assert re.findall(r'href="([^"]+)"', drawn) == [f"/time/#term-{part.key}" for part in PARTS]
    assert "Optimizer 1</text>" in drawn
    assert "&lt;b&gt;" in drawn
    assert "<b>" not in drawn
    assert 'aria-label="#1: 116 ms = Useful 30, Other kernels 85, Optimizer 1"' in drawn


def test_terms_that_add_up_to_more_than_the_step_end_beyond_its_mark() -> None:
    over = bar(*PARTS, Part("unexplained", -0.016, "\N{MINUS SIGN}16"), total_s=0.100)
    assert over.extent_s == pytest.approx(0.116)
    drawn = step_bar(over, over.extent_s, "/time/")
    assert "Unexplained \N{MINUS SIGN}16</text>" in drawn
    assert 'x1="86.207%"' in drawn  # the mark of the step


def test_the_time_of_a_tried_run_stands_at_the_end_of_its_bar() -> None:
    drawn = tried_bar(bar(), 0.232, "\N{MINUS SIGN}50 %", "gain")
    assert 'x="50.000%" y="11" dx="8">116 ms<tspan class="gain"' in drawn
    assert 'text-anchor="end">116 ms' in tried_bar(bar(), 0.116, "+2 %", "loss")


def test_the_longest_term_of_the_list_leaves_room_for_its_number() -> None:
    assert 'width="84.000%"' in term_bar(PARTS[1], 0.085)


@pytest.mark.parametrize("middles", [(0.5, 0.5, 0.5), (0.0, 0.01, 0.02), (0.99, 1.0, 1.0)])
def test_chips_never_overlap_and_stay_inside(middles: tuple[float, ...]) -> None:
    placed = chip_places([Chip(middle, "Micro batch 4 -9 %", "(-20 to +2)") for middle in middles])
    assert placed[0][0] >= 0
    assert placed[-1][0] + placed[-1][1] <= NOMINAL_PX
    for (begin, width), (after, _) in pairwise(placed):
        assert begin + width <= after
