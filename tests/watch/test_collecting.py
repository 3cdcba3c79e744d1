"""Looks for results: complete at first, then only what is new or has changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Run
from parlab.lab.services.attempts import summary_store
from parlab.watch import services
from parlab.watch.collecting import OVERLAP, results_collect
from parlab.watch.models import Watch
from runners.config import digest
from runners.wire.protocol import RunState

COUNT = 2_100
"""More than one look could once read."""
SUMMARY = {"step_time_s": {"median": 0.1}}


@pytest.fixture
def watch(watched: Config, user: User) -> Watch:
    return services.watch_create(name="Nightly", user=user, config=watched)


@pytest.fixture
def keyed(user: User) -> Watch:
    return services.watch_create(name="Elsewhere", user=user, key="bert")


def attempts_add(run: Run, count: int, *, at: Any) -> list[Attempt]:
    first = run.attempts.count() + 1
    return Attempt.objects.bulk_create(
        Attempt(
            run=run, number=number, state=RunState.FINISHED, summary=SUMMARY, environment={"driver": "570"},
            ended_at=at, numbers_at=at,
        )
        for number in range(first, first + count)
    )  # fmt: skip


def imported(example: Run, count: int) -> None:
    """Store finished runs of files under the key of the watch, as the import of a file does."""
    first = example.experiment.runs.count() + 1
    Run.objects.bulk_create(
        Run(
            experiment=example.experiment, config=example.config, number=number, label="bert",
            origin=Run.Origin.IMPORTED, point={"n": number}, point_digest=digest({"n": number}), resolved={},
            state=RunState.FINISHED, summary=SUMMARY, ended_at=timezone.now(), created_by=example.created_by,
        )
        for number in range(first, first + count)
    )  # fmt: skip


@pytest.mark.slow
def test_every_attempt_is_collected_however_many_there_are(
    watch: Watch, watched: Config, make_attempt: Callable[..., Attempt]
) -> None:
    run = make_attempt(config=watched, state="queued").run
    attempts_add(run, COUNT, at=timezone.now() - timedelta(days=1))
    assert results_collect(watch=watch) == COUNT
    assert watch.results.count() == COUNT
    assert watch.results.filter(environment__driver="570").count() == COUNT


@pytest.mark.slow
def test_imported_runs_are_collected_however_many_there_are(keyed: Watch, make_attempt: Callable[..., Attempt]) -> None:
    example = make_attempt(state="finished").run
    imported(example, COUNT)
    assert results_collect(watch=keyed) == COUNT
    imported(example, 1)
    assert results_collect(watch=keyed) == 1


def test_a_look_reads_only_what_is_new(watch: Watch, watched: Config, make_attempt: Callable[..., Attempt]) -> None:
    run = make_attempt(config=watched, state="queued").run
    attempts_add(run, 30, at=timezone.now() - 2 * OVERLAP)
    results_collect(watch=watch)
    attempts_add(run, 1, at=timezone.now())
    with CaptureQueriesContext(connection) as queries:
        assert results_collect(watch=watch) == 1
    read = [query["sql"] for query in queries if "lab_attempt" in query["sql"] and "numbers_at" in query["sql"]]
    assert read
    rows = Attempt.objects.filter(numbers_at__gte=timezone.now() - OVERLAP)
    assert rows.count() == 2  # the new one, and that of the queued attempt
    assert all("environment" not in sql.split("FROM")[0] for sql in read)
    assert results_collect(watch=watch) == 0


def test_a_summary_that_is_computed_again_later_changes_the_result(
    watch: Watch, watched: Config, make_attempt: Callable[..., Attempt]
) -> None:
    run = make_attempt(config=watched, state="queued").run
    (attempt, *_) = attempts_add(run, 3, at=timezone.now() - timedelta(days=9))
    results_collect(watch=watch)
    summary_store(attempt=attempt, summary={"step_time_s": {"median": 0.2}})
    assert results_collect(watch=watch) == 1
    assert watch.results.get(attempt_number=attempt.number).values == {"step_time": 0.2}


@pytest.mark.database
def test_results_and_alerts_of_a_look_are_stored_together(
    watch: Watch, watched: Config, make_attempt: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_attempt(config=watched, state="queued").run
    attempts_add(run, 3, at=timezone.now())

    def fail(**_: Any) -> None:
        raise RuntimeError("the worker was stopped")

    with monkeypatch.context() as patch:
        patch.setattr(services, "watch_detect", fail)
        with pytest.raises(RuntimeError, match="stopped"):
            services.watch_refresh(watch=watch)
    assert not watch.results.exists()
    services.watch_refresh(watch=watch)
    assert watch.results.count() == watch.series.get().count == 3
