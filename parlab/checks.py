"""Wrong settings become Django system checks that say what to do."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

MIN_NODE_KEY_BYTES = 32
_REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+socket")


@register()
def redis_url_is_one(**_: Any) -> list[CheckMessage]:
    """REDIS_URL must be something that both Celery and the Redis client can connect to."""
    problem = _redis_url_problem(settings.REDIS_URL)
    if not problem:
        return []
    return [Error(f"REDIS_URL {problem}", hint="Set it like redis://:password@host:6379/0.", id="parlab.E001")]


@register()
def data_directory_is_writable(**_: Any) -> list[CheckMessage]:
    """Secrets, the embedded database and static files live in the data directory."""
    path = Path(settings.DATA_DIR)
    if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        return []
    return [
        Error(
            f"data directory {path} cannot be written",
            hint="Give it to the user that runs parlab, or set PARLAB_DATA_DIR to another directory.",
            id="parlab.E002",
        )
    ]


@register()
def upload_limit_is_positive(**_: Any) -> list[CheckMessage]:
    """A limit of nothing would refuse every import."""
    if settings.UPLOAD_LIMIT_MIB > 0:
        return []
    return [
        Error(
            f"PARLAB_UPLOAD_LIMIT_MIB is {settings.UPLOAD_LIMIT_MIB}: no file could be imported",
            hint="Set it to the size in MiB of the largest log that people may import, for example 2048.",
            id="parlab.E004",
        )
    ]


@register(Tags.security)
def node_key_is_long_enough(**_: Any) -> list[CheckMessage]:
    """Whoever guesses the node key can start runs on every node."""
    length = len(settings.NODE_KEY)
    if length >= MIN_NODE_KEY_BYTES:
        return []
    return [
        Error(
            f"the node key has {length} bytes, fewer than {MIN_NODE_KEY_BYTES}",
            hint="Set PARLAB_NODE_KEY on the server and on all nodes to a longer one, for example from:"
            " openssl rand -base64 48",
            id="parlab.E003",
        )
    ]


@register(Tags.security, deploy=True)
def redis_elsewhere_has_a_password(**_: Any) -> list[CheckMessage]:
    """Whoever reaches an open Redis can read every log and end every run."""
    if _redis_url_problem(settings.REDIS_URL):
        return []
    url = urlsplit(settings.REDIS_URL)
    if url.password or url.hostname in (None, "127.0.0.1", "localhost", "::1"):
        return []
    return [
        Warning(
            f"REDIS_URL reaches {url.hostname} without a password",
            hint="Set requirepass (or a user) in Redis and write redis://:password@host:6379/0.",
            id="parlab.W001",
        )
    ]


def _redis_url_problem(text: str) -> str:
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        return f"cannot be read: {error}"
    if url.scheme not in _REDIS_SCHEMES:
        return f"has scheme {url.scheme!r}, which is none of {', '.join(_REDIS_SCHEMES)}"
    if url.scheme in ("redis", "rediss"):
        if not url.hostname:
            return "names no host"
        if port == 0:
            return "names port 0"
        database = url.path.strip("/")
        if database and not database.isdecimal():
            return f"has {database!r} where the number of a database belongs"
    return ""
