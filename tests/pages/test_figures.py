"""Figures as JSON, and the same numbers as CSV."""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import plotly
import plotly.graph_objects as go
import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client

from parlab.charts.points import RunPoint
from parlab.charts.registry import EXPERIMENT_FIGURES, Figure
from parlab.charts.theme import Drawing, Table
from parlab.lab.models import Attempt, Config, Experiment, Run
from parlab.lab.services.published import published_run_add
from parlab.lab.services.reports import report_create
from parlab.series import store
from parlab.series.columns import Columns

from .test_experiments import EXPERIMENT, text

pytestmark = pytest.mark.django_db


def figure(client: Client, url: str) -> dict[str, Any]:
    response = client.get(url)
    assert response.headers["Content-Type"] == "application/json"
    answer: dict[str, Any] = json.loads(response.content)
    return answer


def numbers(client: Client, url: str) -> list[dict[str, str]]:
    response = client.get(url)
    assert response.headers["Content-Type"].startswith("text/csv")
    assert "attachment" in response.headers["Content-Disposition"]
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_throughput_and_its_csv_hold_the_stored_numbers(page: Client, four_runs: list[Run]) -> None:
    answer = figure(page, f"{EXPERIMENT}figures/throughput.json?version=1")
    drawn = {
        (trace["name"], x): y for trace in answer["figure"]["data"] for x, y in zip(trace["x"], trace["y"], strict=True)
    }
    stored = {
        (run.point["parallel.schedule"], run.point["train.micro_batch_size"]): run.samples_per_s for run in four_runs
    }
    assert drawn == stored
    rows = numbers(page, f"{EXPERIMENT}figures/throughput.csv?version=1")
    assert [float(row["samples_per_s"]) for row in rows] == [run.samples_per_s for run in four_runs]
    assert rows[2]["parallel.schedule"] == "1f1b"


def test_only_ended_runs_with_final_numbers_are_drawn(
    page: Client, swept: Config, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(config=swept, point=swept.points()[0].values, state="running")
    Run.objects.filter(pk=attempt.run_id).update(samples_per_s=3.0, step_time_s=1.0)
    answer = figure(page, f"{EXPERIMENT}figures/throughput.json")
    assert answer["figure"] is None
    assert answer["empty"] == "Throughput: no run has finished."


def test_memory_and_phases_come_from_the_summaries(page: Client, four_runs: list[Run]) -> None:
    memory = figure(page, f"{EXPERIMENT}figures/memory.json")["figure"]
    assert [trace["name"] for trace in memory["data"]] == ["rank 0", "rank 1"]
    assert memory["data"][0]["y"] == [256.0] * 4
    phases = figure(page, f"{EXPERIMENT}figures/phases.json")["figure"]
    assert phases["data"][0]["name"] == "forward-compute"
    assert numbers(page, f"{EXPERIMENT}figures/phases.csv")[0]["timer"] == "forward-compute"


def _toy_figure(points: Sequence[RunPoint]) -> Drawing:
    numbers = [point.number for point in points]
    return Drawing(go.Figure(go.Bar(y=numbers)), "Toy.", Table(["run"], [[number] for number in numbers]))


def test_a_figure_is_one_row_and_one_function(
    page: Client, four_runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENT_FIGURES, "toy", Figure("toy", "Toy figure", _toy_figure))
    assert 'data-offer="figure:toy"' in page.get(EXPERIMENT).content.decode()
    page.post(f"{EXPERIMENT}layout/", {"panels": [{"name": "figure:toy", "w": 6, "h": 12}]}, "application/json")
    content = page.get(EXPERIMENT).content.decode()
    assert "<h3>Toy figure</h3>" in content
    assert f'data-figure-url="{EXPERIMENT}figures/toy.json?version=all"' in content
    assert figure(page, f"{EXPERIMENT}figures/toy.json")["figure"]["data"][0]["y"] == [1, 2, 3, 4]
    assert [row["run"] for row in numbers(page, f"{EXPERIMENT}figures/toy.csv")] == ["1", "2", "3", "4"]
    Run.objects.update(state="queued")
    waiting = page.get(EXPERIMENT)
    assert "data-panel=" not in waiting.content.decode()
    assert "Toy figure: no run has finished." in text(waiting)


def test_a_figure_of_the_registry_can_be_put_into_a_report(
    page: Client, user: User, experiment: Experiment, four_runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENT_FIGURES, "toy", Figure("toy", "Toy figure", _toy_figure))
    report = report_create(title="Toy", text="{{ figure toy }}", experiment=experiment, user=user)
    answer = figure(page, f"{report.get_absolute_url()}figure/?d=figure toy")
    assert answer["figure"]["data"][0]["y"] == [1, 2, 3, 4]


def test_figures_without_data_are_named_in_one_line_with_what_they_need(page: Client, four_runs: list[Run]) -> None:
    page_text = text(page.get(EXPERIMENT))
    assert "Time per sample: all runs have the same number of processes." in page_text
    assert "Scaling efficiency: needs runs on different numbers of processes." in page_text
    assert "Peak memory:" not in page_text
    Run.objects.update(state="queued")
    assert "Utilisation, Roofline: no run has finished." in text(page.get(EXPERIMENT))


@pytest.mark.parametrize("name", EXPERIMENT_FIGURES)
def test_a_figure_changes_only_with_its_choices(page: Client, four_runs: list[Run], name: str) -> None:
    """The form beside the figures offers the choices of those that are shown."""
    url = f"{EXPERIMENT}figures/{name}.json"
    queries = {
        "y": "y=step_time",
        "x": "x=parallel.schedule",
        "by": "by=train.micro_batch_size",
        "x_scale": "x_scale=log",
        "y_scale": "y_scale=log",
        "as_share": "time=share",
    }
    plain = page.get(url).content
    fixed = [query for field, query in queries.items() if field not in EXPERIMENT_FIGURES[name].choices]
    assert [query for query in fixed if page.get(f"{url}?{query}").content != plain] == []


def test_a_csv_holds_no_formulas(page: Client, admin: User, swept: Config) -> None:
    evil = '=HYPERLINK("http://x")'
    summary = {"step_time_s": {"median": 1.0}, "samples_per_s": 4.0}
    published_run_add(config=swept, point={"network": evil}, user=admin, summary=summary)
    published_run_add(config=swept, point={"network": "-1+1"}, user=admin, summary=summary)
    rows = numbers(page, f"{EXPERIMENT}figures/throughput.csv")
    assert [row["network"] for row in rows] == [f"'{evil}", "'-1+1"]


def test_figures_without_phases_say_so(page: Client, admin: User, swept: Config) -> None:
    published_run_add(config=swept, point={}, user=admin, summary={"step_time_s": {"mean": 1.0}})
    assert "published figures do not include" in figure(page, f"{EXPERIMENT}figures/phases.json")["empty"]
    assert numbers(page, f"{EXPERIMENT}figures/phases.csv") == []


def test_the_curve_of_a_run_is_its_series_thinned_and_its_csv_all_of_it(
    page: Client, make_attempt: Callable[..., Attempt], django_assert_num_queries: Any
) -> None:
    attempt = make_attempt(state="running")
    steps = np.arange(1, 5001, dtype=np.int64)
    values = 0.5 + 0.01 * np.sin(steps.astype(np.float64))
    store.append(
        attempt.pk, {("step_time_s", rank): Columns(steps, steps.astype(np.float64), values) for rank in (0, 1)}
    )
    with django_assert_num_queries(8):  # session, person, run, attempt, members; last chunk, level, chunks after it
        answer = figure(page, f"{EXPERIMENT}runs/1/figures/step-time.json?attempt=1")
    assert [trace["name"] for trace in answer["figure"]["data"]] == ["rank 0", "rank 1"]
    assert len(answer["figure"]["data"][0]["x"]) == 1000
    assert answer["figure"]["data"][0]["x"][-1] == 5000
    assert len(numbers(page, f"{EXPERIMENT}runs/1/figures/step-time.csv")) == 10_000


def test_memory_of_a_run_includes_the_node(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    first_step = np.array([1], dtype=np.int64)
    points = Columns(first_step, np.array([10.0]), np.array([2.0**20]))
    store.append(attempt.pk, {("memory_bytes", -1): points, ("memory_bytes", 0): points})
    answer = figure(page, f"{EXPERIMENT}runs/1/figures/memory.json")
    assert [trace["name"] for trace in answer["figure"]["data"]] == ["all processes", "rank 0"]


def test_curves_without_points_say_so(page: Client, admin: User, swept: Config) -> None:
    published_run_add(config=swept, point={}, user=admin, summary={})
    assert "published" in figure(page, f"{EXPERIMENT}runs/1/figures/step-time.json")["empty"]


@pytest.mark.parametrize(
    "path", ["figures/nonsense.json", "runs/1/figures/nonsense.csv", "runs/9/figures/memory.json", "figures/memory.xls"]
)
def test_unknown_figures_are_not_found(page: Client, four_runs: list[Run], path: str) -> None:
    assert page.get(EXPERIMENT + path).status_code == 404


def test_the_figures_of_an_experiment_take_few_queries(
    page: Client, four_runs: list[Run], django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(5):  # session, person, experiment, versions, runs
        page.get(f"{EXPERIMENT}figures/phases.json")


def test_a_long_curve_is_thinned_and_refined_where_one_zooms_in(page: Client, four_runs: list[Run]) -> None:
    attempt = four_runs[0].current_attempt()
    steps = np.arange(1, 50_001)
    values = np.random.default_rng(0).normal(0.3, 0.01, len(steps))
    curve = Columns(steps, (1.76e9 + 0.5 * steps).astype(np.float64), values)
    store.append(attempt.pk, {("step_time_s", 0): curve, ("memory_bytes", 0): curve})
    for name, ends in (("step-time", (1_000, 1_200)), ("memory", (500.0, 600.0))):
        url = f"{EXPERIMENT}runs/1/figures/{name}.json"
        whole = json.loads(page.get(url).content)["figure"]["data"][0]["x"]
        part = json.loads(page.get(url, {"from": str(ends[0]), "to": str(ends[1])}).content)["figure"]["data"][0]["x"]
        assert len(whole) == 1_000
        assert 200 <= len(part) <= 205
        assert part == sorted(part)
        assert ends[0] - 2 <= part[0] <= part[-1] <= ends[1] + 2


@pytest.mark.parametrize("ends", [("x", "y"), ("nan", "inf"), ("5", "1"), ("1e300", "-1e300"), ("", "7")])
def test_a_window_that_makes_no_sense_is_answered(page: Client, four_runs: list[Run], ends: tuple[str, str]) -> None:
    two = Columns(np.array([1, 2]), np.array([1.76e9, 1.76e9 + 1]), np.array([0.1, 0.2]))
    store.append(four_runs[0].current_attempt().pk, {("step_time_s", 0): two})
    response = page.get(f"{EXPERIMENT}runs/1/figures/step-time.json", {"from": ends[0], "to": ends[1]})
    assert response.status_code == 200


def test_a_part_of_a_curve_is_drawn_in_the_unit_of_the_whole(page: Client, four_runs: list[Run]) -> None:
    values = np.full(3_000, 5.0)
    values[1_000:1_100] = 0.005
    steps = np.arange(1, 3_001)
    store.append(
        four_runs[0].current_attempt().pk, {("step_time_s", 0): Columns(steps, steps.astype(np.float64), values)}
    )
    part = figure(page, f"{EXPERIMENT}runs/1/figures/step-time.json?from=1020&to=1080")["figure"]
    assert part["layout"]["yaxis"]["title"]["text"] == "Step time (s)"
    assert set(part["data"][0]["y"]) == {0.005}


def test_any_series_that_a_training_printed_can_be_shown(page: Client, four_runs: list[Run]) -> None:
    two = Columns(np.array([1, 2]), np.array([1.76e9, 1.76e9 + 1]), np.array([10.5, 9.25]))
    milliseconds = Columns(two.steps, two.times, np.array([0.002, 0.003]))
    store.append(four_runs[0].current_attempt().pk, {("grad_norm", 0): two, ("timer/forward-compute", 1): milliseconds})
    html = page.get(f"{EXPERIMENT}runs/1/?series=timer/forward-compute").content.decode()
    assert 'name="series" value="timer/forward-compute" checked> Timer forward-compute</label>' in html
    assert "series.json?attempt=1&amp;x=step&amp;series=timer/forward-compute" in html
    url = f"{EXPERIMENT}runs/1/figures/series.json?series="
    norm = figure(page, f"{url}grad_norm")
    assert norm["figure"]["data"][0]["y"] == [10.5, 9.25]
    assert "10.5 at step 1, 9.25 at step 2" in norm["caption"]
    timer = figure(page, f"{url}timer/forward-compute")["figure"]
    assert (timer["data"][0]["y"], timer["layout"]["yaxis"]["title"]["text"][-4:]) == ([2.0, 3.0], "(ms)")
    assert "printed none" in figure(page, f"{url}%3Cscript%3E")["empty"]
    assert "<script>" not in page.get(f"{EXPERIMENT}runs/1/?series=<script>").content.decode().partition("<main")[2]


def test_several_series_of_a_run_are_panels_with_all_ranks(page: Client, four_runs: list[Run]) -> None:
    steps = np.array([1, 2])
    two = Columns(steps, steps + 1.76e9, np.array([10.5, 9.25]))
    series = {("loss", rank): two for rank in range(3)} | {("grad_norm", 0): two, ("samples_per_s", 0): two}
    store.append(four_runs[0].current_attempt().pk, series)
    address = f"{EXPERIMENT}runs/1/?series=loss&series=grad_norm"
    html = page.get(address).content.decode()
    assert "series.json?attempt=1&amp;x=step&amp;series=loss" in html
    assert "series.json?attempt=1&amp;x=step&amp;series=grad_norm" in html
    both = figure(page, f"{EXPERIMENT}runs/1/figures/series.json?series=loss&series=grad_norm")["figure"]
    assert both["layout"]["meta"]["panels"] == 2
    rate = figure(page, f"{EXPERIMENT}runs/1/figures/series.json?series=samples_per_s")["figure"]
    assert rate["layout"]["yaxis"]["title"]["text"] == "Throughput (samples/s)"
    assert [(trace["name"], trace.get("yaxis")) for trace in both["data"]] == [
        ("rank 0", "y"),
        ("rank 1", "y"),
        ("rank 2", "y"),
        ("rank 0", "y2"),
    ]


def test_of_many_ranks_those_are_drawn_that_a_person_chooses(page: Client, four_runs: list[Run]) -> None:
    steps = np.array([1, 2])
    twelve = {
        (metric, rank): Columns(steps, steps + 1.76e9, np.array([1.0 + rank, 1.0 + rank]))
        for metric in ("loss", "grad_norm")
        for rank in range(12)
    }
    store.append(four_runs[0].current_attempt().pk, twelve)

    def drawn(ranks: str) -> tuple[set[str], str]:
        query = urlencode({"series": ["loss", "grad_norm"], "ranks": ranks}, doseq=True)
        answer = figure(page, f"{EXPERIMENT}runs/1/figures/series.json?{query}")
        return {trace["name"] for trace in answer["figure"]["data"]}, answer["caption"]

    names, caption = drawn("")
    assert names == {"rank 0", "rank 11"}
    assert "Of 12 ranks, those with the lowest and the highest median are drawn." in caption
    assert len(drawn("all")[0]) == 12
    assert drawn("2, 8..9")[0] == {"rank 2", "rank 8", "rank 9"}
    assert "No curve of rank 40; the ranks are 0 to 11." in drawn("3, 40")[1]
    assert "first is not a rank" in drawn("first")[1]
    html = page.get(f"{EXPERIMENT}runs/1/?series=loss&ranks=2,8..9").content.decode()
    assert 'name="ranks"' in html
    assert 'value="2,8..9"' in html
    assert "ranks=2%2C8..9&amp;x=step&amp;series=loss" in html
    compared = f"/compare/figures/curves.json?runs={four_runs[0].pk},{four_runs[1].pk}&curve=loss&ranks="
    assert {trace["name"][-6:] for trace in figure(page, f"{compared}0,5")["figure"]["data"]} == {"rank 0", "rank 5"}
    assert len(figure(page, f"{compared}all")["figure"]["data"]) == 12


@pytest.mark.parametrize("name", ["throughput.json", "throughput.csv"])
def test_figures_and_numbers_travel_compressed(page: Client, four_runs: list[Run], name: str) -> None:
    url = f"{EXPERIMENT}figures/{name}"
    packed = page.get(url, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.content) == page.get(url).content


def test_the_browsers_plotly_is_of_the_version_that_makes_the_figures() -> None:
    theirs = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    ours = finders.find("vendor/plotly/plotly-basic.min.js")
    assert isinstance(ours, str)
    versions = [re.search(r"plotly\.js.*? v([\d.]+)", path.read_text()[:400]) for path in (theirs, Path(ours))]
    assert all(versions)
    assert len({version[1] for version in versions if version}) == 1


def test_browsers_compile_plotly_while_it_loads() -> None:
    ours = finders.find("vendor/plotly/plotly-basic.min.js")
    assert isinstance(ours, str)
    # Browsers compile a function in parentheses in the background, any other one when it is called.
    assert 'typeof self !== "undefined" ? self : this, (() => {' in Path(ours).read_text()[:800]


def _drawing(content: str, name: str) -> str:
    """Return the drawing of a panel in a page."""
    panel = re.search(rf'<section class="panel[^"]*" data-panel="{name}".*?</section>', content, re.DOTALL)
    assert panel
    drawn = re.search(r"<svg class=\"fig\".*</svg>", panel[0], re.DOTALL)
    return drawn[0] if drawn else ""


def test_the_drawings_of_an_experiment_stand_in_its_page_with_a_mark_for_each_run(
    page: Client, four_runs: list[Run]
) -> None:
    content = page.get(EXPERIMENT).content.decode()
    for name in ("throughput", "sweep", "memory", "phases"):
        marks = re.findall(r'data-run="(\d+)"', _drawing(content, name))
        assert sorted(marks) == ["1", "2", "3", "4"], name
    url = re.search(r'data-url="([^"]*panels/sweep.svg[^"]*)"', content)
    assert url
    again = page.get(f"{html.unescape(url[1])}&w=284&h=234").content.decode()
    assert again.count("data-run=") == 4


def test_the_drawings_follow_the_numbers_of_the_runs(page: Client, four_runs: list[Run]) -> None:
    before = _drawing(page.get(EXPERIMENT).content.decode(), "throughput")
    assert _drawing(page.get(EXPERIMENT).content.decode(), "throughput") == before
    Run.objects.filter(pk=four_runs[0].pk).update(samples_per_s=123.0)
    assert "123 samples/s" in _drawing(page.get(EXPERIMENT).content.decode(), "throughput").replace(
        "\N{NARROW NO-BREAK SPACE}", " "
    )
