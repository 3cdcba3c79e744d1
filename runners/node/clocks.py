"""Clock of this node compared with the clock of the server's Redis."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from runners.supervisor.shipping import BrokerAway
from runners.wire.protocol import Clock

SAMPLES = 16
"""Measurements of which the one with the shortest round trip counts: queues only make a round trip longer."""


class ClockOffset:
    """Measures the offset once per call, and keeps the best of the last measurements."""

    def __init__(self, server_time: Callable[[], float]) -> None:
        """`server_time` returns the Unix time of Redis in seconds, and may raise BrokerAway."""
        self._server_time = server_time
        self._samples: deque[Clock] = deque(maxlen=SAMPLES)

    def measured(self) -> Clock | None:
        """Return the offset, or None if it has never been measured."""
        try:
            before, started = time.time(), time.monotonic()
            server = self._server_time()
            round_trip_s = time.monotonic() - started
        except BrokerAway:
            return self._best()
        middle = before + round_trip_s / 2
        self._samples.append(Clock(offset_s=round(middle - server, 6), error_s=round(round_trip_s / 2, 6)))
        return self._best()

    def _best(self) -> Clock | None:
        return min(self._samples, key=lambda sample: sample.error_s, default=None)
