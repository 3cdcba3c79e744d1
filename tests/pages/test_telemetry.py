"""What a run's machine was doing, on the run's page."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from django.test import Client

from parlab.lab.models import Attempt
from parlab.series import store
from parlab.series.columns import Columns

from .conftest import finish
from .test_experiments import EXPERIMENT

pytestmark = pytest.mark.django_db

RUN = f"{EXPERIMENT}runs/1/"


def figures(page: Client) -> list[str]:
    return re.findall(r'data-figure="([^"]+)"', page.get(RUN).content.decode())


def samples(attempt: Attempt, metric: str, rank: int, values: list[float]) -> None:
    columns = Columns(np.zeros(len(values), np.int64), np.arange(float(len(values))), np.array(values))
    store.append(attempt.pk, {(metric, rank): columns})


def test_an_ended_run_shows_what_was_sampled(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    samples(attempt, "cpu_pct", -1, [10.0, 20.0])
    samples(attempt, "gpu_util_pct", 0, [70.0, 90.0])
    Attempt.objects.filter(pk=attempt.pk).update(environment={"gpus_used": [{"index": 6}]})
    finish(attempt)
    assert figures(page) == ["step-time", "memory", "gpu-utilisation", "processor"]
    drawn = json.loads(page.get(f"{RUN}figures/gpu-utilisation.json").content)
    assert [trace["name"] for trace in drawn["figure"]["data"]] == ["GPU 6"]
    rows = list(csv.DictReader(io.StringIO(page.get(f"{RUN}figures/gpu-utilisation.csv").content.decode())))
    assert [(row["of"], float(row["gpu_util_pct"])) for row in rows] == [("GPU 6", 70.0), ("GPU 6", 90.0)]


def test_a_run_that_has_just_begun_keeps_room_for_what_will_come(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="running")
    assert figures(page) == ["step-time", "memory", "network", "processor"]
    Attempt.objects.filter(pk=attempt.pk).update(environment={"gpus_used": [{"index": 0}]})
    assert "power" in figures(page)
    assert json.loads(page.get(f"{RUN}figures/power.json").content)["empty"].startswith("Power: not measured")


def test_an_unknown_figure_is_answered_with_those_there_are(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    make_attempt()
    assert page.get(f"{RUN}figures/mood.json").status_code == 404
