"""Periodic tasks and caches that go on when the clock of the machine is set back, as by NTP or after a suspension."""

import logging
import time
from typing import Any

import redis
from celery.apps.beat import Beat
from celery.beat import PersistentScheduler
from django.conf import settings
from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django.core.cache.backends.locmem import LocMemCache
from django.utils.log import configure_logging

logger = logging.getLogger(__name__)


class SteadyBeat(Beat):
    """Beat that sends tasks by their names; Celery's own imports them, and with them the whole server."""

    def init_loader(self) -> None:
        configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)
        if self.app is not None:
            self.app.finalize()


class SteadyScheduler(PersistentScheduler):
    """Beat whose tasks are due by the time since their last run, also if this lies in the future by now.

    Celery's own scheduler would send nothing until the clock shows that time again.
    """

    def tick(self, *args: Any, **named: Any) -> float:
        entries: list[Any] = list(self.schedule.values())
        if any(entry.last_run_at > entry.default_now() for entry in entries):
            for entry in entries:
                entry.last_run_at = min(entry.last_run_at, entry.default_now())
            self._heap = None  # computed again by the new clock
        return float(super().tick(*args, **named))


class SteadyCache(LocMemCache):
    """A cache in the memory of a process. Its entries expire by the monotonic clock, which cannot be set."""

    _expire_info: dict[str, float | None]

    def get_backend_timeout(self, timeout: Any = DEFAULT_TIMEOUT) -> float | None:
        seconds = self.default_timeout if timeout is DEFAULT_TIMEOUT else timeout
        return None if seconds is None else time.monotonic() + seconds

    def _has_expired(self, key: str) -> bool:
        expires_at = self._expire_info.get(key, -1.0)
        return expires_at is not None and expires_at <= time.monotonic()


class ServerCache(SteadyCache):
    """The cache of a process; what may happen once on the whole server is noted in Redis."""

    ONCE = "allauth.mfa.totp.used"
    """Beginning of the keys of codes that were used."""

    def add(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        if str(key).startswith(self.ONCE):
            try:
                with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
                    return bool(client.set(f"parlab:once:{key}", 1, nx=True, ex=int(timeout)))
            except (redis.RedisError, OSError) as error:
                logger.warning("a code may be used once in each web process, because Redis does not answer: %s", error)
        return bool(super().add(key, value, timeout, version))
