from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from parlab.lab.models import Config, Node, Run
from parlab.tuner import services
from parlab.tuner.models import Study
from tests.pages.test_parts import offers
from tests.tuner.conftest import DATA, SWEEP, finish, play


@pytest.fixture
def searched(make_config: Callable[..., Config]) -> Config:
    hardware = {"cpu_cores": 2, "memory_bytes": 2**33, "gpus": []}
    Node.objects.create(name="n1", hardware=hardware, last_heartbeat_at=timezone.now())
    return make_config(data=DATA, sweep=SWEEP)


@pytest.fixture
def pages(admin: User) -> Client:
    client = Client()
    client.force_login(admin)
    return client


def start(pages: Client, config: Config, **more: Any) -> Any:
    fields = {"config": config.pk, "strategy": "planned", "objective": "throughput", "max_launches": 20, **more}
    return pages.post("/tune/start/", fields)


def test_without_a_study_the_page_says_how_to_make_one(pages: Client) -> None:
    text = pages.get("/tune/").content.decode()
    assert "No studies yet" in text
    assert "New study" in text


def test_a_study_is_started_watched_and_reported(pages: Client, searched: Config) -> None:
    response = start(pages, searched, hand_tuned="on")
    study = Study.objects.get()
    assert response.url == f"/tune/{study.pk}/"
    assert 'id="pause"' in pages.get(response.url).content.decode()
    play(study)
    text = pages.get(response.url).content.decode()
    assert "z0_gas1_tmbspg4" in text
    assert "Hand-tuned" in text
    assert 'id="pause"' not in text
    assert "z0_gas1_tmbspg4" in pages.get("/tune/").content.decode()
    report = pages.get(f"/tune/{study.pk}/report.md")
    assert "attachment" in report["Content-Disposition"]
    assert "| global |" in report.content.decode()


def test_a_study_without_trials_shows_its_predictions_and_no_empty_table(pages: Client, searched: Config) -> None:
    start(pages, searched)
    study = Study.objects.get()
    services.study_pause(study=study)
    shown = pages.get(f"/tune/{study.pk}/").content.decode()
    assert "No runs were launched yet. Resume launches the first." in shown
    assert "<table" not in shown
    assert "Tuning time" not in shown
    space = pages.get(f"/tune/{study.pk}/figures/space.json").json()
    assert any("\u2248" in text for text in space["figure"]["data"][-1]["text"])


def test_a_poll_answers_only_when_something_changed(pages: Client, searched: Config) -> None:
    start(pages, searched)
    study = services.study_advance(study=Study.objects.get())
    seen = pages.get(f"/tune/{study.pk}/").context["seen"]
    assert pages.get(f"/tune/{study.pk}/live/?seen={seen}").status_code == 204
    finish(Run.objects.get())
    assert pages.get(f"/tune/{study.pk}/live/?seen={seen}").status_code == 200


@pytest.mark.parametrize("name", ["progress", "expected", "space"])
def test_figures_draw_what_was_tried(pages: Client, searched: Config, name: str) -> None:
    start(pages, searched)
    study = Study.objects.get()
    Run.objects.update(state="queued")
    before = pages.get(f"/tune/{study.pk}/figures/{name}.json").json()
    assert before["figure"] or before["empty"]
    play(study)
    after = pages.get(f"/tune/{study.pk}/figures/{name}.json").json()
    assert after["figure"]
    assert after["caption"]
    lines = pages.get(f"/tune/{study.pk}/figures/{name}.csv").content.decode().splitlines()
    assert len(lines) == (9 if name == "space" else 1 + study.trials.filter(role="search").count())


def test_the_list_takes_as_many_queries_for_many_studies_as_for_one(
    pages: Client, searched: Config, django_assert_max_num_queries: Any
) -> None:
    start(pages, searched)
    play(Study.objects.get())
    with CaptureQueriesContext(connection) as one_study:
        pages.get("/tune/")
    queries = len(one_study)
    for strategy in ("random", "exhaustive"):
        start(pages, searched, strategy=strategy)
        play(Study.objects.order_by("pk").last())  # type: ignore[arg-type]
    with django_assert_max_num_queries(queries):
        assert pages.get("/tune/").content.decode().count("data-study=") == 3


def test_studies_of_the_same_space_are_compared(pages: Client, searched: Config) -> None:
    for strategy in ("exhaustive", "planned"):
        start(pages, searched, strategy=strategy)
        play(Study.objects.order_by("pk").last())  # type: ignore[arg-type]
    text = pages.get(f"/tune/{Study.objects.latest('pk').pk}/").content.decode()
    assert "Studies of this space" in text
    assert f'<a href="/tune/{Study.objects.earliest("pk").pk}/">' in text
    figure = pages.get(f"/tune/{Study.objects.latest('pk').pk}/figures/progress.json").json()["figure"]
    assert any("exhaustive" in trace["name"] for trace in figure["data"])


def test_a_sweep_that_cannot_be_searched_is_rejected_in_the_form(pages: Client, searched: Config) -> None:
    short = {**DATA, "train": {**DATA["train"], "iterations": 5}}
    Config.objects.filter(pk=searched.pk).update(data=short)
    response = start(pages, searched)
    assert response.status_code == 422
    assert "train.iterations 5 leaves 3 timed steps" in response.content.decode()
    assert not Study.objects.exists()


def test_a_study_is_paused_resumed_and_cancelled(pages: Client, searched: Config) -> None:
    start(pages, searched)
    study = Study.objects.get()
    for action, state in [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled"), ("cancel", "cancelled")]:
        assert pages.post(f"/tune/{study.pk}/{action}/")["Location"] == f"/tune/{study.pk}/"
        study.refresh_from_db()
        assert study.state == state
    assert pages.post(f"/tune/{study.pk}/explode/").status_code == 404


def test_who_may_not_launch_may_not_start_a_study(user: User, searched: Config) -> None:
    client = Client()
    client.force_login(user)
    assert "can view studies" in client.get("/tune/").content.decode()
    assert start(client, searched).status_code == 403


def options(page: str, field: str) -> list[str]:
    """The configurations that a field offers."""
    select = re.search(rf'<select name="{field}".*?</select>', page, re.DOTALL)
    assert select is not None
    return [value for value in re.findall(r'<option value="(\d*)"', select[0]) if value]


def test_configurations_are_searched_and_not_listed(
    pages: Client, searched: Config, make_config: Callable[..., Config], user: User
) -> None:
    with patch("parlab.tuner.forms.SHOWN", 3):
        others = [make_config(data=DATA, sweep=SWEEP) for _ in range(4)]
        newest = [str(config.pk) for config in reversed(others)]
        page = pages.get("/tune/").content.decode()
        assert options(page, "config") == options(page, "baseline") == newest[:3]
        page = pages.get(f"/tune/?find-config=v{searched.version} PIPELINE").content.decode()
        assert options(page, "config") == [str(searched.pk)]
        # What is chosen stays while one searches for another.
        address = f"/tune/?config={searched.pk}&baseline={others[0].pk}&find-baseline=no+such"
        page = pages.get(address).content.decode()
        assert options(page, "config") == [str(searched.pk), *newest[:3]]
        assert options(page, "baseline") == [str(others[0].pk)]
        assert f'<option value="{others[0].pk}" selected>' in page
        for nonsense in ("%00", "v99999999999999999999", "%25_", "x " * 300):
            assert pages.get(f"/tune/?find-config={nonsense}&config=x&baseline=x").status_code == 200
        # One that is not among the offered ones can be sent: a script or an old page has it.
        assert start(pages, searched, max_launches=0).status_code == 422
        assert start(pages, searched).status_code == 302


def test_a_link_from_a_configuration_fills_the_form_in(
    pages: Client, searched: Config, make_config: Callable[..., Config]
) -> None:
    plain = {**DATA, "parallel": {"engine": "hf"}, "model": {**DATA["model"], "implementation": "huggingface"}}
    baseline = make_config(data=plain)
    make_config(data=DATA | {"parallel": {"engine": "autotuning", "data_parallel_size": 2}})
    form = pages.get(f"/tune/?config={searched.pk}").context["form"]
    assert form.initial == {"config": searched, "baseline": baseline}
    for nonsense in ("x", "999999", "9" * 40):
        assert pages.get(f"/tune/?config={nonsense}").context["form"].initial == {}
    # Configurations of imported runs may name no engine.
    Config.objects.filter(pk=searched.pk).update(data={"parallel": {}})
    assert pages.get(f"/tune/?config={searched.pk}").status_code == 200


def test_the_trials_and_figures_of_a_study_go_to_a_dashboard(pages: Client, searched: Config) -> None:
    response = start(pages, searched, hand_tuned="on")
    play(Study.objects.get())
    offered = offers(pages.get(response.url).content.decode())
    assert {"numbers", "trials", "comparison", "figure"} <= {offer["panel"] for offer in offered}
    assert {pages.post("/parts/add/", offer).status_code for offer in offered} == {200}
