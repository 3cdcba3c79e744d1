"""Batches that pods post over HTTP, signed with the key of one attempt."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, NodeKey
from parlab.lab.services.access.node_keys import find_attempt_key, node_keys_revoke
from parlab.series import log
from runners.wire.protocol import Acknowledge, Batch, PodNote, Posted, Report, answer_key, verify
from runners.wire.trust import SHARED, Key, Untrusted, attempt_key, derived, seal, shared_key

pytestmark = pytest.mark.django_db

NODE = "n1"


@pytest.fixture
def attempt(make_attempt: Callable[..., Attempt]) -> Attempt:
    return make_attempt(state="running")


def key_of(attempt: Attempt) -> Key:
    return attempt_key(shared_key(settings.NODE_KEY, NODE), attempt.run_id, attempt.number)


def batch_of(attempt: Attempt, **fields: Any) -> Batch:
    given = {"run": attempt.run_id, "attempt": attempt.number, "node": NODE, "sequence": 0, "next_sequence": 6}
    return Batch.model_validate({**given, "output": b"hello\n", **fields})


def post(client: Client, attempt: Attempt, batch: Batch, key: Key, note: PodNote | None = None) -> Any:
    """Post a batch as a pod does."""
    content = Posted(batch=batch.to_wire(), note=note or PodNote()).model_dump(mode="json")
    envelope = seal("posted", batch.node, content, key, lifetime_s=None)
    address = f"/api/spools/{attempt.run_id}/{attempt.number}/"
    return client.post(address, json.dumps(envelope), content_type="application/json")


def test_a_batch_is_stored_once_and_the_answer_is_signed(client: Client, attempt: Attempt, broker: str) -> None:
    key = key_of(attempt)
    for _ in range(2):
        answer = post(client, attempt, batch_of(attempt), key)
        assert answer.status_code == 200, answer.content
        stored = verify(answer.json(), lambda *_: key.secret, Acknowledge, node=NODE)
        assert stored.position == 6
    assert b"".join(log.read_log(attempt.pk)) == b"hello\n"
    early = post(client, attempt, batch_of(attempt, sequence=99, next_sequence=105), key)
    assert verify(early.json(), lambda *_: key.secret, Acknowledge, node=NODE).position == 6


def test_the_controller_finds_position_and_note_in_redis(client: Client, attempt: Attempt, broker: str) -> None:
    note = PodNote(started_at=5.0, was_stopped=True, has_checkpoint=True, end=6)
    report = Report(state="finished", at=time.time(), exit_code=0)
    post(client, attempt, batch_of(attempt, reports=[report]), key_of(attempt), note)
    attempt.refresh_from_db()
    assert attempt.state == "finished"
    store: Any = redis.Redis.from_url(broker)
    found = json.loads(store.get(answer_key(attempt.run_id, attempt.number, 0)))
    answer = verify(found, settings.NODE_KEY, Acknowledge, node=NODE)
    assert (answer.position, answer.note) == (6, note)


def test_a_batch_is_stored_and_answered_without_redis(client: Client, attempt: Attempt, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert post(client, attempt, batch_of(attempt), key_of(attempt)).status_code == 200
    assert b"".join(log.read_log(attempt.pk)) == b"hello\n"


def test_a_key_writes_the_records_of_its_attempt_alone(
    client: Client, make_attempt: Callable[..., Attempt], broker: str
) -> None:
    mine, other = make_attempt(state="running"), make_attempt(state="running")
    refused = [
        post(client, other, batch_of(other), key_of(mine)),
        post(client, mine, batch_of(other), key_of(mine)),
        post(client, mine, batch_of(mine, node="n2"), key_of(mine)),
        post(client, mine, batch_of(mine), Key(SHARED, b"guessed")),
        post(client, mine, batch_of(mine), shared_key(settings.NODE_KEY, NODE)),
    ]
    assert [answer.status_code for answer in refused] == [401] * 5
    assert "signature is not accepted" in refused[0].json()["errors"][0]["message"]
    assert not list(log.read_log(mine.pk))
    assert not list(log.read_log(other.pk))


def test_an_invalid_batch_is_refused_with_the_reason(client: Client, attempt: Attempt) -> None:
    answer = post(client, attempt, batch_of(attempt, sequence=9, next_sequence=3), key_of(attempt))
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["message"].startswith("invalid batch: next_sequence 3 is before sequence 9")


def row(key_id: str, **fields: Any) -> bytes:
    """Create a key of the node in the database and return its secret."""
    secret = bytes(32)
    pad = derived(settings.NODE_KEY, "storage", key_id)
    NodeKey.objects.create(node_name=NODE, key_id=key_id, wrapped=pad.hex(), enrolled_at=timezone.now(), **fields)
    return secret


def test_a_key_outlives_the_rotation_of_the_node_but_not_its_revocation(attempt: Attempt, admin: User) -> None:
    old = row("old", revoked_at=timezone.now(), is_replaced=True)
    row("new", used_at=timezone.now())
    wanted = attempt_key(Key("old", old), attempt.run_id, 1).secret
    assert find_attempt_key(NODE, "old", run=attempt.run_id, attempt=1) == wanted
    assert find_attempt_key(NODE, "new", run=attempt.run_id, attempt=1) != find_attempt_key(
        NODE, "new", run=attempt.run_id, attempt=2
    )
    node_keys_revoke(node_name=NODE, by=admin)
    for key_id in ("old", "new"):
        with pytest.raises(Untrusted):
            find_attempt_key(NODE, key_id, run=attempt.run_id, attempt=1)
