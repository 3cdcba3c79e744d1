"""One clock for leases, which workers on several hosts write and judge."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

import redis
from django.conf import settings
from django.utils import timezone
from redis.backoff import NoBackoff
from redis.retry import Retry


def shared_now() -> datetime:
    """Return the time of Redis; without Redis, that of this host."""
    try:
        seconds, microseconds = _client(settings.REDIS_URL).time()
    except (redis.RedisError, OSError):
        return timezone.now()
    return datetime.fromtimestamp(seconds + microseconds / 1e6, UTC)


@cache
def _client(url: str) -> redis.Redis:
    """Return the connections of this process; a caller does not wait for a Redis that is away."""
    return redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2, retry=Retry(NoBackoff(), 1))
