from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import OperationalError

from parlab.celery import app
from parlab.ingest.batches import services
from parlab.ingest.tasks import apply_batch
from parlab.lab.models import Attempt
from parlab.refusals import PENDING
from parlab.series import log
from runners.wire.protocol import ACKNOWLEDGE_TASK, APPLY_BATCH_TASK, Acknowledge, Batch, node_queue, verify
from runners.wire.trust import Key, seal, shared_key
from tests.signed import sealed_batch


@pytest.fixture(autouse=True)
def _nothing_refused_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    PENDING.take()
    monkeypatch.setattr("parlab.ingest.tasks.store_refused", lambda: None)


@pytest.fixture
def attempt(make_attempt: Callable[..., Attempt]) -> Attempt:
    return make_attempt()


def batch_of(attempt: Attempt, *, sequence: int = 0, output: bytes = b"hello\n", number: int = 1) -> Batch:
    return Batch(
        run=attempt.run_id,
        attempt=number,
        node="n1",
        sequence=sequence,
        next_sequence=sequence + len(output),
        output=output,
    )


def wire(attempt: Attempt, key: bytes | Key | None = None, **fields: Any) -> dict[str, Any]:
    """Return a batch as its node sends it."""
    return sealed_batch(batch_of(attempt, **fields), settings.NODE_KEY if key is None else key)


def sealed(content: Any) -> dict[str, Any]:
    """Return any content as a batch that n1 has signed."""
    return seal("batch", "n1", content, shared_key(settings.NODE_KEY, "n1"), lifetime_s=None)


def answers(broker: str) -> list[list[int]]:
    """Take what the node finds in its queue: [run, attempt, position, node rank] of each acknowledgement."""
    client: Any = redis.Redis.from_url(broker)
    result = []
    while raw := client.rpop(node_queue("n1")):
        message = json.loads(raw)
        assert message["headers"]["task"] == ACKNOWLEDGE_TASK
        (envelope,), _, _ = json.loads(base64.b64decode(message["body"]))
        answer = verify(envelope, settings.NODE_KEY, Acknowledge, node="n1")
        result.append([answer.run, answer.attempt, answer.position, answer.node_rank])
    return result


def refused() -> str:
    """Take the reasons of the messages that were refused."""
    return "; ".join(each.reason for each in PENDING.take())


def test_the_task_is_registered_under_the_name_that_nodes_use() -> None:
    app.loader.import_default_modules()
    assert APPLY_BATCH_TASK in app.tasks


def test_duplicate_and_early_batches_are_acknowledged(attempt: Attempt, broker: str) -> None:
    apply_batch(wire(attempt))
    apply_batch(wire(attempt))
    apply_batch(wire(attempt, sequence=99))
    assert answers(broker) == [[attempt.run_id, 1, 6, 0]] * 3
    assert b"".join(log.read_log(attempt.pk)) == b"hello\n"


def test_a_batch_of_an_unknown_attempt_is_answered(attempt: Attempt, broker: str) -> None:
    apply_batch(wire(attempt, number=7))
    assert answers(broker) == [[attempt.run_id, 7, -1, 0]]


@pytest.mark.parametrize(
    "change",
    [
        {"output": "not base64"},
        {"output": "AAAA"},
        {"output": None},
        {"run": "x"},
        {"unknown": 1},
        {"sequence": 7},
        {"reports": [{"state": "sleeping", "at": 1}]},
    ],
)
def test_an_invalid_batch_is_dropped_and_counted(attempt: Attempt, broker: str, change: dict[str, Any]) -> None:
    apply_batch(sealed({**batch_of(attempt).to_wire(), **change}))
    assert answers(broker) == []
    assert "batch" in refused()
    assert not list(log.read_log(attempt.pk))


@pytest.mark.parametrize("junk", [None, [], "text", 5, {}])
def test_junk_instead_of_a_batch_is_dropped(db: None, junk: Any) -> None:
    apply_batch(junk)
    apply_batch(sealed(junk))
    assert "batch refused: not a signed message" in refused() or junk == {}


def test_a_truncated_output_is_an_invalid_batch(attempt: Attempt, broker: str) -> None:
    whole = batch_of(attempt, output=b"".join(b"%d\n" % number for number in range(1_000))).to_wire()
    apply_batch(sealed({**whole, "output": whole["output"][:400]}))
    assert answers(broker) == []
    assert "truncated" in refused()


def test_a_batch_is_not_acknowledged_if_the_database_is_unavailable(
    attempt: Attempt, broker: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def locked(*, batches: list[Batch]) -> int:
        raise OperationalError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(services, "batches_apply", locked)
        apply_batch(wire(attempt))
    assert answers(broker) == []
    assert "their nodes will send them again: database is locked" in caplog.text
    apply_batch(wire(attempt))
    assert answers(broker) == [[attempt.run_id, 1, 6, 0]]


def test_an_unavailable_broker_does_not_undo_a_stored_batch(attempt: Attempt, caplog: pytest.LogCaptureFixture) -> None:
    apply_batch(wire(attempt))  # nothing listens where the tests' settings look for Redis
    assert "their nodes will send them again" in caplog.text
    assert b"".join(log.read_log(attempt.pk)) == b"hello\n"
