"""Counters of all processes of the server, kept in Redis: each process adds what it has counted, every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import redis
from django.conf import settings

KEY = "parlab:counters"
FLUSH_S = 5.0
_SEPARATOR = "|"

BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of a time."""


class SharedCounters:
    """Numbers that only rise, by name and labels; what was counted while Redis is away is added later."""

    def __init__(self) -> None:
        self._added: dict[str, float] = {}
        self._lock = threading.Lock()
        self._flushed_at = 0.0

    def add(self, name: str, labels: Sequence[str], amount: float = 1.0) -> None:
        field = _SEPARATOR.join((name, *labels))
        with self._lock:
            self._added[field] = self._added.get(field, 0.0) + amount

    def observe(self, name: str, labels: Sequence[str], seconds: float) -> None:
        """Count a time in its bucket and in the sum."""
        bound = next((f"{each:g}" for each in BOUNDS_S if seconds <= each), "+Inf")
        self.add(f"{name}_bucket", (*labels, bound))
        self.add(f"{name}_sum", labels, seconds)

    def take_turn(self) -> bool:
        """Return whether it is time to flush; of threads that ask at once, one is told so."""
        with self._lock:
            is_time = time.monotonic() - self._flushed_at > FLUSH_S
            if is_time:
                self._flushed_at = time.monotonic()
            return is_time

    def flush(self) -> None:
        """Add what was counted to Redis."""
        with self._lock:
            added, self._added = self._added, {}
        if not added:
            return
        try:
            with _redis() as client, client.pipeline(transaction=True) as pipeline:
                for field, amount in added.items():
                    pipeline.hincrbyfloat(KEY, field, amount)
                pipeline.execute()
        except (redis.RedisError, OSError):
            with self._lock:
                for field, amount in added.items():
                    self._added[field] = self._added.get(field, 0.0) + amount


def read() -> dict[tuple[str, ...], float]:
    """Return all counters, by name and labels. Raises redis.RedisError, OSError."""
    with _redis() as client:
        rows = client.hgetall(KEY)
    return {tuple(field.decode().split(_SEPARATOR)): float(value) for field, value in rows.items()}


def _redis() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


counters = SharedCounters()
