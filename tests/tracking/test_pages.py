"""Runs that a script reports, on the pages that other runs have."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from parlab.ingest.batches.services import attempt_reingest
from parlab.lab.models import Experiment, Run, TrackedRun
from parlab.lab.selectors.analysis.plannable import calibration_candidates
from parlab.series import store
from parlab.tracking import runs
from parlab.tracking.point import Point


@pytest.fixture
def tracked(experiment: Experiment, user: User) -> TrackedRun:
    tracked = runs.tracked_run_start(experiment=experiment, user=user, name="warm-up 100")
    runs.parameters_set(tracked=tracked, parameters={"per_device_train_batch_size": "4", "num_hidden_layers": "12"})
    now = int(timezone.now().timestamp() * 1000)
    points = [
        Point(key, 2.0 - step / 10, now + 500 * step, step) for step in range(8) for key in ("loss", "my/own key")
    ]
    runs.points_append(tracked=tracked, points=points)
    return tracked


def test_a_reported_run_without_the_size_of_its_model_is_not_predicted(tracked: TrackedRun) -> None:
    runs.tracked_run_update(tracked=tracked, status="FINISHED")
    run = Run.objects.get(pk=tracked.run.pk)
    assert run.step_time_s
    (candidate,) = calibration_candidates([run])
    assert candidate.observation is None
    assert candidate.reason == "its training did not report model.hidden_size"


@pytest.mark.parametrize("is_over", [False, True])
def test_run_experiment_and_lists_answer_for_a_reported_run(page: Client, tracked: TrackedRun, is_over: bool) -> None:
    if is_over:
        runs.tracked_run_update(tracked=tracked, status="FINISHED")
    run = tracked.run
    for url in (
        run.get_absolute_url(),
        run.experiment.get_absolute_url(),
        "/",
        "/experiments/",
        f"{run.get_absolute_url()}figures/step-time.json",
    ):
        response = page.get(url)
        assert response.status_code == 200, url
    text = page.get(run.get_absolute_url()).content.decode()
    assert "warm-up 100" in text


def test_the_step_time_follows_from_the_time_stamps_of_reports(tracked: TrackedRun) -> None:
    runs.tracked_run_update(tracked=tracked, status="FINISHED")
    summary = Run.objects.get(pk=tracked.run_id).summary
    assert summary["step_time_s"]["median"] == pytest.approx(0.5, rel=1e-3)
    assert "time stamps of the reports" in summary["basis"]
    assert summary["sources"] == {"loss": "loss"}


def test_a_silent_run_is_lost_and_returns_with_its_next_report(tracked: TrackedRun, settings: Any) -> None:
    settings.TRACKING_SILENCE_S = 60.0
    assert runs.reap() == 0
    TrackedRun.objects.update(last_report_at=timezone.now() - timedelta(seconds=90))
    assert runs.reap() == 1
    lost = Run.objects.get()
    assert (lost.state, lost.reason) == ("lost", "no report for 90 s; it returns to running with its next report")
    runs.points_append(tracked=tracked, points=[Point("loss", 1.0, 1_000, 9)])
    run = Run.objects.get()
    assert (run.state, run.reason, run.ended_at) == ("running", "", None)


def test_reingest_builds_the_series_of_a_reported_run_again(tracked: TrackedRun) -> None:
    attempt = tracked.run.current_attempt()
    before = store.read(attempt.pk, "my/own key", rank=0)
    attempt_reingest(attempt=attempt)
    after = store.read(attempt.pk, "my/own key", rank=0)
    assert (after.steps.tolist(), after.values.tolist()) == (before.steps.tolist(), before.values.tolist())
    assert len(after) == 8


def test_histories_of_several_runs_are_limited_and_thinned(page: Client, tracked: TrackedRun) -> None:
    url = "/api/2.0/mlflow/metrics/get-history-bulk"
    query: dict[str, str | int] = {"run_id": tracked.uuid, "metric_key": "loss", "max_results": 3}
    answer = page.get(url, query).json()["metrics"]
    assert [(point["run_id"], point["step"], point["value"]) for point in answer] == [
        (tracked.uuid, 0, 2.0), (tracked.uuid, 1, 1.9), (tracked.uuid, 2, 1.8)
    ]  # fmt: skip
    between: dict[str, str | int] = {
        "run_ids": tracked.uuid,
        "metric_key": "loss",
        "start_step": 2,
        "end_step": 6,
        "max_results": 2,
    }
    answer = page.get(f"{url}-interval", between).json()["metrics"]
    assert [point["step"] for point in answer] == [2, 4, 6]
    assert page.get(url, {"metric_key": "loss"}).json()["error_code"] == "INVALID_PARAMETER_VALUE"


def test_a_deleted_run_leaves_pages_lists_and_figures_until_it_is_restored(page: Client, tracked: TrackedRun) -> None:
    run = tracked.run
    slug = run.experiment.slug
    addresses = [reverse("run", args=[slug, run.number]), reverse("run-log", args=[slug, run.number])]
    label = "warm-up 100"
    runs.tracked_run_delete(tracked=tracked)

    assert [page.get(address).status_code for address in addresses] == [404, 404]
    for address in (reverse("experiment", args=[slug]), reverse("experiments"), f"{reverse('experiments')}?show=runs"):
        assert label not in page.get(address).content.decode()
    assert label not in page.get(reverse("report", args=[slug])).content.decode()
    assert page.get(f"/api/experiments/{slug}/runs/").json()["count"] == 0
    later = runs.tracked_run_start(experiment=run.experiment, user=run.created_by)
    assert later.run.number == run.number + 1, "its number is not given away"
    runs.points_append(tracked=tracked, points=[Point("loss", 1.0, 1, 99)])
    runs.tracked_run_update(tracked=tracked, status="FINISHED")

    runs.tracked_run_restore(tracked=tracked)
    assert label in page.get(addresses[0]).content.decode()
    assert Run.objects.get(pk=run.pk).state == "finished", "what came while it was deleted counts"


def test_an_experiment_of_reported_runs_names_them_and_offers_no_launch(page: Client, tracked: TrackedRun) -> None:
    content = page.get(tracked.run.experiment.get_absolute_url()).content.decode()
    assert "published results" not in content
    assert 'id="launch"' not in content
    assert "warm-up 100" in content
