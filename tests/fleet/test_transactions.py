"""No transaction waits for something else than the database: on SQLite it would keep all other writers waiting."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
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


@pytest.mark.parametrize(
    "start",
    [
        "import parlab.asgi",
        "from parlab.celery import app; app.loader.init_worker(); signals.worker_init.send(sender=app)",
    ],
    ids=["web", "worker"],
)
def test_a_process_imports_the_pages_when_it_starts_and_not_in_its_first_transaction(
    start: str, tmp_path: Path
) -> None:
    """Who needs the first address, for example of a run that has ended, imports everything that the pages need."""
    code = f"import sys; from celery import signals; {start}; assert 'parlab.pages.urls' in sys.modules"
    variables = {**os.environ, "PARLAB_DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "parlab.settings"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
