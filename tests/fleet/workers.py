"""The server's workers within the process of a test or benchmark."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from kombu import Connection, Consumer, Queue

from parlab.fleet.tasks import heartbeat
from parlab.ingest.tasks import apply_batch
from runners.protocol import APPLY_BATCH_TASK, CONTROL_QUEUE, INGEST_QUEUE, Batch
from tests.patience import PATIENCE_S, wait_for


class Workers:
    """The server's workers, in this process: they apply what nodes send."""

    def __init__(self, url: str, see: Callable[[Batch], None] = lambda _: None) -> None:
        """`see` is called with each batch before it is applied."""
        self.connection = Connection(url)
        self._see = see

    def serve(self, seconds: float = 0.05) -> None:
        """Apply messages for a while."""
        deadline = time.monotonic() + seconds
        queues = [Queue(INGEST_QUEUE), Queue(CONTROL_QUEUE)]
        consumer = Consumer(self.connection, queues, callbacks=[self._take], accept=["json"])
        with consumer, contextlib.suppress(TimeoutError):
            while (left := deadline - time.monotonic()) > 0:
                self.connection.drain_events(timeout=left)

    def until(self, condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
        """Serve until a condition holds."""

        def served() -> Any:
            self.serve()
            return condition()

        return wait_for(served, what, within_s)

    def _take(self, body: Any, message: Any) -> None:
        message.ack()
        argument = body[0][0]
        if message.headers["task"] != APPLY_BATCH_TASK:
            heartbeat(argument)
            return
        self._see(Batch.from_wire(argument))
        apply_batch(argument)
