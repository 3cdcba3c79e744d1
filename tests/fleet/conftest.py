"""A fleet in a test: nodes that are online, a real broker, and what a node finds in its queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import pytest
from django.conf import settings

from parlab.celery import app
from runners.wire.protocol import CANCEL_TASK, GO_TASK, START_TASK, Cancel, Go, RunSpec, node_queue, verify

Received = Callable[..., list[Any]]
_KINDS: dict[str, Any] = {START_TASK: RunSpec, GO_TASK: Go, CANCEL_TASK: Cancel}


@pytest.fixture
def broker(redis_url: str, settings: Any) -> Iterator[str]:
    """Let the server's Celery app talk to a real, empty Redis."""
    celery: Any = app
    before = celery.conf.broker_url
    settings.REDIS_URL = celery.conf.broker_url = redis_url
    celery._after_fork()  # forgets its connection pools
    yield redis_url
    celery.conf.broker_url = before
    celery._after_fork()


@pytest.fixture
def received(broker: str) -> Received:
    """Read a queue of a node as its daemon would, signatures checked: received("gpu1", "id of the state directory")."""

    def read(node: str, state_id: str = "") -> list[Any]:
        messages: list[Any] = []
        with app.connection_for_read() as connection:
            queue = connection.SimpleQueue(node_queue(node, state_id))
            for raw in iter(lambda: _next(queue), None):
                raw.ack()
                (envelope,), _, _ = json.loads(raw.body or "")
                kind = _KINDS[raw.headers["task"]]
                messages.append(verify(envelope, settings.NODE_KEY, kind, node=node))
            queue.close()
        return messages

    return read


def _next(queue: Any) -> Any:
    try:
        return queue.get_nowait()
    except Empty:
        return None
