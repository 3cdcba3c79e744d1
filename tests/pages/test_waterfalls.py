"""The page of a run about where its time goes."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pytest
from django.test import Client

from parlab.advice.waterfalls.waterfall import Part, Waterfall
from parlab.charts.runs.waterfall import figure
from parlab.lab.models import Run
from parlab.pages.rows.waterfalls import column_of

from .conftest import summary
from .test_experiments import text

pytestmark = pytest.mark.django_db
PEAK = {"flops": 1e9, "precision": "fp32", "source": "measured on this node", "kind": "measured", "device": ""}


def with_timers(run: Run, step_time_s: float) -> None:
    timers = {
        name: {"median": share * step_time_s, "min": share * step_time_s, "max": share * step_time_s,
               "by_rank": {"0": share * step_time_s, "1": share * step_time_s}}
        for name, share in (("forward-compute", 0.25), ("backward-compute", 0.5), ("optimizer", 0.05))
    }  # fmt: skip
    more = {"timers_s": timers, "peak": PEAK, "model_flops_per_iteration": 0.2 * step_time_s * 2e9}
    run.summary = summary(step_time_s, **more)
    run.step_time_s = step_time_s
    run.save()


def numbers(page: Client, url: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(page.get(url).content.decode())))


def test_the_table_adds_up_as_written_and_in_the_csv(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    with_timers(run, 0.123456789)
    shown = page.get(f"{run.get_absolute_url()}time/")
    body = text(shown)
    table = shown.context["table"]
    assert sum(float(row.time.replace("\N{MINUS SIGN}", "-")) for row in table.rows) == pytest.approx(
        float(table.total), abs=1e-9
    )
    assert sum(round(100 * float(row.share)) for row in table.rows) == 10_000
    assert table.total == "123.5"
    assert "measured minus computed" in body
    rows = numbers(page, f"{run.get_absolute_url()}time/waterfall.csv")
    assert rows[0]["term"] == "ideal"
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(0.123456789)


def test_the_difference_of_two_runs_names_what_changed(page: Client, four_runs: list[Run]) -> None:
    first, second = four_runs[:2]
    with_timers(first, 0.4)
    with_timers(second, 0.2)
    shown = page.get(f"{first.get_absolute_url()}time/?with={second.number}")
    assert shown.context["changes"].total[1:4] == ("400.0", "200.0", "\N{MINUS SIGN}200.0")
    answer: dict[str, Any] = json.loads(
        page.get(f"{first.get_absolute_url()}time/difference.json?with={second.number}").content
    )
    assert "200 ms shorter" in re.sub(r"\s", " ", answer["caption"])
    overlaid = json.loads(page.get(f"{first.get_absolute_url()}time/waterfall.json?with={second.number}").content)
    assert {trace["name"] for trace in overlaid["figure"]["data"]} >= {"computed", "measured", "step"}
    rows = numbers(page, f"{first.get_absolute_url()}time/difference.csv?with={second.number}")
    assert sum(float(row["change_s"]) for row in rows) == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("other", "problem"),
    [("<b>", "not a run"), ("99", "no run "), ("prediction", "no prediction"), ("4", "no waterfall")],
)
def test_a_comparison_that_is_not_possible_names_the_reason(
    page: Client, four_runs: list[Run], other: str, problem: str
) -> None:
    run = four_runs[0]
    with_timers(run, 0.4)
    four_runs[3].summary = {}
    four_runs[3].save()
    shown = page.get(f"{run.get_absolute_url()}time/", {"with": other})
    assert problem in shown.context["beside"].problem
    assert "Terms" in text(shown)


def test_the_bar_of_a_run_needs_timers_or_a_peak(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    assert "500 ms a step" in text(page.get(run.get_absolute_url()))
    run.summary = {"step_time_s": {"median": 1.0}}
    run.save()
    assert "a step" not in text(page.get(run.get_absolute_url()))
    run.summary = {}
    run.save()
    assert "the run has no step time" in text(page.get(f"{run.get_absolute_url()}time/"))
    answer = json.loads(page.get(f"{run.get_absolute_url()}time/waterfall.json").content)
    assert answer["empty"] == "Where the time goes: the run has no step time."


def test_the_api_returns_nanoseconds_that_add_up(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    with_timers(run, 0.123456789)
    answer = page.get(f"/api/experiments/{run.experiment.slug}/runs/{run.number}/time/").json()
    measured = answer["measured"]
    assert sum(term["ns"] for term in measured["terms"]) == measured["total_ns"] == 123_456_789
    assert answer["predicted"] is None
    assert answer["prediction_reason"]


def test_compute_is_not_named_as_the_largest_loss() -> None:
    parts = (Part("compute", 3 * 10**9, "measured", "timers"), Part("optimizer", 10**9, "measured", "timers"))
    caption = figure([column_of(Waterfall("Run 1", 4 * 10**9, parts))]).caption
    assert "the largest loss is optimizer" in caption
