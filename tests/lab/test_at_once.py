"""Concurrent users and processes, as threads with separate database connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from parlab.fleet import services as fleet
from parlab.lab.models import Attempt, Config, Experiment, Node, Run
from parlab.lab.services.configs import Superseded, config_save
from parlab.lab.services.experiments import experiment_clone, experiment_create
from parlab.lab.services.members import attempt_lose, attempt_report
from parlab.lab.services.runs import Launch, config_launch, run_cancel_request
from runners.wire.protocol import Report, RunState
from tests.conftest import SMALL
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
T = TypeVar("T")


def at_once(*calls: Callable[[], T]) -> list[T | Exception]:
    """Run all calls concurrently; return the result or exception of each."""
    start = threading.Barrier(len(calls))
    results: list[T | Exception] = [RuntimeError("never ran")] * len(calls)

    def run(index: int, call: Callable[[], T]) -> None:
        start.wait(PATIENCE_S)
        try:
            results[index] = call()
        except Exception as error:
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it waits for ever"
    return results


@pytest.fixture
def config(experiment: Experiment, user: User) -> Config:
    return config_save(experiment=experiment, data=SMALL, sweep={"train.seed": list(range(20))}, user=user)


def test_concurrent_launches_create_each_run_once(config: Config, user: User) -> None:
    launch = lambda: config_launch(config=config, user=user)  # noqa: E731
    results = at_once(launch, launch, launch)
    assert not [result for result in results if isinstance(result, Exception)]
    assert sorted(len(result.created) for result in results if isinstance(result, Launch)) == [0, 0, 20]
    assert sorted(Run.objects.values_list("number", flat=True)) == list(range(1, 21))
    assert Attempt.objects.count() == 20


def test_concurrent_launches_of_two_versions_use_distinct_numbers(
    experiment: Experiment, config: Config, user: User
) -> None:
    config_launch(config=config, user=user)
    other = config_save(experiment=experiment, data=SMALL, sweep={"train.seed": [91, 92]}, user=user)
    third = Config.objects.create(
        experiment=experiment, version=3, data=other.data, sweep={"train.seed": [93]}, digest="x", created_by=user
    )
    results = at_once(*[lambda each=each: config_launch(config=each, user=user) for each in (other, third)])
    assert not [result for result in results if isinstance(result, Exception)]
    assert sorted(Run.objects.values_list("number", flat=True)) == list(range(1, 24))


def test_of_concurrent_saves_of_a_version_one_is_refused(experiment: Experiment, config: Config, user: User) -> None:
    def save(seed: int) -> Callable[[], Config]:
        return lambda: config_save(
            experiment=experiment, data=SMALL, sweep={"train.seed": [seed]}, user=user, based_on=config.digest
        )

    results = at_once(save(1), save(2))
    [kept] = [result for result in results if isinstance(result, Config)]
    assert [type(result) for result in results if result is not kept] == [Superseded]
    assert [version.sweep for version in experiment.configs.all()] == [kept.sweep]


def test_concurrent_clones_and_creations_with_the_same_name(experiment: Experiment, user: User) -> None:
    def clone() -> Experiment:
        return experiment_clone(experiment=experiment, user=user)

    copies = at_once(clone, clone)
    assert sorted(str(copy) for copy in copies) == ["Pipeline schedules (copy 2)", "Pipeline schedules (copy)"]

    def create() -> Experiment:
        return experiment_create(name="New", owner=user)

    results = at_once(create, create)
    (refused,) = [result for result in results if not isinstance(result, Experiment)]
    assert "is taken" in str(refused)


def test_concurrent_dispatchers_do_not_fill_a_slot_twice(config: Config, user: User) -> None:
    config_launch(config=config, user=user)
    Node.objects.create(name="gpu1", slots=3, last_heartbeat_at=timezone.now())
    results = at_once(fleet.dispatch, fleet.dispatch, fleet.dispatch)
    assert not [result for result in results if isinstance(result, Exception)]
    assert Attempt.objects.filter(state=RunState.DISPATCHED).count() == 3
    assert Run.objects.filter(state=RunState.DISPATCHED).count() == 3


def test_concurrent_cancel_loss_and_end_leave_a_consistent_state(make_attempt: Callable[..., Attempt]) -> None:
    for _ in range(10):
        attempt = make_attempt(state="running")
        run = attempt.run

        def cancel(run: Run = run) -> Any:
            return run_cancel_request(run=run)

        def lose(attempt: Attempt = attempt) -> Any:
            return attempt_lose(attempt=attempt, reason="silent")

        def end(attempt: Attempt = attempt) -> Any:
            report = Report(state="finished", at=timezone.now().timestamp())
            return attempt_report(attempt=attempt, report=report)

        results = at_once(cancel, lose, end)
        unexpected = [result for result in results if isinstance(result, Exception) and type(result) is not ValueError]
        assert not unexpected
        run.refresh_from_db()
        attempt.refresh_from_db()
        assert run.state == run.current_attempt().state
        assert sum(result is True for result in results[1:]) == 1, "the attempt ended once"


def test_a_cancel_concurrent_with_a_dispatch(config: Config, user: User) -> None:
    runs = config_launch(config=config, user=user).created
    Node.objects.create(name="gpu1", slots=20, last_heartbeat_at=timezone.now())
    cancels = [lambda run=run: run_cancel_request(run=run) for run in runs[:5]]
    results = at_once(fleet.dispatch, *cancels)
    assert not [result for result in results if isinstance(result, Exception)]
    for run in Run.objects.all():
        assert run.state == run.current_attempt().state
        assert run.state == RunState.CANCELLED or (run.cancel_requested_at is not None) == (run in runs[:5])
