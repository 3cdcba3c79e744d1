"""The page of a run that a script reports: its loss first, and no empty figures."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Experiment, Run, TrackedRun
from parlab.tracking.point import Point
from parlab.tracking.runs import points_append, tracked_run_start, tracked_run_update

from .test_experiments import text

pytestmark = pytest.mark.django_db


@pytest.fixture
def reported(experiment: Experiment, user: User) -> Run:
    """A finished run with a loss and a rate, without a log."""
    tracked = tracked_run_start(experiment=experiment, user=user, name="mine")
    points = [
        Point(name, value, 1_000 * step, step)
        for step in range(1, 21)
        for name, value in (("train/loss", 1.0 / step), ("samples_per_s", 40.0 + step), ("lr", 0.1))
    ]
    points_append(tracked=tracked, points=points)
    tracked_run_update(tracked=tracked, status=TrackedRun.Status.FINISHED)
    return Run.objects.get(pk=tracked.run_id)


def test_the_loss_of_a_script_is_drawn_first_and_its_rate_beside_it(page: Client, reported: Run) -> None:
    content = page.get(reported.get_absolute_url()).content.decode()
    assert re.findall(r'data-own="series=([^"]+)"', content) == ["train/loss", "samples_per_s"]
    chosen = page.get(reported.get_absolute_url(), {"series": "lr"}).content.decode()
    assert re.findall(r'data-own="series=([^"]+)"', chosen) == ["lr"]


def test_a_step_of_which_nothing_is_known_has_no_figure_but_says_what_would_explain_it(
    page: Client, reported: Run
) -> None:
    response = page.get(f"{reported.get_absolute_url()}time/")
    assert "run.phase(" in text(response)
    assert "data-figure=" not in response.content.decode()


def test_a_script_without_output_has_no_log_to_search(page: Client, reported: Run) -> None:
    response = page.get(f"{reported.get_absolute_url()}log/")
    assert "No log output" in text(response)
    assert 'id="log-find"' not in response.content.decode()
