"""A study is started from the page of an experiment, searches with real runs, and ends in a result that can be kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from tests.patience import PATIENCE_S

from .conftest import TRAINING_MS, Demo, screenshots

pytestmark = pytest.mark.slow

MAKE_SPACE = """
from django.contrib.auth.models import User
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
user = User.objects.get(username="demo")
experiment = experiment_create(name="A space to tune", question="Which micro batch?", owner=user)
data = {
    "model": {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "sequence_length": 32, "vocab_size": 256},
    "train": {"global_batch_size": 2, "micro_batch_size": 1, "iterations": 12, "warmup_steps": 2},
    "parallel": {"engine": "megatron", "data_parallel_size": 2},
    "cluster": {"device": "cpu"},
}
sizes = {"train.micro_batch_size, train.global_batch_size": [[1, 2], [4, 8]]}
config_save(experiment=experiment, data=data, sweep=sizes, user=user)
"""


def make_space(demo: Demo) -> None:
    environment = {**os.environ, "PARLAB_DATA_DIR": str(demo.directory / "data")}
    for name in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "REDIS_URL"):
        environment.pop(name, None)
    command = [sys.executable, "manage.py", "shell", "-v", "0", "-c", MAKE_SPACE]
    subprocess.run(command, cwd=demo.directory, env=environment, check=True, timeout=PATIENCE_S)


def test_a_study_runs_from_the_page_to_its_result(page: Page, demo: Demo) -> None:
    make_space(demo)
    page.goto("/experiments/")
    page.get_by_role("link", name="A space to tune").click()
    page.locator(".hd .acts summary").click()
    page.locator(".hd .acts").get_by_role("link", name="Search its best point", exact=True).click()
    expect(page.get_by_label("Configuration", exact=True)).to_have_value(re.compile(r"\d+"))
    screenshots(page, "tune")
    page.get_by_role("button", name="Start study").click()
    expect(page.get_by_text("Study started. Each trial is an ordinary run")).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    # The page follows the study by itself.
    expect(page.locator("[data-announce][data-state=finished]")).to_be_visible(timeout=TRAINING_MS)
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    expect(page.locator("[data-trial]")).to_have_count(4)  # both settings, for the search and by hand
    expect(page.get_by_role("region", name="Comparison").last).to_contain_text("Hand-tuned")
    expect(page.locator("[data-figure=progress] .main-svg").first).to_be_visible()
    screenshots(page, "study")
    with page.expect_download() as download:
        page.get_by_role("link", name="Report").last.click()
    text = download.value.path().read_text()
    assert "| tuning_space | num_experiments | best_metric_val | best_exp_name |" in text
    assert "Total number of experiments: 2." in text
    page.goto("/tune/")
    expect(page.get_by_role("region", name="Studies").last).to_contain_text("gas1_tmbspg")
