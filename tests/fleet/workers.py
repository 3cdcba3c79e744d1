"""The server's workers within the process of a test or benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.fleet.tasks import enrol, heartbeat
from parlab.ingest.tasks import apply_batch
from runners.wire.protocol import Batch
from tests.inbox import Inbox
from tests.signed import content_of


class Workers(Inbox):
    """The server's workers, in this process: they apply what nodes send."""

    def __init__(self, url: str, see: Callable[[Batch], None] = lambda _: None) -> None:
        """`see` is called with each batch before it is applied."""
        super().__init__(url)
        self._see = see

    def take_heartbeat(self, content: Any) -> None:
        """Apply a heartbeat."""
        heartbeat(content)

    def take_enrolment(self, content: Any) -> None:
        """Agree on a key."""
        enrol(content)

    def take_batch(self, content: Any) -> None:
        """Apply a batch."""
        self._see(Batch.from_wire(content_of(content)))
        apply_batch(content)
