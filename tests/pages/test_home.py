"""The home page: what runs, what came out, what the nodes do, and the first step where there is nothing yet."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.core.cache import caches
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Experiment, Node, Run
from parlab.lab.services.archive import experiments_archive
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch
from parlab.series import store
from parlab.series.columns import Columns
from tests.conftest import place

from .conftest import finish
from .test_experiments import text

pytestmark = pytest.mark.django_db

GPUS = [{"index": index, "name": "NVIDIA H200", "memory_bytes": 2**37} for index in range(2)]


def poll_url(response: Any, part: str = "live") -> str:
    match = re.search(rf'hx-get="([^"]+part={part}[^"]+)" hx-trigger="every', response.content.decode())
    assert match
    return html.unescape(match[1])


def series(*values: float) -> Columns:
    """Values of the last seconds."""
    count = np.arange(1, len(values) + 1)
    return Columns(count, time.time() - len(values) + count.astype(np.float64), np.array(values))


def end_all() -> None:
    Run.objects.update(ended_at=timezone.now())


def test_an_empty_home_shows_three_ways_to_begin(page: Client, viewer: Client) -> None:
    page_text = text(page.get("/"))
    for way in ("New experiment", "Paste a log", "Connect a script"):
        assert way in page_text
    assert "Ask an administrator" in text(viewer.get("/"))


def test_the_ways_to_begin_leave_with_the_first_own_run(page: Client, four_runs: list[Run]) -> None:
    assert "Three ways to the first picture" not in text(page.get("/"))


def test_recent_experiments_answer_their_question_with_a_picture(page: Client, four_runs: list[Run]) -> None:
    Experiment.objects.update(question="Is 1F1B faster than GPipe?")
    end_all()
    response = page.get("/")
    assert "1F1B, micro batch 1 : 2.0 × GPipe" in text(response)
    card = response.content.decode().split('class="card expc"')[1].split("</a>")[0]
    assert card.count("<title>") == 4  # a mark for each run, with all digits on hover
    assert "1f1b · mb 1: 20\u202fsamples/s" in card


def test_a_lead_within_noise_is_never_a_green_number(page: Client, four_runs: list[Run]) -> None:
    end_all()
    for run in four_runs:
        middle = run.step_time_s or 1.0
        spread = {"p10": 0.1 * middle, "median": middle, "p90": 5 * middle}
        Run.objects.filter(pk=run.pk).update(summary=run.summary | {"step_time_s": spread})
    card = page.get("/").content.decode().split('class="card expc"')[1].split("</a>")[0]
    assert "within noise" in card
    assert 'class="tag good"' not in card


def test_a_running_run_is_a_card_with_its_curves(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    Attempt.objects.filter(pk=attempt.pk).update(last_step=2)
    store.append(attempt.pk, {("loss", 0): series(7.0, 6.5), ("step_time_s", 0): series(0.5, 0.4)})
    response = page.get("/")
    assert "7.000 → 6.500" in text(response)
    assert "2 / 4" in text(response)
    # Two steps of 0.45 s are left; four samples take 0.45 s.
    assert "1 s left" in text(response)
    assert "8.89" in text(response)
    card = response.content.decode().split('class="card live"')[1].split("</a>")[0]
    assert 'aria-label="Loss"' in card
    assert 'aria-label="Step time"' in card


def test_a_search_counts_trials_and_promises_no_end(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    resolved = {**attempt.run.resolved, "parallel": {**attempt.run.resolved["parallel"], "engine": "capacity"}}
    Run.objects.filter(pk=attempt.run_id).update(resolved=resolved, summary={"step_time_s": {"median": 0.1}})
    Attempt.objects.filter(pk=attempt.pk).update(last_step=6)
    page_text = text(page.get("/"))
    assert "trial 6" in page_text
    assert "left" not in page_text
    assert "6 / 4" not in page_text


def test_nodes_show_how_busy_their_gpus_are(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    node = Node.objects.create(name="gpu-1", last_heartbeat_at=timezone.now(), hardware={"gpus": GPUS})
    attempt = make_attempt(state="running")
    place(attempt, node)
    store.append(attempt.pk, {("gpu_util_pct", 0): series(93.7, 93.7)})
    response = page.get("/")
    assert "gpu-1 94 %" in text(response)
    assert "<title>94 %</title>" in response.content.decode()


def test_nodes_without_gpus_show_their_processors(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    node = Node.objects.create(name="cpu-1", last_heartbeat_at=timezone.now(), hardware={"cpu_cores": 4})
    attempt = make_attempt(state="running")
    place(attempt, node)
    store.append(attempt.pk, {("cpu_pct", -1): series(200, 200)})
    assert "cpu-1 50 %" in text(page.get("/"))


def test_what_no_node_measures_is_no_zero(page: Client) -> None:
    Node.objects.create(name="idle", last_heartbeat_at=timezone.now(), hardware={"cpu_cores": 4})
    assert "idle \N{EN DASH}" in text(page.get("/"))


def test_a_poll_is_answered_only_when_something_changed(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    url = poll_url(page.get("/"))
    partial = {"HX-Request": "true"}
    assert page.get(url, headers=partial).status_code == 204
    Attempt.objects.filter(pk=attempt.pk).update(last_step=2)
    caches["polls"].clear()  # the second is over for which the answer is repeated
    moved = page.get(url, headers=partial)
    assert "2 / 4" in text(moved)
    assert "<html" not in moved.content.decode()
    finish(attempt, ended_at=timezone.now())
    assert "Nothing is running." in text(page.get(poll_url(moved), headers=partial))


def test_archived_experiments_are_out_of_the_way(
    page: Client, four_runs: list[Run], experiment: Experiment, user: User
) -> None:
    end_all()
    experiments_archive(experiments=[experiment])
    assert "Pipeline schedules" not in text(page.get("/"))


def test_home_takes_as_many_queries_for_much_as_for_little(
    page: Client, four_runs: list[Run], user: User, django_assert_max_num_queries: Any
) -> None:
    end_all()
    page.get("/")  # the first visit records itself
    with django_assert_max_num_queries(22) as few:
        page.get("/")
    for number in range(4):
        other = experiment_create(name=f"Other {number}", owner=user)
        config = config_save(experiment=other, data=four_runs[0].config.data, sweep={"train.seed": [1, 2]}, user=user)
        config_launch(config=config, user=user)
        other.runs.filter(number=1).update(samples_per_s=5, state="finished", ended_at=timezone.now())
    with django_assert_max_num_queries(len(few) + 3):  # steps of the runs that now wait, and what their cards read
        page.get("/")
