"""Refused messages: counted by queue, sender and reason, logged once a minute at most, a sample kept."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable

from runners.wire.protocol import Refused

LOG_EVERY_S = 60.0
MAX_SAMPLE_BYTES = 512
MAX_KEYS = 200
"""Senders and reasons come from the wire: beyond this many, refusals count for an unknown sender."""

_Key = tuple[str, str, str]


def printable(raw: bytes) -> str:
    """Return the beginning of a message as text that every database can store."""
    return raw[:MAX_SAMPLE_BYTES].decode("ascii", "backslashreplace").replace("\x00", "\\x00")


def more(count: int) -> str:
    """Say in a log line how many lines like it were left out."""
    return f"; {count} more in the minute before" if count else ""


class OncePerMinute:
    """Chooses what is logged of a flood: what comes first in a minute, by key. May be used from several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[Hashable, tuple[float, int]] = {}

    def admit(self, key: Hashable) -> int | None:
        """Return None if a key was admitted within the last minute, else how often it was not since then.

        With MAX_KEYS keys in one minute, further ones are not admitted.
        """
        now = self._clock()
        with self._lock:
            at, count = self._logged.get(key, (0.0, 0))
            if 0 <= now - at < LOG_EVERY_S:
                self._logged[key] = at, count + 1
                return None
            if len(self._logged) >= MAX_KEYS:
                recent = {each: entry for each, entry in self._logged.items() if 0 <= now - entry[0] < LOG_EVERY_S}
                self._logged = recent
            if key not in self._logged and len(self._logged) >= MAX_KEYS:
                return None
            self._logged[key] = now, 0
            return count


class Refusals:
    """Refusals that were not stored or sent yet. May be used from several threads."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.time) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._pending: dict[_Key, Refused] = {}
        self._logged = OncePerMinute(clock)
        self._taken_at = float("-inf")

    def add(self, queue: str, reason: str, *, sender: str = "", size: int = 0, sample: bytes = b"") -> None:
        """Count a refused message and log it, unless the same was logged within a minute."""
        reason = reason[:300]
        with self._lock:
            key = (queue[:120], sender[:120], reason)
            if key not in self._pending and len(self._pending) >= MAX_KEYS:
                key = (queue[:120], "", "other messages of many senders or with many errors")
            earlier = self._pending.get(key)
            self._pending[key] = Refused(
                queue=key[0],
                sender=key[1],
                reason=key[2],
                count=1 + (earlier.count if earlier else 0),
                size=size,
                sample=printable(sample),
                at=self._clock(),
            )
        self._report(key)

    def take(self, limit: int = MAX_KEYS, *, every_s: float = 0.0) -> list[Refused]:
        """Return refusals that were not taken yet, at most `limit`; none within `every_s` of the last ones."""
        with self._lock:
            now = time.monotonic()
            if not self._pending or now - self._taken_at < every_s:
                return []
            self._taken_at = now
            keys = list(self._pending)[:limit]
            return [self._pending.pop(key) for key in keys]

    def _report(self, key: _Key) -> None:
        count = self._logged.admit(key)
        if count is not None:
            queue, sender, reason = key
            name = sender or "unknown sender"
            self._log.warning("refused a message of %s in queue %s: %s%s", name, queue, reason, more(count))
