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


def names_above(drawn: str) -> list[tuple[float, float, str]]:
    """Return middle (share), height (px) and text of each name above a bar."""
    found = re.findall(r'<text x="([\d.]+)%" y="([\d.]+)" text-anchor="middle">([^<]+)</text>', drawn)
    return [(float(x) / 100, float(y), text) for x, y, text in found]


def test_names_of_short_parts_at_the_end_stand_side_by_side_before_the_total() -> None:
    short = [Part("pipeline", 0.001, "1.0"), Part("straggler", 0.0031, "3.1"), Part("optimizer", 0.0012, "1.2")]
    drawn = step_bar(
        bar(Part("ideal", 0.060, "60.0"), *short, Part("bubble", 0.011, "11.0"), total_s=0.0763), 0.0763, "/"
    )
    above = names_above(drawn)
    assert [text for *_, text in above] == ["Pipeline 1.0", "Slowest rank 3.1", "Optimizer 1.2"]
    assert len({y for _, y, _ in above}) == 1
    for (x, _, text), (after, _, next_text) in pairwise(above):
        assert (after - x) * NOMINAL_PX >= 5.8 * (len(text) + len(next_text)) / 2
    assert above[-1][0] * NOMINAL_PX + 5.8 * len(above[-1][2]) / 2 <= NOMINAL_PX - 5.8 * len("116 ms")


def test_names_that_would_stand_far_from_their_parts_stand_in_rows() -> None:
    short = [
        Part(key, 0.0007, "0.7") for key in ("host", "recompute", "tensor", "context", "pipeline", "data", "expert")
    ]
    drawn = step_bar(bar(Part("ideal", 0.095, "95"), *short, total_s=0.0999), 0.0999, "/")
    assert len({y for _, y, _ in names_above(drawn)}) > 1


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
