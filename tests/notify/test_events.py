"""What is announced: ends of launched and reported runs, findings, nodes, studies; each once."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from parlab.fleet import services as fleet
from parlab.lab.models import Event, Node
from parlab.lab.services.findings import _store
from parlab.lab.services.members import attempt_lose, attempt_report
from parlab.tracking import runs
from runners.wire.protocol import LEASE_S, Report

pytestmark = pytest.mark.django_db


def kinds() -> list[str]:
    return list(Event.objects.order_by("pk").values_list("kind", flat=True))


@pytest.mark.parametrize("state", ["finished", "failed", "oom"])
def test_the_end_of_a_launched_run_is_one_event(make_attempt: Callable[..., Any], state: Any) -> None:
    attempt = make_attempt()
    for _ in range(2):
        attempt_report(attempt=attempt, report=Report(state=state, at=time.time()))

    assert kinds() == [f"run.{state}"]


def test_a_lost_run_that_starts_again_is_no_event_until_its_last_attempt(
    make_attempt: Callable[..., Any], make_config: Callable[..., Any]
) -> None:
    attempt = make_attempt()
    attempt.run.resolved["launcher"]["max_attempts"] = 2
    attempt.run.save()
    attempt_lose(attempt=attempt, reason="node gone")
    assert kinds() == []

    second = attempt.run.attempts.get(number=2)
    attempt_lose(attempt=second, reason="node gone again")
    assert kinds() == ["run.lost"]


def test_the_ends_of_a_reported_run_are_events_and_those_of_an_imported_one_are_not(
    experiment: Any, admin: User
) -> None:
    tracked = runs.tracked_run_start(experiment=experiment, user=admin, name="mine")
    runs.tracked_run_update(tracked=tracked, status="FAILED")
    runs.tracked_run_update(tracked=tracked, status="FAILED")
    runs.tracked_run_update(tracked=tracked, status="RUNNING")
    runs.tracked_run_update(tracked=tracked, status="FINISHED")
    assert kinds() == ["run.failed", "run.finished"]

    imported = runs.tracked_run_start(experiment=experiment, user=admin)
    runs.tracked_run_update(tracked=imported, status="FINISHED", is_news=False)
    assert len(kinds()) == 2


def test_a_silent_node_is_announced_once_per_silence(redis_url: str, settings: Any, monkeypatch: Any) -> None:
    settings.REDIS_URL = redis_url
    monkeypatch.setattr(fleet, "_uptime_s", lambda: 1e9)
    now = timezone.now()
    node = Node.objects.create(name="gpu7", last_heartbeat_at=now - timedelta(seconds=LEASE_S + 5))
    Node.objects.create(name="drained", is_draining=True, last_heartbeat_at=node.last_heartbeat_at)
    Node.objects.create(name="here", last_heartbeat_at=now)
    Node.objects.create(name="long-gone", last_heartbeat_at=now - timedelta(days=3))
    fleet.reap()
    fleet.reap()
    (event,) = Event.objects.all()
    assert event.text.startswith("Node gpu7 is lost: no heartbeat since ")

    Node.objects.filter(pk=node.pk).update(last_heartbeat_at=now - timedelta(seconds=LEASE_S + 1))
    fleet.reap()
    assert kinds() == ["node.lost", "node.lost"]


def test_a_finding_is_announced_once_also_if_it_comes_back(make_attempt: Callable[..., Any]) -> None:
    run = make_attempt(state="finished").run
    run.summary = {"samples_per_s": 1.0}
    run.save()
    from parlab.formats import schema
    from parlab.lab.services.findings import _Match

    finding = schema.Finding(rule="a-rule", severity="error", message="1 is not 2", where=schema.Place())
    match = _Match(finding, run.pk, None)
    for matches in ({match.key: match}, {}, {match.key: match}):
        _store(run.experiment, matches, run.experiment.findings.all())

    (event,) = Event.objects.all()
    assert (event.kind, event.run, event.text) == ("finding.new", run, "New finding in Pipeline schedules: 1 is not 2")
