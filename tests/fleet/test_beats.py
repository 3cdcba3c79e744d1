"""Heartbeats that wait behind each other are taken and stored together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from parlab.fleet import beats, services
from parlab.ingest.batches.waiting import take_heartbeats
from parlab.lab.models import Attempt, Node, RefusedMessage
from parlab.refusals import PENDING
from runners.wire.message_filter import message
from runners.wire.protocol import CONTROL_QUEUE, HEARTBEAT_TASK, LEASE_S, Heartbeat, HeldRun, Refused
from runners.wire.trust import Untrusted
from tests.conftest import place
from tests.signed import content_of, sealed_heartbeat

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def _unknown_nodes() -> Iterator[None]:
    beats._beats.clear()
    yield
    beats._beats.clear()


def beat(node: str, *held: Attempt, **fields: Any) -> Heartbeat:
    facts: dict[str, Any] = {"pool": "default", "sent_at": time.time(), "slots": 1, "version": "1", "hardware": {}}
    runs = [HeldRun(run=attempt.run_id, attempt=attempt.number, alive=True) for attempt in held]
    return Heartbeat(node=node, held=runs, **(facts | fields))


def receive(*messages: Heartbeat) -> list[ValueError]:
    """Let a worker take heartbeats at once; return why some were refused."""
    refused: list[ValueError] = []
    envelopes = [sealed_heartbeat(each, settings.NODE_KEY) for each in messages]
    beats.heartbeats_receive(envelopes, lambda _, error: refused.append(error))
    return refused


def queries(*messages: Heartbeat) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert not receive(*messages)
    return len(captured)


def test_heartbeats_of_many_nodes_cost_no_more_queries_than_those_of_two(
    make_attempt: Callable[..., Attempt], make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beats, "STORE_EVERY_S", 0.0)
    long_ago = timezone.now() - timedelta(seconds=LEASE_S)
    held = {}
    for number in range(12):
        attempt = make_attempt(state="running")
        place(attempt, make_node(f"n{number}"), lease_expires_at=long_ago)
        held[f"n{number}"] = attempt
    messages = [beat(name, attempt) for name, attempt in held.items()]
    receive(*messages)
    few, many = queries(*messages[:2]), queries(*messages)
    assert many == few < 20
    Node.objects.update(last_heartbeat_at=long_ago)
    receive(*messages)
    for attempt in held.values():
        lease = attempt.members.get().lease_expires_at
        assert lease is not None
        assert lease > timezone.now()
    assert Node.objects.online().count() == 12


def test_the_same_heartbeat_again_needs_no_statement_but_those_for_keys(make_node: Callable[..., Node]) -> None:
    receive(*(beat(f"n{number}") for number in range(5)))
    assert queries(*(beat(f"n{number}") for number in range(5))) == 1


def test_of_two_heartbeats_of_a_node_the_later_counts_and_both_refusals() -> None:
    first = beat("n1", slots=1, refused=[Refused(queue="node.n1", reason="not JSON", count=2, at=time.time())])
    second = beat("n1", slots=4, refused=[Refused(queue="node.n1", reason="too large", count=1, at=time.time())])
    assert receive(first, second) == []
    assert Node.objects.get(name="n1").slots == 4
    assert dict(RefusedMessage.objects.values_list("reason", "count")) == {"not JSON": 2, "too large": 1}


def test_a_heartbeat_that_came_before_in_the_same_group_is_refused() -> None:
    first, second = (sealed_heartbeat(beat("n1", slots=slots), settings.NODE_KEY) for slots in (1, 2))
    refused: list[ValueError] = []
    beats.heartbeats_receive([second, first], lambda _, error: refused.append(error))
    assert [type(error) for error in refused] == [Untrusted]
    assert Node.objects.get(name="n1").slots == 2


def test_forged_and_damaged_heartbeats_stop_no_other() -> None:
    envelopes: list[Any] = [
        {"node": "\x00"},
        {"node": "\ud800", "version": 2, "payload": "{}", "signature": "", "key": ""},
        {"node": "x\x00", "version": 2, "payload": "{}", "signature": "", "key": ""},
        {"node": ["n1"]},
        None,
        sealed_heartbeat(beat("n2"), b"another key"),
        sealed_heartbeat(beat("n1"), settings.NODE_KEY),
    ]
    refused: list[ValueError] = []
    beats.heartbeats_receive(envelopes, lambda _, error: refused.append(error))
    assert len(refused) == 6
    assert [node.name for node in Node.objects.all()] == ["n1"]


def test_a_heartbeat_that_cannot_be_stored_stops_no_other(
    make_attempt: Callable[..., Attempt], make_node: Callable[..., Node], caplog: pytest.LogCaptureFixture
) -> None:
    attempt = make_attempt(state="running")
    place(attempt, make_node("n2"))
    # No lease is that long.
    assert receive(beat("n1"), beat("n2", attempt, lease_s=1e300), beat("n3")) == []
    assert "the heartbeat of node n2 was not stored" in caplog.text
    assert Node.objects.online().filter(name__in=["n1", "n3"]).count() == 2


def test_a_database_that_is_away_is_no_fault_of_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(services, "register", away)
        with pytest.raises(OperationalError):
            receive(beat("n1"), beat("n2"))
    assert receive(beat("n1"), beat("n2")) == []
    assert Node.objects.online().count() == 2


def test_the_second_daemon_of_a_name_is_refused_within_a_group(caplog: pytest.LogCaptureFixture) -> None:
    receive(beat("n1", state_id="one"))
    receive(beat("n1", state_id="two"), beat("n2", state_id="three"))
    assert "node name n1 is used by the daemons" in caplog.text
    assert Node.objects.get(name="n1").has_conflict
    assert Node.objects.get(name="n2").is_online


def test_facts_that_have_changed_are_stored_and_others_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[list[str]] = []
    save = Node.save

    def saved(node: Node, *arguments: Any, **options: Any) -> None:
        written.append(options["update_fields"])
        save(node, *arguments, **options)

    receive(beat("n1"), beat("n2"))
    monkeypatch.setattr(Node, "save", saved)
    receive(beat("n1", slots=3), beat("n2", is_draining=True))
    assert written == [["slots"], ["is_draining"]]


def test_waiting_heartbeats_are_taken_up_to_the_message_of_another_task(broker: str) -> None:
    client: Any = redis.Redis.from_url(broker)

    def put(raw: bytes) -> None:
        client.lpush(CONTROL_QUEUE, raw)

    def waiting(node: str) -> bytes:
        return message(CONTROL_QUEUE, HEARTBEAT_TASK, sealed_heartbeat(beat(node), settings.NODE_KEY))

    put(waiting("n1"))
    put(f'{{"headers": {{"task": "{HEARTBEAT_TASK}"}}'.encode())  # torn
    put(waiting("n2"))
    put(message(CONTROL_QUEUE, "parlab.fleet.reap", {}))
    put(waiting("n3"))
    PENDING.take()
    assert [content_of(envelope)["node"] for envelope in take_heartbeats(broker)] == ["n1", "n2"]
    assert len(PENDING.take()) == 1
    assert client.llen(CONTROL_QUEUE) == 2
