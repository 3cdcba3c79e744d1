"""Leases that ran out make attempts lost, unless it was the server that slept."""

import re
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import redis
from django.utils import timezone

from parlab.fleet import services
from parlab.lab.models import Attempt, Member, Node
from runners.wire.protocol import LEASE_S, Heartbeat, HeldRun, RunState
from tests.conftest import place

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture
def long_awake(broker: str) -> None:
    """A reaper that has been called without a pause for longer than a lease."""
    redis.Redis.from_url(broker).set(services.AWAKE_KEY, time.time() - LEASE_S - 1, ex=15)


@pytest.fixture
def silent(make_attempt: Callable[..., Attempt], make_node: Callable[..., Node]) -> Attempt:
    """A running attempt of a node that has sent no heartbeat for five minutes."""
    attempt = make_attempt(state="running")
    place(attempt, make_node("gpu1", online=False), lease_expires_at=timezone.now() - timedelta(seconds=270))
    return attempt


@pytest.mark.usefixtures("long_awake")
def test_a_silent_nodes_run_is_lost_and_queued_again(silent: Attempt) -> None:
    assert services.reap() == 1
    silent.refresh_from_db()
    assert silent.state == RunState.LOST
    assert re.search(r"node gpu1 has sent no heartbeat for 3\d\d s", silent.reason)
    run = silent.run
    run.refresh_from_db()
    assert (run.state, run.attempt_number) == (RunState.QUEUED, 2)
    assert run.current_attempt().state == RunState.QUEUED
    assert services.reap() == 0


@pytest.mark.usefixtures("long_awake")
def test_a_run_with_a_lease_stays(silent: Attempt) -> None:
    Member.objects.update(lease_expires_at=timezone.now() + timedelta(seconds=1))
    assert services.reap() == 0


@pytest.mark.usefixtures("long_awake")
def test_a_run_that_no_daemon_took_says_so(silent: Attempt) -> None:
    Attempt.objects.update(state="dispatched")
    Member.objects.update(state="dispatched")
    Node.objects.update(last_heartbeat_at=timezone.now())
    assert services.reap() == 1
    silent.refresh_from_db()
    assert "gpu1 did not prepare the run" in silent.reason


@pytest.mark.usefixtures("broker", "silent")
def test_a_reaper_that_has_just_woken_up_waits_for_a_lease() -> None:
    assert services.reap() == 0
    assert services.reap() == 0


@pytest.mark.usefixtures("long_awake", "silent")
def test_a_reaper_that_missed_its_beats_counts_as_woken_up(broker: str) -> None:
    client = redis.Redis.from_url(broker)
    assert 0 < client.pttl(services.AWAKE_KEY) <= 15_000
    client.pexpire(services.AWAKE_KEY, 1)  # as it does by itself when no beat renews it
    time.sleep(0.01)
    assert services.reap() == 0
    assert client.pttl(services.AWAKE_KEY) > 10_000, "each beat renews it"


@pytest.mark.usefixtures("long_awake")
@pytest.mark.parametrize("off_s", [-3600, 3600])
def test_a_host_of_the_server_whose_clock_is_an_hour_off_loses_no_run(
    silent: Attempt, monkeypatch: pytest.MonkeyPatch, off_s: int
) -> None:
    actual, actual_time = timezone.now, time.time
    monkeypatch.setattr(timezone, "now", lambda: actual() + timedelta(seconds=off_s))
    monkeypatch.setattr(time, "time", lambda: actual_time() + off_s)
    held = HeldRun(run=silent.run_id, attempt=silent.number, alive=True)
    message = Heartbeat(
        node="gpu1", pool="default", sent_at=actual_time(), slots=1, version="1", hardware={}, held=[held]
    )
    services.heartbeats(messages=[message])
    monkeypatch.undo()
    assert services.reap() == 0, "the lease was renewed by the clock that all share"
    monkeypatch.setattr(timezone, "now", lambda: actual() + timedelta(seconds=off_s))
    monkeypatch.setattr(time, "time", lambda: actual_time() + off_s)
    assert services.reap() == 0
