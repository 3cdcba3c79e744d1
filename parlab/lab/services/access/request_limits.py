"""How many requests a user may send, and how many wrong tokens an address, counted in the memory of each process.

No normal use meets the limits: they end loops that got out of hand, and guessing.
"""

from __future__ import annotations

import math
import threading
import time
from typing import NamedTuple

from django.conf import settings

BAD_TOKENS = 60
"""Requests a minute with unknown tokens from one address; right ones from there are answered all the same."""
_KEPT = 10_000


class TooManyRequests(Exception):
    """A request above a limit; `wait_s` is for Retry-After."""

    def __init__(self, text: str, wait_s: int) -> None:
        super().__init__(f"{text}; try again in {wait_s} s")
        self.wait_s = wait_s


class _Bucket(NamedTuple):
    left: float
    at: float


class Counter:
    """So many events a minute for each key; what was not used within a minute is not kept."""

    def __init__(self) -> None:
        self._buckets: dict[object, _Bucket] = {}
        self._lock = threading.Lock()

    def take(self, key: object, per_minute: int) -> int:
        """Count an event; return the seconds to wait if it is one too many, else 0."""
        now = time.monotonic()
        with self._lock:
            if len(self._buckets) > _KEPT:
                self._buckets = {key: row for key, row in self._buckets.items() if row.at > now - 60}
            left, at = self._buckets.get(key, _Bucket(per_minute, now))
            left = min(per_minute, left + (now - at) * per_minute / 60)
            is_over = left < 1
            self._buckets[key] = _Bucket(left if is_over else left - 1, now)
        return max(1, math.ceil((1 - left) * 60 / per_minute)) if is_over else 0

    def clear(self) -> None:
        self._buckets.clear()


requests, bad_tokens = Counter(), Counter()


def request_count(user_id: int | None) -> None:
    """Count a request of a user. Raises TooManyRequests above `PARLAB_REQUESTS_PER_MINUTE`."""
    limit = settings.REQUESTS_PER_MINUTE
    if user_id is not None and limit > 0 and (wait_s := requests.take(user_id, limit)):
        raise TooManyRequests(f"your account has sent more than {limit} requests within a minute", wait_s)


def bad_token_count(address: str) -> None:
    """Count a request with an unknown token. Raises TooManyRequests if its address has sent too many."""
    if wait_s := bad_tokens.take(address, BAD_TOKENS):
        raise TooManyRequests(f"too many wrong tokens from {address}", wait_s)
