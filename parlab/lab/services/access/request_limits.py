"""How many requests a user may send, and how many wrong tokens an address, counted by all processes together.

No normal use meets the limits: they end loops that got out of hand, and guessing. A process takes a small share of a
limit from Redis at once, so that most requests ask nobody; while Redis is away, each process counts by itself.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import NamedTuple

import redis
from django.conf import settings

BAD_TOKENS = 60
"""Requests a minute with unknown tokens from one address; right ones from there are answered all the same."""
PREFIX = "parlab:limit:"
_SHARES = 100
_KEPT = 10_000
_AWAY_S = 5.0
"""Time after which Redis is asked again that did not answer."""
_ANSWER_S = 0.5

# Generic cell rate algorithm: the key holds until when the events so far would take, if they were a minute's evenly.
_TAKE = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local taken = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now) + ARGV[1] * 60 / ARGV[2]
if taken - now > 60 then return tostring(taken - now - 60) end
redis.call('SET', KEYS[1], string.format('%.6f', taken), 'PX', 61000)
return '0'
"""

logger = logging.getLogger(__name__)


class TooManyRequests(Exception):
    """A request above a limit; `wait_s` is for Retry-After."""

    def __init__(self, text: str, wait_s: int) -> None:
        super().__init__(f"{text}; try again in {wait_s} s")
        self.wait_s = wait_s


class _Bucket(NamedTuple):
    left: float
    at: float


class Counter:
    """So many events a minute for each key in this process; what was not used within a minute is not kept."""

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


class _Share(NamedTuple):
    """Events that this process may still count without asking, for a while."""

    left: int
    until: float


class SharedCounter:
    """The same over all processes."""

    def __init__(self, name: str) -> None:
        self._prefix = f"{PREFIX}{name}:"
        self._alone = Counter()
        self._shares: dict[object, _Share] = {}
        self._lock = threading.Lock()
        self._asks_at = 0.0
        self._client: redis.Redis | None = None

    def take(self, key: object, per_minute: int) -> int:
        """Count an event; return the seconds to wait if it is one too many, else 0."""
        now = time.monotonic()
        if self._has_share(key, now):
            return 0
        if now < self._asks_at:
            return self._alone.take(key, per_minute)
        try:
            return self._ask(key, per_minute, now)
        except (redis.RedisError, OSError) as error:
            logger.warning("limits count in each process alone, because Redis does not answer: %s", error)
            self._asks_at = now + _AWAY_S
            return self._alone.take(key, per_minute)

    def clear(self) -> None:
        self._alone.clear()
        self._shares.clear()
        self._asks_at = 0.0

    def _has_share(self, key: object, now: float) -> bool:
        with self._lock:
            share = self._shares.get(key)
            if share is None or not share.left or now > share.until:
                return False
            self._shares[key] = share._replace(left=share.left - 1)
            return True

    def _ask(self, key: object, per_minute: int, now: float) -> int:
        size = max(1, per_minute // _SHARES)
        wait_s = self._taken(key, size, per_minute)
        if wait_s and size > 1:
            size, wait_s = 1, self._taken(key, 1, per_minute)
        if wait_s:
            return max(1, math.ceil(wait_s))
        with self._lock:
            if len(self._shares) > _KEPT:
                self._shares = {key: share for key, share in self._shares.items() if share.until > now}
            self._shares[key] = _Share(size - 1, now + 60)
        return 0

    def _taken(self, key: object, events: int, per_minute: int) -> float:
        if self._client is None:
            limits = {"socket_timeout": _ANSWER_S, "socket_connect_timeout": _ANSWER_S}
            self._client = redis.Redis.from_url(settings.REDIS_URL, **limits)
        return float(self._client.eval(_TAKE, 1, f"{self._prefix}{key}", events, per_minute))


requests, bad_tokens = SharedCounter("requests"), SharedCounter("bad-tokens")


def request_count(user_id: int | None) -> None:
    """Count a request of a user. Raises TooManyRequests above `PARLAB_REQUESTS_PER_MINUTE`."""
    limit = settings.REQUESTS_PER_MINUTE
    if user_id is not None and limit > 0 and (wait_s := requests.take(user_id, limit)):
        raise TooManyRequests(f"your account has sent more than {limit} requests within a minute", wait_s)


def bad_token_count(address: str) -> None:
    """Count a request with an unknown token. Raises TooManyRequests if its address has sent too many."""
    if wait_s := bad_tokens.take(address, BAD_TOKENS):
        raise TooManyRequests(f"too many wrong tokens from {address}", wait_s)
