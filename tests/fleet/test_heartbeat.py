"""A node's sign of life registers it, renews leases, and stops what it should not hold."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from parlab.fleet import services
from parlab.lab.models import Attempt, Member, Node, Run
from runners.wire.protocol import LEASE_S, SPEC_LIFETIME_S, Cancel, Heartbeat, HeldRun, RunState
from tests.conftest import place

from .conftest import Received

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def beat(*held: HeldRun, node: str = "gpu1", **fields: Any) -> Heartbeat:
    facts: dict[str, Any] = {"pool": "default", "sent_at": time.time(), "slots": 1, "version": "0.1.0", "hardware": {}}
    return Heartbeat(node=node, held=list(held), **(facts | fields))


def holding(attempt: Attempt, *, alive: bool = True) -> HeldRun:
    return HeldRun(run=attempt.run_id, attempt=attempt.number, alive=alive)


def lease_s(attempt: Attempt) -> float:
    lease = attempt.members.get().lease_expires_at
    assert lease is not None
    return (lease - timezone.now()).total_seconds()


@pytest.fixture
def on_node(make_attempt: Callable[..., Attempt], make_node: Callable[..., Node]) -> Callable[..., Attempt]:
    """Make an attempt that is on a node, its lease almost over: on_node(state="running")."""

    def make(*, node: str = "gpu1", **fields: Any) -> Attempt:
        attempt = make_attempt(**fields)
        place(
            attempt,
            Node.objects.filter(name=node).first() or make_node(node),
            lease_expires_at=timezone.now() + timedelta(seconds=1),
        )
        return attempt

    return make


def test_the_first_heartbeat_registers_a_node_and_later_ones_keep_it_current() -> None:
    services.heartbeats(messages=[beat(slots=2, hardware={"gpus": [{"index": 0}], "note": "a\x00b"})])
    node = Node.objects.get(name="gpu1")
    assert (node.is_online, node.is_enabled, node.slots) == (True, True, 2)
    Node.objects.update(is_enabled=False)
    services.heartbeats(messages=[beat(slots=3, pool="big")])
    node.refresh_from_db()
    assert (node.slots, node.pool, node.is_enabled) == (3, "big", False)


@pytest.mark.parametrize("state", ["dispatched", "running"])
def test_a_held_attempt_keeps_its_lease(state: str, on_node: Callable[..., Attempt]) -> None:
    attempt = on_node(state=state)
    services.heartbeats(messages=[beat(holding(attempt))])
    assert lease_s(attempt) > LEASE_S - 5


def test_an_attempt_that_the_node_does_not_name_keeps_its_old_lease(on_node: Callable[..., Attempt]) -> None:
    attempt = on_node(state="running")
    services.heartbeats(messages=[beat()])
    assert lease_s(attempt) <= 1


def test_a_node_cannot_renew_what_another_node_holds(on_node: Callable[..., Attempt], received: Received) -> None:
    attempt = on_node(state="running", node="gpu2")
    services.heartbeats(messages=[beat(holding(attempt))])
    assert lease_s(attempt) <= 1
    (message,) = received("gpu1")
    assert isinstance(message, Cancel)


@pytest.mark.parametrize("state", ["lost", "cancelled"])
def test_a_node_is_told_to_stop_what_the_server_has_given_up(
    state: str, on_node: Callable[..., Attempt], received: Received
) -> None:
    attempt = on_node(state=state)
    Member.objects.update(ended_at=timezone.now() - timedelta(seconds=60))
    services.heartbeats(messages=[beat(holding(attempt))])
    assert [(type(message), message.run, message.attempt) for message in received("gpu1")] == [
        (Cancel, attempt.run_id, 1)
    ]
    services.heartbeats(messages=[beat(holding(attempt, alive=False))])
    assert received("gpu1") == [], "what is only left to ship is not running"


def test_a_run_that_the_server_does_not_know_is_stopped(make_node: Callable[..., Node], received: Received) -> None:
    make_node("gpu1")
    services.heartbeats(messages=[beat(HeldRun(run=2**70, attempt=1, alive=True))])
    assert [message.run for message in received("gpu1")] == [2**70]


def test_a_heartbeat_from_before_the_end_of_a_run_stops_nothing(
    on_node: Callable[..., Attempt], received: Received
) -> None:
    attempt = on_node(state="finished")
    Member.objects.update(ended_at=timezone.now())
    services.heartbeats(messages=[beat(holding(attempt))])
    assert received("gpu1") == []


def test_a_cancel_is_repeated_until_the_node_obeys(on_node: Callable[..., Attempt], received: Received) -> None:
    attempt = on_node(state="running")
    Run.objects.update(cancel_requested_at=timezone.now())
    for _ in range(2):
        services.heartbeats(messages=[beat(holding(attempt))])
    assert [message.purpose for message in received("gpu1")] == ["cancel", "cancel"]


def test_a_heartbeat_out_of_a_long_backlog_brings_no_node_online(make_node: Callable[..., Node]) -> None:
    node = make_node("gpu1", online=False)
    services.heartbeats(messages=[beat(sent_at=time.time() - SPEC_LIFETIME_S - 60)])
    node.refresh_from_db()
    assert not node.is_online


def test_a_broker_that_is_away_does_not_stop_leases(on_node: Callable[..., Attempt]) -> None:
    attempt = on_node(state="running")
    Run.objects.update(cancel_requested_at=timezone.now())
    services.heartbeats(messages=[beat(holding(attempt))])
    assert lease_s(attempt) > LEASE_S - 5


def test_a_cancel_reaches_the_node(
    on_node: Callable[..., Attempt], received: Received, django_capture_on_commit_callbacks: Any
) -> None:
    attempt = on_node(state="running")
    with django_capture_on_commit_callbacks(execute=True):
        assert services.cancel(run=attempt.run) == RunState.RUNNING
    assert [(type(message), message.run) for message in received("gpu1")] == [(Cancel, attempt.run_id)]


def test_cancelling_a_waiting_run_sends_nothing_and_ends_it(
    make_attempt: Callable[..., Attempt], make_node: Callable[..., Node], received: Received
) -> None:
    make_node("gpu1")
    attempt = make_attempt(state="queued")
    assert services.cancel(run=attempt.run) == RunState.CANCELLED
    assert received("gpu1") == []
