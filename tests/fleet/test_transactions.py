"""No transaction waits for something else than the database: on SQLite it would keep all other writers waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.utils import timezone
from redis.connection import Connection

from parlab.fleet import services
from parlab.ingest.tasks import apply_batch
from parlab.lab.models import Attempt, Node
from runners.wire.protocol import LEASE_S, Batch, Heartbeat, Report, RunState
from tests.conftest import place
from tests.signed import sealed_batch


@pytest.fixture
def talks(broker: str, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each message to Redis, whether a transaction was open."""
    seen: list[bool] = []
    send: Any = Connection.send_packed_command

    def noted(self: Connection, *arguments: Any, **options: Any) -> Any:
        seen.append(connection.in_atomic_block)
        return send(self, *arguments, **options)

    monkeypatch.setattr(Connection, "send_packed_command", noted)
    return seen


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_nothing_talks_to_redis_inside_a_transaction(
    talks: list[bool], broker: str, make_attempt: Callable[..., Attempt], make_node: Callable[..., Node]
) -> None:
    node = make_node("n1")
    waiting, ending, silent = (make_attempt(state=state) for state in ("queued", "running", "running"))
    assert services.dispatch() == 1
    beat = Heartbeat(node="n1", pool="default", sent_at=time.time(), slots=2, version="1", hardware={}, held=[])
    services.heartbeats(messages=[beat])
    place(ending, node)
    report = Report(state="finished", at=2.0, exit_code=0)
    batch = Batch(run=ending.run_id, attempt=1, node="n1", sequence=0, next_sequence=6, output=b"hello\n")
    apply_batch(sealed_batch(batch.model_copy(update={"reports": [report]}), settings.NODE_KEY))
    place(silent, make_node("n2", online=False), lease_expires_at=timezone.now() - timedelta(seconds=270))
    with redis.Redis.from_url(broker) as client:
        client.set(services.AWAKE_KEY, time.time() - LEASE_S - 1, ex=15)
    assert services.reap() == 1
    services.cancel(run=waiting.run)
    states = {each.pk: RunState(each.state) for each in Attempt.objects.all()}
    assert (states[ending.pk], states[silent.pk]) == (RunState.FINISHED, RunState.LOST)
    assert len(talks) > 5
    assert not any(talks)
