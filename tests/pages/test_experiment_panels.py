"""The grid of panels of an experiment: curves of all runs, drawings, and the layout of each person."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Attempt, Config, PanelLayout, Report, Run
from parlab.lab.services.pages.panel_layouts import Placed, placed_panels
from parlab.series import store
from parlab.series.columns import Columns

from .conftest import finish
from .test_experiments import EXPERIMENT, TABLE, text

pytestmark = pytest.mark.django_db

LAYOUT = f"{EXPERIMENT}layout/"
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def trained(swept: Config, make_attempt: Callable[..., Attempt]) -> list[Attempt]:
    """Two finished runs of 500 steps with loss and step times."""
    attempts = []
    steps = np.arange(1, 501, dtype=np.int64)
    for place, point in enumerate(swept.points()[:2]):
        attempt = make_attempt(config=swept, point=point.values)
        times = (1.76e9 + steps * 0.5).astype(np.float64)
        loss = Columns(steps, times, 10 / np.sqrt(steps) + place)
        slow = Columns(steps, times, np.full(500, 0.2 + place))
        fast = Columns(steps, times, np.full(500, 0.1))
        store.append(attempt.pk, {("loss", 0): loss, ("step_time_s", 0): fast, ("step_time_s", 1): slow})
        finish(attempt)
        attempts.append(attempt)
    return attempts


def series(page: Client, query: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(page.get(f"{EXPERIMENT}series.json?{query}").content)
    return answer


def panels(page: Client) -> list[str]:
    return re.findall(r'data-panel="([^"]+)"', page.get(EXPERIMENT).content.decode())


def arrange(page: Client, *names: str, **more: Any) -> int:
    asked = {"panels": [{"name": name, "w": 6, "h": 12} for name in names]} | more
    return page.post(LAYOUT, asked, "application/json").status_code


def test_the_curves_of_all_runs_are_thinned_and_keep_their_ends(page: Client, trained: list[Attempt]) -> None:
    answer = series(page, "metric=loss")
    assert [line["n"] for line in answer["runs"]] == [1, 2]
    line = answer["runs"][0]
    assert (line["x"][0], line["x"][-1], line["y"][0]) == (1, 500, 10)
    assert 100 <= len(line["x"]) == len(line["y"]) <= 300
    assert line["thin"]


def test_step_times_are_those_of_the_slowest_rank_in_one_unit(page: Client, trained: list[Attempt]) -> None:
    answer = series(page, "metric=step_time")
    assert answer["fromZero"]
    scale = {"s": 1, "ms": 1000}[answer["unit"]]
    assert [line["y"][0] for line in answer["runs"]] == [0.2 * scale, 1.2 * scale]


def test_curves_run_over_steps_time_tokens_or_samples(page: Client, trained: list[Attempt]) -> None:
    ends = {over: series(page, f"metric=loss&x={over}")["runs"][0]["x"][-1] for over in ("step", "time", "samples")}
    batch = trained[0].run.resolved["train"]["global_batch_size"]
    assert ends == {"step": 500, "time": 249.5, "samples": 500 * batch}
    assert series(page, "metric=loss&x=sideways")["runs"][0]["x"][-1] == 500


def test_a_poll_asks_for_some_runs_and_a_zoom_for_some_steps(page: Client, trained: list[Attempt]) -> None:
    assert [line["n"] for line in series(page, "metric=loss&only=2")["runs"]] == [2]
    part = series(page, "metric=loss&from=100&to=150")["runs"][0]["x"]
    assert part[0] < 100
    assert part[-1] > 150
    assert part[-1] - part[0] < 200


def test_all_points_are_in_the_csv(page: Client, trained: list[Attempt]) -> None:
    lines = page.get(f"{EXPERIMENT}series.json?metric=loss&format=csv").content.decode().splitlines()
    assert lines[0] == "run,step,time,loss"
    assert len(lines) == 1001


def test_a_series_that_no_run_has_is_empty(page: Client, trained: list[Attempt]) -> None:
    assert series(page, f"metric={EVIL}")["runs"] == []
    assert series(page, "metric=%00")["runs"] == []


def test_the_usual_panels_are_those_with_data(page: Client, trained: list[Attempt]) -> None:
    assert panels(page) == ["curve:loss", "curve:step_time", "throughput", "memory", "phases", "steps"]


def test_all_steps_are_drawn_when_the_panel_is_seen(page: Client, trained: list[Attempt]) -> None:
    drawn = page.get(f"{EXPERIMENT}panels/steps.svg?w=400&h=200").content.decode()
    assert sorted(re.findall(r'data-run="(\d)"', drawn)) == ["1", "2"]
    assert drawn.startswith('<svg class="fig" viewBox="0 0 400 200"')
    assert page.get(f"{EXPERIMENT}panels/nothing.svg").status_code == 404


@pytest.mark.parametrize("query", ["w=x&h=-1", "w=99999999&h=9", "w=&h="])
def test_a_drawing_has_a_sensible_size(page: Client, four_runs: list[Run], query: str) -> None:
    response = page.get(f"{EXPERIMENT}panels/sweep.svg?{query}")
    assert response.status_code == 200
    width = re.search(r'viewBox="0 0 (\d+) (\d+)"', response.content.decode())
    assert width
    assert 200 <= int(width[1]) <= 1800


def test_panels_are_arranged_added_and_removed_for_one_person(
    page: Client, viewer: Client, trained: list[Attempt]
) -> None:
    usual = panels(page)
    assert arrange(page, "phases", "curve:loss", "figure:utilisation", "nothing") == 204
    assert panels(page) == ["phases", "curve:loss"]
    assert panels(viewer) == usual
    assert page.post(LAYOUT, {}, "application/json").status_code == 204
    assert panels(page) == usual


def test_those_who_may_change_the_experiment_save_panels_for_all(
    page: Client, viewer: Client, trained: list[Attempt]
) -> None:
    assert arrange(viewer, "memory", all=True) == 403
    assert arrange(page, "memory", all=True) == 204
    assert panels(viewer) == ["memory"]
    assert arrange(viewer, "phases") == 204
    assert panels(viewer) == ["phases"]
    assert panels(page) == ["memory"]


def test_a_layout_of_nonsense_changes_nothing_but_itself(page: Client, user: User, trained: list[Attempt]) -> None:
    assert page.post(LAYOUT, "not json", "application/json").status_code == 400
    assert page.post(LAYOUT, [1], "application/json").status_code == 400
    assert arrange(page, EVIL, "memory", "memory") == 204
    assert panels(page) == ["memory"]
    assert "<script>alert" not in page.get(EXPERIMENT).content.decode()
    assert PanelLayout.objects.count() == 1


def test_sizes_are_kept_within_the_grid() -> None:
    rows = [{"name": "a", "w": 99, "h": 0}, {"name": "b", "w": "x", "h": True}, {"w": 3}, "c", {"name": 5}]
    assert placed_panels(rows) == [Placed("a", 12, 5), Placed("b", 6, 12)]
    assert placed_panels("x") == []


def test_the_menu_offers_the_series_of_the_runs_and_what_others_need(page: Client, trained: list[Attempt]) -> None:
    store.append(trained[0].pk, {("grad_norm", 0): Columns(np.arange(3), np.arange(3.0), np.arange(3.0))})
    content = page.get(EXPERIMENT).content.decode()
    assert 'data-offer="curve:grad_norm"' in content
    assert "Sweep: needs a sweep of two fields." in text(page.get(EXPERIMENT))
    arrange(page, "curve:grad_norm")
    assert panels(page) == ["curve:grad_norm"]


def test_a_sweep_of_devices_is_drawn_against_them_with_the_ideal(page: Client, four_runs: list[Run]) -> None:
    for run, gpus in zip(four_runs, (1, 2, 4, 8), strict=True):
        resolved = run.resolved | {"cluster": {"nodes": 1, "gpus_per_node": gpus}}
        Run.objects.filter(pk=run.pk).update(resolved=resolved, samples_per_s=10.0 * gpus**0.9)
    content = page.get(EXPERIMENT).content.decode()
    assert "ideal: proportional to the number of processes" in content
    assert "by number of ranks" in content


def test_an_oom_is_a_word_in_the_sweep_the_list_and_the_table(page: Client, four_runs: list[Run]) -> None:
    Run.objects.filter(pk=four_runs[0].pk).update(state="oom", samples_per_s=None, step_time_s=None, summary={})
    content = page.get(EXPERIMENT).content.decode()
    assert re.search(r'<text class="warn"[^>]*>OOM</text>', content)
    assert re.search(r'<b class="v" title="out of memory">OOM</b>', content)
    assert "OOM" in text(page.get(TABLE))


def test_the_comparison_takes_runs_by_number_and_else_the_best_of_each_group(
    page: Client, four_runs: list[Run]
) -> None:
    usual = page.get(f"{EXPERIMENT}compare/").content.decode()
    assert re.findall(r'class="chip" data-run="(\d)"', usual) == ["3", "2"]
    asked = page.get(f"{EXPERIMENT}compare/?compare=1,4").content.decode()
    assert set(re.findall(r'class="chip" data-run="(\d)"', asked)) == {"1", "4"}
    assert f'data-figure-url="/compare/figures/curves.json?runs={four_runs[3].pk},{four_runs[0].pk}' in asked


def test_the_page_stays_within_its_budget_of_words_and_controls(page: Client, trained: list[Attempt]) -> None:
    content = page.get(EXPERIMENT).content.decode()
    main = content[content.index("<main") : content.index("</main>")]
    for kind in ("table", "svg", "figure", "script", "select"):
        main = re.sub(rf"(?s)<{kind}\b.*?</{kind}>", " ", main)
    main = re.sub(r'(?s)<div class="(?:pop|card panel).*?</div>\s*</details>', " ", main)
    rows = re.findall(r'(?s)<li class="rl".*?</li>', main)
    for row in rows[1:]:
        main = main.replace(row, " ")
    words = re.findall(r"[^\W\d_]{2,}", re.sub(r"<[^>]+>", " ", main))
    assert len(words) <= 190, words
    tools = re.findall(r'(?s)<span class="tools">.*?</span></header>', main)
    for more in tools[1:]:
        main = main.replace(more, " ")
    assert len(re.findall(r"<(?:a|button|input|summary)\b", main)) + 3 <= 40


def test_a_panel_is_pinned_to_the_newest_report_about_the_experiment(page: Client, trained: list[Attempt]) -> None:
    def pin(panel: str, query: str = "") -> Any:
        return page.post(f"{EXPERIMENT}pin/{query}", {"panel": panel})

    created = pin("curve:step_time").json()
    report = Report.objects.get()
    assert created == {"title": "Pipeline schedules", "url": report.get_absolute_url()}
    assert report.text == "{{ figure curves experiment=pipeline-schedules series=step-time }}\n"
    assert pin("throughput", "?version=1").status_code == 200
    assert pin("figure:throughput", "?x=train.micro_batch_size&as_share=1").status_code == 200
    assert pin("run:1:series:loss").status_code == 200
    assert pin("run:1:memory").status_code == 200
    report.refresh_from_db()
    assert report.text.split("\n\n")[1:] == [
        "{{ figure throughput experiment=pipeline-schedules version=1 }}",
        "{{ figure throughput experiment=pipeline-schedules x=train.micro_batch_size }}",
        "{{ figure series experiment=pipeline-schedules run=1 series=loss }}",
        "{{ figure memory experiment=pipeline-schedules run=1 }}\n",
    ]
    shown = page.get(report.get_absolute_url()).content.decode()
    assert shown.count("data-figure-url") == 4  # these runs have no memory
    figure = page.get(f"{report.get_absolute_url()}figure/", {"d": "figure curves series=loss,step-time"}).json()
    names = {trace["name"] for trace in figure["figure"]["data"]}
    assert names == {"mb 1", "mb 2"}


def test_what_reports_cannot_show_is_not_pinned(page: Client, viewer: Client, trained: list[Attempt]) -> None:
    assert "problem" in page.post(f"{EXPERIMENT}pin/", {"panel": "steps"}).json()
    assert page.post(f"{EXPERIMENT}pin/", {"panel": "curve:x }} y"}).status_code == 400
    assert viewer.post(f"{EXPERIMENT}pin/", {"panel": "throughput"}).status_code == 403
    assert not Report.objects.exists()
    assert 'data-to-report="throughput"' in page.get(EXPERIMENT).content.decode()
    assert "data-to-report" not in viewer.get(EXPERIMENT).content.decode()


def test_each_person_chooses_the_columns_of_the_table(page: Client, viewer: Client, trained: list[Attempt]) -> None:
    def columns(client: Client, address: str = TABLE) -> list[str]:
        return [column.key for column in client.get(address, follow=True).context["table"].columns]

    assert "step_time" in columns(page)
    assert "Micro batch size" not in columns(page)
    present = [column.key for column, _ in page.get(TABLE).context["table"].offered]
    assert "Micro batch size" in present
    chosen = ["Micro batch size", "memory"]
    answer = page.post("/columns/experiment/", {"present": present, "column": chosen, "next": TABLE})
    assert answer["Location"] == f"{TABLE}?columns=Micro%20batch%20size,memory"
    assert columns(page) == ["memory", "Micro batch size"]
    assert "step_time" in columns(viewer)
    # The address shows its reader what its sender saw.
    assert columns(viewer, answer["Location"]) == ["memory", "Micro batch size"]
    assert page.post("/columns/nonsense/").status_code == 404


def test_a_star_of_an_experiment_is_a_person_s_own_and_leads_their_list(
    page: Client, viewer: Client, trained: list[Attempt]
) -> None:
    def first_group(client: Client) -> str:
        return str(client.get("/experiments/").context["groups"][0].title)

    assert viewer.post(f"{EXPERIMENT}star/", {"next": "/experiments/"})["Location"] == "/experiments/"
    assert first_group(viewer) == "Starred"
    assert first_group(page) != "Starred"
    assert viewer.get(EXPERIMENT).context["is_starred"]
    assert not page.get(EXPERIMENT).context["is_starred"]
    viewer.post(f"{EXPERIMENT}star/")
    assert first_group(viewer) != "Starred"
