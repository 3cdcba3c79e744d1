"""The home page: what runs, what came out, what needs a look, and the first step where there is nothing yet."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.core.cache import caches
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Experiment, Finding, Node, Run
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


def poll_url(response: Any) -> str:
    match = re.search(r'hx-get="([^"]+)" hx-trigger="every', response.content.decode())
    assert match
    return html.unescape(match[1])


def series(*values: float) -> Columns:
    count = np.arange(1, len(values) + 1)
    return Columns(count, count.astype(np.float64), np.array(values))


def test_an_empty_home_teaches_the_first_step(page: Client, viewer: Client) -> None:
    page_text = text(page.get("/"))
    assert "Start with a question" in page_text
    assert "Press Save and launch" in page_text
    assert "Create the first experiment" in page_text
    assert "Ask an administrator" in text(viewer.get("/"))


def test_recent_results_say_which_configuration_is_best_and_by_how_much(page: Client, four_runs: list[Run]) -> None:
    Run.objects.update(ended_at=timezone.now())
    response = page.get("/")
    assert f"#{four_runs[2].number}" in text(response)
    assert "20.0 samples/s" in text(response)
    # 20 samples/s beside 13.3 of the second.
    assert "50.0 %" in text(response)
    assert f'title="than #{four_runs[3].number}' in response.content.decode()


def test_what_is_ready_to_launch_is_named(page: Client, swept: Config, make_attempt: Callable[..., Attempt]) -> None:
    assert "Ready to launch: Pipeline schedules" in text(page.get("/"))
    make_attempt(config=swept, state="cancelled")
    assert "wait for somebody" not in text(page.get("/"))


def test_a_step_time_alone_also_finds_the_best(page: Client, four_runs: list[Run]) -> None:
    Run.objects.update(ended_at=timezone.now(), samples_per_s=None, tokens_per_s=None)
    page_text = text(page.get("/"))
    assert "200 ms" in page_text
    assert "50.0 %" in page_text


def test_runs_that_did_not_finish_show_their_reason_with_a_link(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    finish(make_attempt(), state="failed", reason="rank 1: ValueError: no <b>", ended_at=timezone.now())
    response = page.get("/")
    assert "rank 1: ValueError: no <b>" in text(response)
    assert "<b>" not in response.content.decode().split("ValueError")[1][:20]
    assert '<a href="/experiments/pipeline-schedules/runs/1/">' in response.content.decode()


def test_open_findings_wait_with_the_grave_ones_first(page: Client, four_runs: list[Run]) -> None:
    for number, (severity, run) in enumerate(zip(("warning", "error", "info"), four_runs, strict=False)):
        Finding.objects.create(
            experiment=run.experiment, run=run, rule="r", severity=severity, message=f"{severity} here",
            where_digest=str(number),
        )  # fmt: skip
    page_text = text(page.get("/"))
    assert page_text.index("error here") < page_text.index("warning here")
    assert "3 open" in page_text
    Finding.objects.update(acknowledged_at=timezone.now())
    assert "No open findings" in text(page.get("/"))


def test_nodes_show_how_busy_their_gpus_are(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    node = Node.objects.create(name="gpu-1", last_heartbeat_at=timezone.now(), hardware={"gpus": GPUS})
    attempt = make_attempt(state="running")
    place(attempt, node)
    store.append(attempt.pk, {("gpu_util_pct", 0): series(10, 93.7)})
    content = page.get("/").content.decode()
    assert re.search(r'value="93.7" aria-label="GPU 0 of gpu-1"', content)
    # What nothing measures is no zero.
    assert re.search('aria-label="GPU 1 of gpu-1"></meter><span class="number">\N{EN DASH}', content)


def test_nodes_without_gpus_show_their_processors(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    node = Node.objects.create(name="cpu-1", last_heartbeat_at=timezone.now(), hardware={"cpu_cores": 4})
    attempt = make_attempt(state="running")
    place(attempt, node)
    store.append(attempt.pk, {("cpu_pct", -1): series(100, 200)})
    assert 'value="50.0" aria-label="CPU of cpu-1"' in page.get("/").content.decode()


def test_a_poll_is_answered_only_when_something_changed(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    url = poll_url(page.get("/"))
    partial = {"HX-Request": "true"}
    assert page.get(url, headers=partial).status_code == 204
    Attempt.objects.filter(pk=attempt.pk).update(last_step=2)
    caches["polls"].clear()  # the second is over for which the answer is repeated
    moved = page.get(url, headers=partial)
    assert "2/4" in text(moved)
    assert "<html" not in moved.content.decode()
    finish(attempt, ended_at=timezone.now())
    assert "No active runs." in text(page.get(poll_url(moved), headers=partial))


def test_archived_experiments_are_out_of_the_way(
    page: Client, four_runs: list[Run], experiment: Experiment, user: User
) -> None:
    Run.objects.update(ended_at=timezone.now())
    experiments_archive(experiments=[experiment])
    assert "Pipeline schedules" not in text(page.get("/"))


def test_home_takes_as_many_queries_for_much_as_for_little(
    page: Client, four_runs: list[Run], user: User, django_assert_max_num_queries: Any
) -> None:
    Run.objects.update(ended_at=timezone.now())
    page.get("/")  # the first visit records itself
    with django_assert_max_num_queries(16) as few:
        page.get("/")
    for number in range(4):
        other = experiment_create(name=f"Other {number}", owner=user)
        config = config_save(experiment=other, data=four_runs[0].config.data, sweep={"train.seed": [1, 2]}, user=user)
        config_launch(config=config, user=user)
        other.runs.filter(number=1).update(samples_per_s=5, state="finished", ended_at=timezone.now())
    with django_assert_max_num_queries(len(few) + 1):  # the step of the runs that now wait
        page.get("/")


def test_a_lead_shows_its_step_noise(page: Client, four_runs: list[Run]) -> None:
    Run.objects.update(ended_at=timezone.now())
    best, second = four_runs[2], four_runs[3]

    def steps(run: Run, low: float, high: float) -> None:
        spread = {"p10": low, "median": run.step_time_s, "p90": high}
        Run.objects.filter(pk=run.pk).update(summary=run.summary | {"step_time_s": spread})

    # 50 % ahead: steps that vary by 10 % leave that standing, steps that vary by 60 % do not.
    steps(best, 0.18, 0.22)
    steps(second, 0.29, 0.31)
    assert "step noise ±10.0 %" in text(page.get("/"))
    steps(second, 0.12, 0.48)
    assert "within step noise: ±60.0 %" in text(page.get("/"))
    assert "within step noise: ±60.0 %" in text(page.get("/experiments/"))
    Run.objects.filter(pk=second.pk).update(launch={"world_size": 64})
    assert "2 vs 64 GPUs" in text(page.get("/"))


def test_where_only_flops_are_stated_they_tell_who_leads(page: Client, four_runs: list[Run]) -> None:
    for run, rate in zip(four_runs, (137, 163, 142, 155), strict=True):
        Run.objects.filter(pk=run.pk).update(
            samples_per_s=None, tokens_per_s=None, step_time_s=None, summary={"tflops_per_gpu": rate}
        )
    Run.objects.update(ended_at=timezone.now())
    page_text = text(page.get("/"))
    assert f"163 TFLOP/s 5.16 % #{four_runs[1].number}" in page_text


def test_a_best_number_in_doubt_carries_its_triangle(page: Client, four_runs: list[Run]) -> None:
    Run.objects.update(ended_at=timezone.now())
    message, best = "48 samples/s are 4.8 times those of one GPU", four_runs[2]
    Finding.objects.create(experiment=best.experiment, run=best, rule="r", severity="warning", message=message)
    recent = page.get("/").content.decode().split('id="recent"')[1].split("</section>")[0]
    assert "Finding: 48 samples/s are 4.8 times those of one GPU" in recent
