"""Deleting objects, and the objects deleted with them."""

from collections.abc import Callable

import pytest
from django.db.models import RestrictedError

from parlab.lab.models import Attempt, Config, Experiment, Run, Snapshot
from parlab.lab.services.attempts import summary_store
from parlab.lab.services.members import attempt_report
from runners.wire.protocol import Report

pytestmark = pytest.mark.database


def test_an_experiment_is_deleted_with_its_configs_runs_and_snapshots(
    experiment: Experiment, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="running")
    attempt_report(attempt=attempt, report=Report(state="finished", at=1.0))
    summary_store(attempt=attempt, summary={"samples_per_s": 1.0})
    assert Snapshot.objects.count() == 1

    experiment.delete()

    assert [model.objects.count() for model in (Experiment, Config, Run, Attempt, Snapshot)] == [0, 0, 0, 0, 0]


def test_a_used_config_is_not_deleted(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()

    with pytest.raises(RestrictedError):
        attempt.run.config.delete()

    assert Run.objects.count() == 1
