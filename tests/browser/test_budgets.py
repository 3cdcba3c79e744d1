"""The pages that a person opens most say what they must, and no more: budgets of words and controls."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from tests.patience import PATIENCE_S

from .budgets import Load, load_of
from .conftest import Demo

PUBLISHED = "/experiments/gpt-3-small-on-three-nodes/"
FIRST_HOME, HOME = Load(words=260, controls=25), Load(words=180, controls=20)
EXPERIMENT, RUN = Load(words=190, controls=40), Load(words=130, controls=20)
CLUSTER, NODE, WATCH, IMPORT = Load(90, 12), Load(150, 15), Load(120, 12), Load(40, 10)
MARKED, PLAN = Load(words=350, controls=12), Load(words=170, controls=20)
SIMULATE, COMPARE, SEARCH, TRY = Load(words=120, controls=12), Load(200, 25), Load(100, 12), Load(100, 12)
LOG = "".join(
    f" iteration {step}/ 9 | elapsed time per iteration (ms): 500.0 | global batch size: 8 | lm loss: {9 - step}.5 |\n"
    for step in range(1, 6)
)
RUNS = 60
MAKE_SWEEP = f"""
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from parlab.lab.models import Attempt, Run
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch
user = User.objects.get(username="demo")
experiment = experiment_create(name="Sixty runs", question="Which of sixty settings is fastest?", owner=user)
data = {{
    "model": {{"num_layers": 4, "hidden_size": 64, "num_attention_heads": 2, "sequence_length": 32, "vocab_size": 256}},
    "train": {{"global_batch_size": 64, "micro_batch_size": 1, "iterations": 4}},
    "parallel": {{"engine": "pipeline", "pipeline_parallel_size": 2}},
}}
axes = {{"parallel.schedule": ["gpipe", "1f1b", "zb-h1"], "train.micro_batch_size": [1, 2, 4, 8]}}
sweep = {{**axes, "train.seed": [1, 2, 3, 4, 5]}}
# Within a transaction no worker begins what is launched here only to have runs.
with transaction.atomic():
    config = config_save(experiment=experiment, data=data, sweep=sweep, user=user)
    config_launch(config=config, user=user)
    Attempt.objects.filter(run__config=config).update(state="finished", ended_at=timezone.now())
    for number, run in enumerate(Run.objects.filter(config=config)):
        step = 0.2 + 0.003 * (number * 37 % {RUNS})
        Run.objects.filter(pk=run.pk).update(
            state="finished", ended_at=timezone.now(),
            step_time_s=step, samples_per_s=64 / step, tokens_per_s=2048 / step,
            summary={{"step_time_s": {{"p10": step * 0.95, "median": step, "p90": step * 1.06}}}},
        )
"""


def excess(page: Page, budget: Load) -> list[str]:
    """Return what the page that is shown has too much."""
    return [
        f"{page.url}: {number} {name} of {limit}"
        for name, number, limit in zip(Load._fields, load_of(page), budget, strict=True)
        if number > limit
    ]


def within(page: Page, address: str, budget: Load) -> list[str]:
    """Return what a page has too much."""
    page.goto(address)
    page.wait_for_load_state()
    expect(page.locator("[hx-trigger=load]")).to_have_count(0)
    return excess(page, budget)


def make_sweep(demo: Demo) -> None:
    environment = {**os.environ, "PARLAB_DATA_DIR": str(demo.directory / "data")}
    for name in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "REDIS_URL"):
        environment.pop(name, None)
    command = [sys.executable, "manage.py", "shell", "-v", "0", "-c", MAKE_SWEEP]
    subprocess.run(command, cwd=demo.directory, env=environment, check=True, timeout=PATIENCE_S)


def test_home_keeps_its_budget(page: Page) -> None:
    page.goto("/")
    # Before the first run of this installation, Home also shows the ways to begin.
    is_first = page.locator("section.first").count()
    assert within(page, "/", FIRST_HOME if is_first else HOME) == []


def test_a_published_experiment_and_its_run_keep_their_budgets(page: Page) -> None:
    assert within(page, PUBLISHED, EXPERIMENT) + within(page, f"{PUBLISHED}runs/13/", RUN) == []


def test_cluster_watch_and_import_keep_their_budgets(page: Page) -> None:
    page.goto("/nodes/")
    node = page.locator("a[href^='/nodes/']").first
    assert within(page, "/nodes/", CLUSTER) + within(page, "/watch/", WATCH) + within(page, "/import/", IMPORT) == []
    page.goto("/nodes/")
    if node.count():
        assert within(page, node.get_attribute("href") or "", NODE) == []


def test_a_plan_keeps_its_budget(page: Page) -> None:
    assert within(page, "/plan/model/?name=Llama 3.2 1B&gpus=64&gpu=H100 SXM&limit=20", PLAN) == []
    assert page.locator("#remedies a").count() > 0
    expect(page.locator("#frontier svg")).to_be_visible()
    expect(page.locator("#layouts tbody tr")).to_have_count(5)


def test_the_other_steps_of_a_plan_and_a_comparison_keep_their_budgets(page: Page) -> None:
    steps = within(page, "/simulate/", SIMULATE) + within(page, "/tune/", SEARCH) + within(page, "/questions/", TRY)
    assert steps + within(page, f"{PUBLISHED}compare/", COMPARE) == []


def test_an_import_that_is_read_keeps_its_budget(page: Page) -> None:
    page.goto("/import/")
    page.locator("#paste-text").fill(LOG)
    expect(page.locator("[data-read]")).to_be_visible()
    assert excess(page, MARKED) == []


@pytest.mark.slow
def test_every_experiment_of_the_demo_keeps_the_budget(page: Page) -> None:
    page.goto("/experiments/")
    addresses = page.locator("[data-row] .nm a.ell").evaluate_all("(links) => links.map((link) => link.pathname)")
    assert len(addresses) > 10
    assert [more for address in addresses for more in within(page, address, EXPERIMENT)] == []


@pytest.mark.slow
def test_an_experiment_of_sixty_runs_keeps_the_budget(page: Page, demo: Demo) -> None:
    make_sweep(demo)
    assert within(page, "/experiments/sixty-runs/", EXPERIMENT) == []
    expect(page.locator("[data-run-count]")).to_have_text(f"{RUNS} runs")
    expect(page.locator("[data-verdict]")).to_be_visible()
