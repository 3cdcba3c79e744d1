"""Figures of the nodes: the queue over the time of day, the day of a node, goodput by day."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from parlab.charts.cluster.clock import Clock
from parlab.charts.cluster.day import Ribbon, Track, day_figure
from parlab.charts.cluster.goodput import Day, goodput_figure
from parlab.charts.cluster.queue import WIDTH, Closed, Row, Span, queue_figure

NOON = 1_800_000_000.0 - 1_800_000_000.0 % 86400 + 12 * 3600


def span(**fields: object) -> Span:
    usual = {
        "since": NOON - 600, "starts": NOON - 300, "ends": NOON + 600, "kind": "run-running", "is_waiting": False,
        "end_text": "12:10", "title": "BERT #1",
    }  # fmt: skip
    return Span(**{**usual, **fields})  # type: ignore[arg-type]


def bars(figure: str) -> list[tuple[str, float, float]]:
    """Return class, left end and width of each bar."""
    found = re.findall(r'<rect class="(run-[^"]*)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', figure)
    return [(kind, float(left), float(width)) for kind, left, width in found]


@pytest.mark.parametrize(
    ("minutes", "first", "step"), [(5, 0, 60), (30, 0, 300), (240, 0, 3600), (60 * 24 * 3, 0, 43200)]
)
def test_ticks_are_round_times(minutes: int, first: int, step: int) -> None:
    ticks = Clock().ticks(NOON, NOON + 60 * minutes)
    assert ticks[0] == NOON + first
    assert {b - a for a, b in pairwise(ticks)} == {step}


def test_times_are_those_of_the_zone() -> None:
    clock = Clock(5.5 * 3600)
    assert clock.text(NOON) == "17:30"
    ticks = [clock.text(at) for at in clock.ticks(NOON, NOON + 3 * 3600)]
    assert ticks == [
        "17:30",
        "18:00",
        "18:30",
        "19:00",
        "19:30",
        "20:00",
        "20:30",
    ]


def test_what_is_expected_is_pale_and_touches_what_ran() -> None:
    figure = queue_figure([Row("BERT", " #1", "8", "/r/", [span()])], NOON, Clock(), "GPUs")
    (solid, left, width), (pale, from_now, rest) = bars(figure)
    assert (solid, pale) == ("run-running", "run-running expected")
    assert left + width == pytest.approx(from_now, abs=0.2)
    assert rest / width == pytest.approx(2, rel=0.02), "ten minutes are left, five have passed"
    assert "now 12:00" in figure


def test_a_waiting_run_is_dotted_until_it_starts() -> None:
    waiting = span(starts=NOON + 600, ends=NOON + 900, is_waiting=True, kind="run-queued")
    figure = queue_figure([Row("BERT", " #2", "8", "/r/", [waiting])], NOON, Clock(), "GPUs")
    ((kind, left, _),) = bars(figure)
    assert kind == "run-queued expected"
    dotted = re.search(r'class="waits" d="M([\d.]+) [\d.]+H([\d.]+)"', figure)
    assert dotted
    assert float(dotted[2]) == pytest.approx(left, abs=0.2)
    assert 'class="asked"' in figure


def test_a_run_without_an_expected_start_says_why() -> None:
    waiting = span(starts=None, ends=None, is_waiting=True, kind="run-queued", end_text="")
    figure = queue_figure(
        [Row("BERT", " #2", "8", "/r/", [waiting], note="no <node> has 8 GPUs")], NOON, Clock(), "GPUs"
    )
    assert bars(figure) == []
    assert "no &lt;node&gt; has 8 GPUs" in figure


def test_a_long_wait_does_not_shrink_what_is_expected() -> None:
    waiting = span(since=NOON - 30 * 86400, starts=NOON + 600, ends=NOON + 900, is_waiting=True, kind="run-queued")
    ((_, left, width),) = bars(queue_figure([Row("BERT", "", "8", "/r/", [waiting])], NOON, Clock(), "GPUs"))
    assert width > 30
    assert left + width < WIDTH


def test_names_are_cut_but_not_their_numbers() -> None:
    figure = queue_figure(
        [Row("A very long name of an experiment of ours", " #123", "8", "/r/", [span()])], NOON, Clock(), "GPUs"
    )
    assert re.search(r">A very long[^<]*… #123</text>", figure)


def test_the_day_of_a_node_has_its_runs_and_gaps() -> None:
    ribbon = Ribbon(NOON, NOON + 60, "run-finished", "/r/", "BERT #1: finished")
    track = Track("GPU", "%", [NOON, NOON + 20, NOON + 40, NOON + 60], [10.0, math.nan, 90.0, 90.0], 100.0)
    figure = day_figure([ribbon], [track], (NOON, NOON + 120), Clock())
    assert figure.count("run-finished") == 2
    line = re.search(r'<path class="l s7[^"]*" d="([^"]*)"', figure)
    assert line
    assert line[1].count("M") == 2, "the gap stays"


def test_a_day_of_goodput_adds_up() -> None:
    day = Day("13 Nov", [("gp-kept", "Steps", 6.0), ("gp-oom", "Out of memory", 2.0)])
    figure = goodput_figure([day, day], 0)
    heights = [float(height) for height in re.findall(r'height="([\d.]+)"><title>', figure)]
    assert heights[0] == pytest.approx(3 * heights[1], rel=0.02)
    assert "13 Nov: Out of memory 2.0 h of 8.0 h" in figure


def test_what_takes_no_runs_is_hatched_from_now_on_below_the_queue() -> None:
    closed = [Closed("<node>", "8", "/nodes/a/", "drains: no new runs")]
    figure = queue_figure([Row("BERT", " #1", "8", "/r/", [span()])], NOON, Clock(), "GPUs", closed)
    hatched = re.search(r'class="closed"[^>]* x="([\d.]+)"', figure)
    now = re.search(r'class="now" d="M([\d.]+)', figure)
    assert hatched
    assert now
    assert float(hatched[1]) == pytest.approx(float(now[1]), abs=0.2)
    assert "drains: no new runs" in figure
    assert "<node>" not in figure
