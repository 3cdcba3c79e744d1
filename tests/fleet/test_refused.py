"""Messages that make no sense are counted, kept for inspection up to a limit, and end nothing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from parlab.celery import app
from parlab.lab.models import Node, RefusedMessage
from parlab.lab.services.access.refused import MAX_ROWS, refused_store
from runners.wire.message_filter import Unreadable, sound
from runners.wire.protocol import CONTROL_QUEUE, HEARTBEAT_TASK, INGEST_QUEUE, Heartbeat, Refused, node_queue
from runners.wire.refusals import MAX_KEYS, Refusals
from tests.junk import HUGE, JUNK, WHOLE
from tests.patience import PATIENCE_S, wait_for
from tests.signed import sealed_heartbeat

PROJECT = Path(__file__).parent.parent.parent


def database_url() -> str:
    """URL of the database of the test for another process."""
    database = connection.settings_dict
    if database["ENGINE"].endswith("sqlite3"):
        return f"sqlite:///{database['NAME']}"
    base = os.environ["DATABASE_URL"]
    head, _, query = base.partition("?")
    return f"{head.rpartition('/')[0]}/{database['NAME']}" + (f"?{query}" if query else "")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file of what the worker says."""
    return tmp_path / "worker.log"


@pytest.fixture
def worker(broker: str, transactional_db: None, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real worker of the server on the database of the test."""
    environment = {
        **os.environ,
        "PARLAB_SHARED_NODE_KEY": "1",
        "REDIS_URL": broker,
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "parlab.settings",
        "PARLAB_NODE_KEY": settings.NODE_KEY.decode(),
    }
    command = [sys.executable, "-m", "celery", "-A", "parlab.celery", "worker", "--pool=solo"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--queues=control,ingest,backlog"], cwd=PROJECT, env=environment, stdout=file, stderr=file
        )
    yield process
    process.kill()
    process.wait()
    print(log.read_text()[-8000:])


def beat(name: str, **fields: Any) -> dict[str, Any]:
    message = Heartbeat(
        node=name, pool="default", sent_at=time.time(), slots=1, version="1", hardware={}, held=[], **fields
    )
    return sealed_heartbeat(message, settings.NODE_KEY)


@pytest.mark.slow
def test_a_worker_survives_everything_and_keeps_a_sample(worker: subprocess.Popen[bytes], broker: str) -> None:
    client: Any = redis.Redis.from_url(broker, socket_timeout=PATIENCE_S)
    client.lpush(CONTROL_QUEUE, HUGE)
    for raw in JUNK.values():
        client.lpush(CONTROL_QUEUE, raw)
        client.lpush(INGEST_QUEUE, raw)

    def serves(name: str) -> bool:
        app.send_task(HEARTBEAT_TASK, args=[beat(name)], queue=CONTROL_QUEUE)
        time.sleep(0.5)
        assert worker.poll() is None
        return Node.objects.filter(name=name).exists() and not client.llen(INGEST_QUEUE)

    wait_for(lambda: serves("gpu1"), "the heartbeat after the junk is recorded")

    def counted() -> bool:
        return sum(RefusedMessage.objects.values_list("count", flat=True)) > 2 * len(JUNK)

    # A process stores what it has refused with its next tasks.
    wait_for(lambda: serves("gpu2") and counted(), "everything is counted")
    rows = RefusedMessage.objects.filter(queue=CONTROL_QUEUE)
    reasons = set(rows.values_list("reason", flat=True))
    assert {"the message is not JSON", "larger than 8 MiB", "the body is not base64"} <= reasons
    assert rows.get(reason="larger than 8 MiB").size > 100_000_000
    assert all(len(row.sample) <= 3_000 for row in rows)
    wait_for(lambda: not client.hlen("unacked"), "all messages are acknowledged")


@pytest.mark.slow
def test_a_worker_waits_while_redis_refuses_to_write(worker: subprocess.Popen[bytes], broker: str, log: Path) -> None:
    client: Any = redis.Redis.from_url(broker, socket_timeout=PATIENCE_S)

    def serves(name: str) -> bool:
        app.send_task(HEARTBEAT_TASK, args=[beat(name)], queue=CONTROL_QUEUE)
        time.sleep(0.5)
        return Node.objects.filter(name=name).exists()

    wait_for(lambda: serves("gpu1"), "the worker is up")
    client.config_set("min-replicas-to-write", 1)  # refuses like a Redis whose disk is full
    wait_for(lambda: "NOREPLICAS" in log.read_text(), "the worker has noticed")
    client.config_set("min-replicas-to-write", 0)
    wait_for(lambda: serves("gpu2"), "it works again")
    assert worker.poll() is None


@pytest.mark.parametrize("name", JUNK)
def test_junk_is_refused_with_a_reason(name: str) -> None:
    app.loader.import_default_modules()
    connection_class: Any = app.amqp.Connection
    guard = connection_class("redis://127.0.0.1:1/0")
    with pytest.raises(Unreadable):
        sound(JUNK[name], CONTROL_QUEUE, guard.check)


def test_a_sound_message_passes_without_what_its_sender_added() -> None:
    raw = sound(WHOLE.replace(b'"lang"', b'"timelimit": [1, 1], "eta": "x", "lang"'), CONTROL_QUEUE, lambda *_: "")
    assert b'"timelimit": [null, null]' in raw
    assert b'"eta": null' in raw
    assert b"parlab.fleet.heartbeat" in raw


def test_a_node_reports_what_it_refused(make_node: Callable[..., Node], caplog: pytest.LogCaptureFixture) -> None:
    app.loader.import_default_modules()
    make_node("gpu1")
    refused = Refused(queue="of another node", reason="the message is not JSON", count=3, size=9, sample="x", at=1.0)
    app.tasks[HEARTBEAT_TASK](beat("gpu1", refused=[refused]))
    app.tasks[HEARTBEAT_TASK](beat("gpu1", refused=[refused]))
    row = RefusedMessage.objects.get()
    assert (row.queue, row.count, row.size) == (node_queue("gpu1"), 6, 9)


def test_rows_are_limited_and_the_oldest_go(db: None) -> None:
    for first in (0, 300):
        reasons = [
            Refused(queue="control", reason=f"reason {number}", count=1, at=float(number))
            for number in range(first, first + 300)
        ]
        refused_store(refused=reasons)
    assert RefusedMessage.objects.count() == MAX_ROWS
    assert not RefusedMessage.objects.filter(reason="reason 0").exists()


def test_a_flood_is_logged_once_a_minute_and_bounded_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    now = 1_000.0
    refusals = Refusals(logging.getLogger("flood"), clock=lambda: now)
    for _ in range(50):
        refusals.add("control", "not JSON")
    now += 61
    refusals.add("control", "not JSON")
    assert [record.getMessage() for record in caplog.records] == [
        "refused a message of unknown sender in queue control: not JSON",
        "refused a message of unknown sender in queue control: not JSON; 49 more in the minute before",
    ]
    assert [entry.count for entry in refusals.take()] == [51]
    for number in range(3 * MAX_KEYS):
        refusals.add("control", "not JSON", sender=f"n{number}")
    assert len(refusals.take(10**6)) <= MAX_KEYS + 1
    assert len(caplog.records) <= 2 + 2 * MAX_KEYS


def test_administrators_see_refused_messages_and_viewers_do_not(page: Client, user: User) -> None:
    refused_store(refused=[Refused(queue="control", reason="<b>bold</b>", count=2, sample="<script>", at=1.0)])
    address = "/admin/lab/refusedmessage/"
    assert "&lt;b&gt;bold" in page.get(address).content.decode()
    shown = page.get(f"{address}{RefusedMessage.objects.get().pk}/change/").content.decode()
    assert "&lt;script&gt;" in shown
    User.objects.filter(pk=user.pk).update(is_superuser=False)
    assert page.get(address).status_code == 403
