"""Whether the server can serve: database, Redis, disks and workers, for `/ready` and the doctor."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import redis
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse

from parlab.lab.models import Artifact
from parlab.lab.services import stored_files

ALIVE_KEY = "parlab:alive:"
ALIVE_S = 60
FREE_BYTES = 256 << 20
_REMEMBERED_S = 2


class Unready(Exception):
    """A part of the server does not work; the message is for those who asked."""


def alive_note(queue: str) -> None:
    """Note in Redis that a worker takes the tasks of a queue."""
    with _redis() as client:
        client.set(f"{ALIVE_KEY}{queue}", 1, ex=ALIVE_S)


def check_database() -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        raise Unready("the database does not answer") from error


def check_redis() -> None:
    try:
        with _redis() as client:
            client.ping()
    except (redis.RedisError, OSError) as error:
        raise Unready("Redis does not answer") from error


def check_disk() -> None:
    """Check that files can be written, and that the directory of the artifacts is the one that has them."""
    try:
        for directory in {Path(settings.DATA_DIR), Path(settings.ARTIFACTS_DIR)}:
            if directory == Path(settings.DATA_DIR) or directory.exists():
                with tempfile.TemporaryFile(dir=directory) as file:
                    file.write(b"ready")
                if shutil.disk_usage(directory).free < FREE_BYTES:
                    raise Unready(f"less than {FREE_BYTES >> 20} MiB are free for {_named(directory)}")
        if Artifact._base_manager.exists() and stored_files.is_missing():
            raise Unready("the directory of the artifacts is missing")
    except (OSError, DatabaseError) as error:
        raise Unready("files cannot be written") from error


def check_workers() -> None:
    try:
        with _redis() as client:
            names = [queue.name for queue in settings.CELERY_TASK_QUEUES]
            dead = [name for name in names if not client.exists(f"{ALIVE_KEY}{name}")]
    except (redis.RedisError, OSError) as error:
        raise Unready("unknown without Redis") from error
    if dead:
        raise Unready(f"no worker takes the tasks of {', '.join(dead)}, or beat is not running")


CHECKS: Mapping[str, Callable[[], None]] = {
    "database": check_database,
    "redis": check_redis,
    "disk": check_disk,
    "workers": check_workers,
}


def readiness() -> dict[str, str]:
    """Return what is wrong with each part; empty: it works."""
    return {name: _problem(check) for name, check in CHECKS.items()}


@login_not_required
def ready(_request: HttpRequest) -> HttpResponse:
    """Answer 200 if everything works, else 503; both name each part."""
    parts = cache.get("ready")
    if parts is None:
        parts = readiness()
        cache.set("ready", parts, _REMEMBERED_S)
    is_ready = not any(parts.values())
    body = {"ready": is_ready, "checks": {name: problem or "ok" for name, problem in parts.items()}}
    return JsonResponse(body, status=200 if is_ready else 503, headers={"Cache-Control": "no-store"})


def _problem(check: Callable[[], None]) -> str:
    try:
        check()
    except Unready as problem:
        return str(problem)
    return ""


def _named(directory: Path) -> str:
    return "artifacts" if directory == Path(settings.ARTIFACTS_DIR) else "the data directory"


def _redis() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)
