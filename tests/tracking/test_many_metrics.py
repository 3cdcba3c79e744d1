"""A script that logs a metric per layer and step: names without end stay bounded, and the page of the run usable."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.ingest.batches import events
from parlab.lab.models import LatestMetric
from parlab.lab.services.experiments import experiment_create
from parlab.pages.views.runs.runs import SERIES_OFFERED
from parlab.series import store
from parlab.tracking import runs
from parlab.tracking.point import Point

pytestmark = pytest.mark.django_db
COUNT, LIMIT, PAGE_BYTES = 30_000, 10_000, 700_000


@pytest.mark.slow
def test_tens_of_thousands_of_names_fill_the_log_and_no_page(
    admin: User, page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_REPORTED_METRICS", LIMIT)
    experiment = experiment_create(name="layers", owner=admin)
    tracked = runs.tracked_run_start(experiment=experiment, user=admin)
    for start in range(0, COUNT, 10_000):
        points = [Point(f"layer.{n}.grad_norm", 1.5, 1, 0) for n in range(start, start + 10_000)]
        runs.points_append(tracked=tracked, points=points)
    again = [Point(f"layer.{n}.grad_norm", 2.5, 2, 1) for n in range(5_000)]
    runs.points_append(tracked=tracked, points=[*again, Point("new", 1.0, 2, 1)])

    attempt = tracked.run.current_attempt()
    assert len(store.metric_names([attempt.pk])[attempt.pk]) == LIMIT
    assert store.read(attempt.pk, "layer.7.grad_norm", rank=0).values.tolist() == [1.5, 2.5]
    assert LatestMetric.objects.get(key="layer.7.grad_norm").value == 2.5
    run = tracked.run
    for address in (run.get_absolute_url(), f"{experiment.get_absolute_url()}names/", experiment.get_absolute_url()):
        answer = page.get(address)
        assert (answer.status_code, len(answer.content) < PAGE_BYTES) == (200, True), address
    found = page.get(f"{experiment.get_absolute_url()}panels/?find=layer.777.").content.decode()
    assert 'data-offer="curve:layer.777.grad_norm"' in found
    menu = page.get(run.get_absolute_url()).content.decode()
    assert (menu.count('name="series"'), "4900 more" in menu) == (SERIES_OFFERED, True)
    found = page.get(f"{run.get_absolute_url()}?find=LAYER.777.").content.decode()
    assert re.findall('name="series" value="([^"]+)"( checked)?', found) == [
        ("layer.777.grad_norm", ""),
        ("layer.0.grad_norm", " checked"),
    ]
    chosen = page.get(f"{run.get_absolute_url()}?series=layer.777.grad_norm").content.decode()
    assert 'name="series" value="layer.777.grad_norm" checked' in chosen
