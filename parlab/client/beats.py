"""When a client with nothing to send sends an empty batch."""

from __future__ import annotations

import time

SETTLE_S = 0.7
"""After this much silence an empty batch lets the server finish what it does at intervals only."""
HEARTBEAT_S = 20.0
"""An empty batch at least this often shows that the client is alive."""


class Beats:
    """Empty batches become due soon after the last data, then ever more rarely.

    A server that needed long for the last summary ignores the first of them: it finishes at one of the next.
    """

    def __init__(self) -> None:
        self._sent_at = float("-inf")
        self._silence_s = SETTLE_S

    @property
    def is_due(self) -> bool:
        """Whether to send an empty batch now."""
        return time.monotonic() - self._sent_at > self._silence_s

    def data_sent(self) -> None:
        """Count the silence from now."""
        self._sent_at, self._silence_s = time.monotonic(), SETTLE_S

    def beat_sent(self) -> None:
        """Wait twice as long for the next empty batch."""
        self._sent_at, self._silence_s = time.monotonic(), min(2 * self._silence_s, HEARTBEAT_S)
