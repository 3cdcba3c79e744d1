"""The list of experiments, the page of one, and its buttons."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from parlab.charts.format import DASH
from parlab.lab.models import Attempt, Config, Experiment, Run
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.published import published_run_add
from parlab.lab.services.runs import config_launch
from runners.wire.protocol import RunState

from .conftest import SWEEP, finish

pytestmark = pytest.mark.django_db


def text(response: Any) -> str:
    """Read a page as a person does: without tags, spaces in one."""
    without_tags = re.sub(r"<[^>]+>", " ", response.content.decode())
    return re.sub(r"\s+", " ", html.unescape(without_tags))


def cells(response: Any, table: int = 0) -> list[list[str]]:
    """Read the sweep tables: rows of cell texts."""
    table_html = re.findall(r'<table class="sweep">.*?</table>', response.content.decode(), re.S)[table]
    rows = re.findall(r"<tr>(.*?)</tr>", table_html, re.S)
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", r, re.S)] for r in rows]


def bold(response: Any) -> list[str]:
    """Return the best values of the tables of a sweep."""
    tables = re.findall(r'<table class="sweep">.*?</table>', response.content.decode(), re.S)
    return [value for table in tables for value in re.findall(r"<b>(.*?)</b>", table)]


EXPERIMENT = "/experiments/pipeline-schedules/"
TABLE, CONFIGURATION = f"{EXPERIMENT}table/", f"{EXPERIMENT}configuration/"


@pytest.mark.parametrize(
    "path",
    ["/", "/nodes/", EXPERIMENT, f"{EXPERIMENT}live/", f"{EXPERIMENT}runs/1/", f"{EXPERIMENT}figures/throughput.json"],
)
def test_strangers_are_led_to_the_login_page(client: Client, path: str, experiment: Experiment) -> None:
    response = client.get(path)
    assert response.status_code == 302
    assert response.headers["Location"].startswith("/login/?next=")


def test_login_redirects_to_the_requested_page(client: Client, user: User, experiment: Experiment) -> None:
    assert "Log in" in text(client.get("/login/"))
    wrong = client.post("/login/", {"username": "ada", "password": "wrong"})
    assert "Invalid username or password" in text(wrong)
    response = client.post("/login/?next=/nodes/", {"username": "ada", "password": "correct horse battery"})
    assert response.headers["Location"] == "/nodes/"
    assert client.post("/logout/").headers["Location"] == "/login/"
    assert client.get("/").status_code == 302


def test_the_empty_list_teaches_the_first_step(page: Client) -> None:
    page_text = text(page.get("/experiments/"))
    assert "No experiments yet" in page_text
    assert "New experiment" in page_text


def test_the_list_shows_states_best_throughput_and_where_it_was_reached(page: Client, four_runs: list[Run]) -> None:
    Run.objects.filter(pk=four_runs[0].pk).update(state="oom", samples_per_s=1000)
    response = page.get("/experiments/")
    page_text, content = text(response), response.content.decode()
    assert "Pipeline schedules" in page_text
    assert 'title="3 finished"' in content
    assert 'title="1 OOM"' in content
    assert "20.0 samples/s" in page_text
    assert "1F1B, micro batch 1" in page_text


def test_the_list_takes_as_many_queries_for_many_experiments_as_for_one(
    page: Client, user: User, four_runs: list[Run], django_assert_num_queries: Any
) -> None:
    page.get("/experiments/")
    # session, person, inbox, 3 of the frame, saved views, how many, experiments, states, tags, columns, all tags,
    # what changed, active runs, own runs, and 2 of the common filters; a card that has changed costs its runs
    with django_assert_num_queries(19):
        page.get("/experiments/")
    for number in range(5):
        other = experiment_create(name=f"Other {number}", owner=user)
        config = config_save(experiment=other, data=four_runs[0].config.data, sweep=SWEEP, user=user)
        config_launch(config=config, user=user)
        other.runs.update(samples_per_s=5, state="finished")
    with django_assert_num_queries(20):
        page.get("/experiments/")


@pytest.mark.database
def test_the_search_filters_by_every_word_and_answers_htmx_with_the_list_only(page: Client, user: User) -> None:
    experiment_create(name="ZeRO on eight GPUs", question="How far does memory go?", owner=user)
    experiment_create(name="Pipelines", question="Memory of GPipe", owner=user)
    page_text = text(page.get("/experiments/?q=memory zero"))
    assert "ZeRO on eight GPUs" in page_text
    assert "Pipelines" not in page_text
    partial = page.get("/experiments/?q=gpipe", headers={"HX-Request": "true"})
    assert "<html" not in partial.content.decode()
    assert "Pipelines" in text(partial)
    assert "HX-Request" in partial.headers["Vary"]
    going_back = page.get("/experiments/", headers={"HX-Request": "true", "HX-History-Restore-Request": "true"})
    assert "<html" in going_back.content.decode()


@pytest.mark.database
@pytest.mark.parametrize("query", ["%", "_", "'", "<script>", "\\", "a" * 3000, "☃"])
def test_odd_searches_find_nothing_and_break_nothing(page: Client, experiment: Experiment, query: str) -> None:
    response = page.get("/experiments/", {"q": query})
    assert response.status_code == 200
    assert "Nothing matches" in text(response)
    assert "<script>" not in response.content.decode()


def test_the_list_has_pages(page: Client, user: User) -> None:
    Experiment.objects.bulk_create([Experiment(name=f"E{i}", slug=f"e{i}", owner=user) for i in range(51)])
    assert "1 to 50 of 51" in text(page.get("/experiments/"))
    assert len(re.findall(r'class="er"', page.get("/experiments/?page=2").content.decode())) == 1
    assert page.get("/experiments/?page=x").status_code == 200


def test_names_and_notes_of_people_are_text(page: Client, user: User, make_config: Callable[..., Config]) -> None:
    evil = "<script>alert(1)</script>"
    experiment = experiment_create(name=evil, question=evil, notes=evil, source=evil, owner=user)
    config = config_save(experiment=experiment, data=make_config().data, sweep={}, note=evil, user=user)
    published_run_add(config=config, point={evil: evil}, user=user, summary={}, state="oom", reason=evil)
    for url in (
        "/",
        "/experiments/",
        "/experiments/?show=runs",
        experiment.get_absolute_url(),
        experiment.runs.get().get_absolute_url(),
    ):
        content = page.get(url).content.decode()
        assert "<script>alert" not in content
        assert "&lt;script&gt;alert" in content


def test_two_axes_become_a_table_with_the_best_of_a_row_in_bold(page: Client, four_runs: list[Run]) -> None:
    response = page.get(TABLE)
    assert cells(response) == [
        ["Schedule", "Micro batch size"],
        ["1", "2"],
        ["gpipe", "500", "400"],
        ["1f1b", "200", "300"],
    ]
    assert bold(response) == ["400", "200"]
    assert "Step time in ms." in text(response)


@pytest.mark.parametrize(
    ("metric", "row", "best"),
    [
        ("samples", ["gpipe", "8.00", "10.00"], ["10.00", "20.00"]),
        ("tokens", ["gpipe", "128", "160"], ["160", "320"]),
        ("memory", ["gpipe", "256", "256"], ["256", "256"]),
        ("nonsense", ["gpipe", "500", "400"], ["400", "200"]),
    ],
)
def test_the_sweep_shows_the_number_that_is_asked_for(
    page: Client, four_runs: list[Run], metric: str, row: list[str], best: list[str]
) -> None:
    response = page.get(f"{TABLE}?metric={metric}")
    assert cells(response)[2] == row
    assert bold(response) == best


def test_three_axes_become_a_table_per_schedule_in_the_shape_of_the_paper(
    page: Client, user: User, experiment: Experiment, make_config: Callable[..., Config]
) -> None:
    config = make_config(sweep=SWEEP)
    times = {"gpipe": [[6.64, 6.76], [8.38, 8.61]], "1f1b": [[6.54, 6.65], [11.21, 11.03]]}
    for schedule, rows in times.items():
        for network, row in zip(["fast", "delay 10ms bandwidth 1Gbps"], rows, strict=True):
            for size, seconds in zip([1, 2], row, strict=True):
                point = {"parallel.schedule": schedule, "network": network, "train.micro_batch_size": size}
                published_run_add(config=config, point=point, user=user, summary={"step_time_s": {"mean": seconds}})
    why = "Fail due to running out of DRAM"
    published_run_add(config=config, point={"method": "ZeRO-3"}, user=user, summary={}, state="oom", reason=why)
    response = page.get(TABLE)
    assert cells(response, 0)[2:] == [["fast", "6.64", "6.76"], ["delay 10ms bandwidth 1Gbps", "8.38", "8.61"]]
    assert cells(response, 1)[2:] == [["fast", "6.54", "6.65"], ["delay 10ms bandwidth 1Gbps", "11.21", "11.03"]]
    assert "Schedule gpipe" in text(response)
    assert why in text(response)
    assert 'id="launch"' not in response.content.decode()
    assert "These are published results" in text(page.get(CONFIGURATION))


def test_cells_say_why_there_is_no_number(
    page: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    config = make_config(sweep={"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2, 4]})
    points = [point.values for point in config.points()]
    finish(make_attempt(config=config, point=points[0]), 0.5)
    finish(make_attempt(config=config, point=points[1]), 0.5, state="oom", reason="asked for 2 GiB")
    make_attempt(config=config, point=points[2], state="running")
    make_attempt(config=config, point=points[3], state="failed")
    response = page.get(TABLE)
    # 1f1b with one micro batch for two stages cannot run; 1f1b with two was not launched.
    assert cells(response)[2:] == [["gpipe", "500", "OOM", "running"], ["1f1b", "failed", DASH, "cannot run"]]
    assert "1 of 6 points cannot run : 1f1b requires at least as many micro batches as stages" in text(response)
    assert "1 of 6 points cannot run: 1f1b requires" in text(page.get(CONFIGURATION))
    assert "Launch 1 run" in text(response)
    assert 'data-run="2" data-state="oom"' in response.content.decode()


def test_polling_goes_on_while_runs_are_active_and_stops_when_all_have_ended(
    page: Client, swept: Config, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(config=swept, point=swept.points()[0].values, state="running")
    live = page.get(EXPERIMENT)
    assert 'hx-trigger="every 2s"' in live.content.decode()
    match = re.search(r'hx-get="([^"]*live[^"]*)"', live.content.decode())
    assert match
    url = html.unescape(match.group(1))
    assert page.get(url).status_code == 204
    Attempt.objects.filter(pk=attempt.pk).update(last_step=2)
    moved = page.get(url)
    assert "hx-trigger" in moved.content.decode()
    assert "2/4" in text(page.get(TABLE))
    finish(attempt)
    ended = page.get(url)
    assert 'hx-trigger="every' not in ended.content.decode()
    assert '"state": "finished", "final": true' in ended.content.decode()


def test_the_number_of_queries_does_not_depend_on_the_number_of_runs(
    page: Client, swept: Config, make_attempt: Callable[..., Attempt], django_assert_num_queries: Any
) -> None:
    points = swept.points()
    make_attempt(config=swept, point=points[0].values, state="queued")
    page.get(EXPERIMENT)  # the first visit records itself
    with django_assert_num_queries(22):
        page.get(EXPERIMENT)
    for point in points[1:]:
        make_attempt(config=swept, point=point.values, state="queued")
    # session, person, experiment, versions, runs, findings, saved views, nodes to wait for, dashboards, stars, visit,
    # layout, attempts, series, imported bandwidths, and what the frame counts
    with django_assert_num_queries(22):
        page.get(EXPERIMENT)


def test_runs_of_unlike_nodes_and_software_have_them_as_columns(page: Client, four_runs: list[Run]) -> None:
    for run, (host, version) in zip(
        four_runs, [("a", "2.13"), ("b", "2.13"), ("b", "2.12"), ("b", "2.13")], strict=True
    ):
        run.attempts.update(environment={"hostname": host, "cpu_model": "EPYC", "torch": version})
    headings = re.findall(r"<th scope=\"col\"[^>]*>([^<]+)", page.get(TABLE).content.decode())
    assert {"Node", "Software"} <= set(headings)
    assert "Device" not in headings


def test_very_many_runs_come_in_pages(page: Client, make_config: Callable[..., Config], user: User) -> None:
    config = make_config(sweep={"train.seed": list(range(205))})
    config_launch(config=config, user=user)
    first, second = page.get(TABLE), page.get(f"{TABLE}?page=2")
    assert first.content.decode().count("<tr data-run=") == 200
    assert re.findall(r'<tr data-run="(\d+)"', second.content.decode()) == ["201", "202", "203", "204", "205"]
    assert "Runs 1 to 200 of 205" in text(first)
    assert "205 queued" in text(second)


def test_queued_runs_say_why_they_wait(page: Client, swept: Config, make_attempt: Callable[..., Attempt]) -> None:
    make_attempt(config=swept, point=swept.points()[0].values, state="queued")
    assert "no node of pool default" in text(page.get(TABLE))


def test_the_runs_of_all_versions_are_shown_and_each_version_alone(
    page: Client, four_runs: list[Run], make_config: Callable[..., Config]
) -> None:
    make_config(sweep={"train.micro_batch_size": [1, 2]})
    everything = page.get(EXPERIMENT)
    assert "Launch 2 runs" in text(everything)
    assert everything.content.decode().count('class="rl"') == 4
    assert "Version 1 alone 4" in text(everything)
    assert "No runs of this configuration yet" in text(page.get(f"{TABLE}?version=2"))
    assert cells(page.get(f"{TABLE}?version=1"))[2] == ["gpipe", "500", "400"]
    assert page.get(f"{EXPERIMENT}?version=99").status_code == 200


def test_all_versions_together_have_the_version_as_an_axis(
    page: Client, four_runs: list[Run], make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    second = make_config(sweep=SWEEP)
    for point in second.points():
        finish(make_attempt(config=second, point=point.values), 0.1)
    response = page.get(f"{TABLE}?version=all")
    assert "Configuration v1" in text(response)
    assert "Configuration v2" in text(response)


def test_launch_makes_the_runs_once_and_says_how_many(page: Client, swept: Config) -> None:
    response = page.get(EXPERIMENT)
    assert "Launch 4 runs" in text(response)
    url = reverse("launch", args=["pipeline-schedules", 1])
    assert url in response.content.decode()
    assert "Launched 4 runs." in text(page.post(url, {"digest": swept.digest}, follow=True))
    assert swept.runs.filter(state=RunState.QUEUED).count() == 4
    assert "every point that can run already has a run" in text(page.post(url, {"digest": swept.digest}, follow=True))
    assert swept.runs.count() == 4


def test_a_config_that_cannot_run_is_refused_with_its_reason(page: Client, make_config: Callable[..., Config]) -> None:
    config = make_config(sweep={"parallel.pipeline_parallel_size": [64]})
    page_text = text(page.get(EXPERIMENT))
    assert "No point of the sweep can run" in page_text
    address = reverse("launch", args=["pipeline-schedules", config.version])
    answer = text(page.post(address, {"digest": config.digest}, follow=True))
    assert "Nothing was launched:" in answer
    assert "pipeline_parallel_size 64" in answer


def test_an_experiment_without_a_config_says_what_to_do(page: Client, experiment: Experiment) -> None:
    response = page.get(EXPERIMENT)
    assert "No configuration yet" in text(response)
    assert 'id="launch"' not in response.content.decode()


def test_people_who_may_edit_find_the_way_to_the_builder(page: Client, viewer: Client, swept: Config) -> None:
    edit = reverse("sweep-edit", args=["pipeline-schedules"])
    html = page.get(CONFIGURATION).content.decode()
    assert f'<a class="btn" href="{reverse("sweep-edit", args=["pipeline-schedules"])}">Edit</a>' in html
    assert reverse("sweep-new") in page.get("/experiments/").content.decode()
    assert edit not in viewer.get(CONFIGURATION).content.decode()
    assert "New experiment" not in text(viewer.get("/experiments/"))


def test_clone_copies_the_configuration_without_runs(page: Client, four_runs: list[Run]) -> None:
    response = page.post(reverse("clone", args=["pipeline-schedules"]), follow=True)
    assert "Launch 4 runs" in text(response)
    assert Experiment.objects.count() == 2


@pytest.mark.parametrize("path", ["launch/1/", "clone/", "runs/1/cancel/", "runs/1/relaunch/"])
def test_actions_need_a_right_and_a_post(viewer: Client, page: Client, four_runs: list[Run], path: str) -> None:
    response = viewer.post(EXPERIMENT + path)
    assert response.status_code == 403
    assert "Ask an administrator to grant it" in text(response)
    assert page.get(EXPERIMENT + path).status_code == 405


def test_who_may_only_look_sees_no_buttons(viewer: Client, four_runs: list[Run]) -> None:
    content = viewer.get(EXPERIMENT).content.decode()
    assert 'id="launch"' not in content
    assert "Clone</button>" not in content
    assert "Admin" not in content
    assert 'id="relaunch"' not in viewer.get(f"{EXPERIMENT}runs/1/").content.decode()


def test_the_right_to_add_runs_is_enough_to_launch(allowed: Callable[..., Client], swept: Config) -> None:
    launcher = allowed("add_run")
    for seen in ("", "0" * 64):
        assert "has saved v1" in text(launcher.post(f"{EXPERIMENT}launch/1/", {"digest": seen}, follow=True))
    assert swept.runs.count() == 0
    [digest] = re.findall(r'name="digest" value="(\w+)"', launcher.get(EXPERIMENT).content.decode())
    assert launcher.post(f"{EXPERIMENT}launch/1/", {"digest": digest}).status_code == 302
    assert swept.runs.count() == 4


def test_forms_from_other_sites_are_refused(admin: User, swept: Config) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin)
    response = strict.post(f"{EXPERIMENT}launch/1/")
    assert response.status_code == 403
    assert "Form rejected" in text(response)
    assert swept.runs.count() == 0


def test_a_missing_page_is_ours(page: Client, settings: Any) -> None:
    settings.DEBUG = False
    response = page.get("/experiments/nothing-here/")
    assert response.status_code == 404
    assert "There is no page at this address" in text(response)


def test_an_error_page_needs_no_database(page: Client, experiment: Experiment, monkeypatch: Any) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr("parlab.pages.views.experiments.lists.experiment_list", broken)
    page.raise_request_exception = False
    response = page.get("/experiments/")
    assert response.status_code == 500
    assert "Server error" in text(response)


def test_pages_hold_no_inline_scripts_styles_or_foreign_addresses(page: Client, four_runs: list[Run]) -> None:
    for url in (
        "/login/",
        "/",
        "/experiments/",
        "/experiments/?show=runs",
        "/nodes/",
        EXPERIMENT,
        *(f"{EXPERIMENT}{tab}/" for tab in ("table", "time", "compare", "configuration", "report")),
        f"{EXPERIMENT}runs/1/",
    ):
        content = page.get(url, follow=True).content.decode()
        # Data for a script are none: browsers do not run application/json.
        assert not re.search(r"<script(?![^>]*\b(?:src=|type=\"application/json\"))", content)
        assert not re.search(r"\sstyle=|\son[a-z]+=\"|javascript:", content)
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", content)


def test_axes_that_vary_together_make_no_empty_tables(
    page: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    points = [(1, 1), (2, 2), (4, 4), (8, 8), (8, 16), (16, 32), (32, 64)]
    config = make_config(sweep={"train.seed, train.micro_batch_size": [list(point) for point in points]})
    for seed, size in points:
        make_attempt(config=config, point={"train.seed": seed, "train.micro_batch_size": size}, state="finished")
    assert page.get(TABLE).context["sweep"].tables == []
