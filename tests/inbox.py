"""Takes what nodes send to the server, in the process of a test or benchmark."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from kombu import Connection, Consumer, Queue

from runners.wire.protocol import APPLY_BATCH_TASK, BACKLOG_QUEUE, CONTROL_QUEUE, ENROL_TASK, INGEST_QUEUE
from tests.patience import PATIENCE_S, wait_for


class Inbox(ABC):
    """The queues of the server; contents are envelopes as they were sent."""

    def __init__(self, url: str) -> None:
        self.connection = Connection(url)

    def serve(self, seconds: float = 0.05) -> None:
        """Take messages for a while."""
        deadline = time.monotonic() + seconds
        # A new consumer begins with the first queue, and batches may come faster than a slow machine takes them.
        queues = [Queue(CONTROL_QUEUE), Queue(INGEST_QUEUE), Queue(BACKLOG_QUEUE)]
        consumer = Consumer(self.connection, queues, callbacks=[self._receive], accept=["json"])
        with consumer, contextlib.suppress(TimeoutError):
            while (left := deadline - time.monotonic()) > 0:
                self.connection.drain_events(timeout=left)

    def until(self, condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
        """Serve until a condition holds."""

        def served() -> Any:
            self.serve()
            return condition()

        return wait_for(served, what, within_s)

    @abstractmethod
    def take_heartbeat(self, content: Any) -> None:
        """Take a heartbeat."""

    @abstractmethod
    def take_batch(self, content: Any) -> None:
        """Take a batch."""

    def take_enrolment(self, content: Any) -> None:
        """Take a node's part of an agreement on a key, which needs the real server."""
        raise NotImplementedError

    def _receive(self, body: Any, message: Any) -> None:
        message.ack()
        takers = {APPLY_BATCH_TASK: self.take_batch, ENROL_TASK: self.take_enrolment}
        takers.get(message.headers["task"], self.take_heartbeat)(body[0][0])
