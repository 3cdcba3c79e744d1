"""Recovery: the parts of an interruption add up to it, and goodput by hour to the time in steps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.advice.recovery import MEANINGS, SHORTER, TITLES, by_hour, interruption, totals

ENDS = {
    "detect": 130.0,
    "drain": 135.0,
    "queue": 150.0,
    "start": 170.0,
    "rendezvous": 172.0,
    "load": 190.0,
    "first_step": 220.0,
    "repeated": 260.0,
}


def test_each_part_ends_where_the_next_one_begins() -> None:
    found = interruption("Attempt 1 to 2", 100.0, ENDS)
    assert {part.key: part.seconds for part in found.parts} == {
        "detect": 30.0, "drain": 5.0, "queue": 15.0, "start": 20.0, "rendezvous": 2.0, "load": 18.0,
        "first_step": 30.0, "repeated": 40.0,
    }  # fmt: skip
    assert found.seconds == 160.0
    assert found.longest is not None
    assert found.longest.key == "repeated"
    assert "write checkpoints more often" in found.advice


def test_a_part_whose_end_is_unknown_is_contained_in_the_next_one_which_names_it() -> None:
    found = interruption("x", 100.0, {**ENDS, "start": None, "rendezvous": None})
    load = next(part for part in found.parts if part.key == "load")
    assert load.seconds == 40.0
    assert load.title == "Start, rendezvous, load"
    assert sum(part.seconds for part in found.parts) == found.seconds


@given(st.dictionaries(st.sampled_from(list(TITLES)), st.none() | st.floats(0, 1e6)), st.floats(0, 1e6))
def test_the_parts_always_add_up_even_if_clocks_disagree(ends: dict[str, float | None], begin: float) -> None:
    found = interruption("x", begin, ends)
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.seconds, rel=1e-9, abs=1e-6)
    assert all(part.seconds >= 0 for part in found.parts)


def test_totals_over_interruptions_and_a_text_for_each_part() -> None:
    found = [interruption("x", 100.0, ENDS), interruption("y", 200.0, {"detect": 210.0})]
    assert totals(found)["detect"] == 40.0
    assert list(MEANINGS) == list(TITLES) == list(SHORTER)


def test_goodput_by_hour_divides_a_step_over_the_hours_that_it_is_in() -> None:
    hours = by_hour(0.0, 9000.0, [([0.0, 3500.0], [1800.0, 3700.0]), ([8000.0], [9500.0])])
    assert [(hour.seconds, hour.progress_s) for hour in hours] == [(3600.0, 1900.0), (3600.0, 100.0), (1800.0, 1000.0)]
    assert hours[0].share == pytest.approx(1900 / 3600)
    assert by_hour(5.0, 5.0, []) == []


@given(st.lists(st.floats(0, 50_000), min_size=2, max_size=30, unique=True))
def test_the_hours_add_up_to_the_time_in_steps(times: list[float]) -> None:
    ends = sorted(times)
    begins = ends[:-1]
    hours = by_hour(ends[0], ends[-1], [(begins, ends[1:])])
    assert sum(hour.progress_s for hour in hours) == pytest.approx(sum(b - a for a, b in pairwise(ends)), abs=1e-3)
