"""An experiment goes with everything that belongs to it, unless some of it still runs."""

from collections.abc import Callable

from django.test import Client
from django.urls import reverse

from parlab.lab import services
from parlab.lab.models import Attempt, Experiment, Snapshot
from runners.protocol import Report


def test_an_experiment_with_finished_runs_is_deleted_after_a_confirmation(
    admin: Client, experiment: Experiment, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="running")
    services.attempt_report(attempt=attempt, report=Report(state="finished", at=1.0))
    services.summary_store(attempt=attempt, summary={"samples_per_s": 1.0})
    url = reverse("admin:lab_experiment_delete", args=[experiment.pk])

    asked = admin.get(url)
    assert "Are you sure" in asked.content.decode()
    admin.post(url, {"post": "yes"})

    assert not Experiment.objects.exists()
    assert not Snapshot.objects.exists()


def test_an_experiment_with_a_running_run_is_kept_and_says_why(
    admin: Client, experiment: Experiment, make_attempt: Callable[..., Attempt]
) -> None:
    make_attempt(state="running")
    url = reverse("admin:lab_experiment_delete", args=[experiment.pk])

    asked = admin.get(url)
    admin.post(url, {"post": "yes"})

    assert "cancel it first" in asked.content.decode()
    assert Experiment.objects.exists()
