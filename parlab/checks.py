"""Django system checks that report invalid settings with a remedy."""

import ipaddress
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from parlab.lab.services.access.signon import wishes

MIN_NODE_KEY_BYTES = 32
_NETWORKS = ("WEBHOOK_NETWORKS", "WATCH_NETWORKS", "TRUSTED_PROXIES", "METRICS_NETWORKS")
_REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+socket")


@register()
def redis_url_is_valid(**_: Any) -> list[CheckMessage]:
    """Check that both Celery and the Redis client can use REDIS_URL."""
    problem = _redis_url_problem(settings.REDIS_URL)
    if not problem:
        return []
    return [
        Error(f"REDIS_URL {problem}", hint="Set it, for example, to redis://:password@host:6379/0.", id="parlab.E001")
    ]


@register()
def data_directory_is_writable(**_: Any) -> list[CheckMessage]:
    """Check the data directory, which contains secrets, the embedded database and static files."""
    path = Path(settings.DATA_DIR)
    if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        return []
    return [
        Error(
            f"data directory {path} is not writable",
            hint="Make it writable for the user that runs parlab, or set PARLAB_DATA_DIR to another directory.",
            id="parlab.E002",
        )
    ]


@register(Tags.security)
def data_is_private(**_: Any) -> list[CheckMessage]:
    """Check that other accounts of this machine can read neither the keys nor the embedded database."""
    directory = Path(settings.DATA_DIR)
    if directory.is_dir() and not directory.stat().st_mode & 0o077:
        return []
    names = ("secret_key", "node_key", "redis_url", "parlab.sqlite3")
    paths = [path for path in (directory / name for name in names) if path.is_file() and path.stat().st_mode & 0o077]
    if not paths:
        return []
    return [
        Warning(
            f"other accounts of this machine can read {', '.join(map(str, paths))}",
            hint=f"Run chmod 700 {directory}, and replace the keys if others may have read them.",
            id="parlab.W002",
        )
    ]


@register()
def upload_limit_is_positive(**_: Any) -> list[CheckMessage]:
    """Check the upload limit: a limit of zero would refuse every import."""
    if settings.UPLOAD_LIMIT_MIB > 0:
        return []
    return [
        Error(
            f"PARLAB_UPLOAD_LIMIT_MIB is {settings.UPLOAD_LIMIT_MIB}, so no file can be imported",
            hint="Set it to the maximum size of an imported file in MiB, for example 2048.",
            id="parlab.E004",
        )
    ]


@register()
def networks_are_networks(**_: Any) -> list[CheckMessage]:
    hint = "Set it to networks separated by commas, for example 10.0.0.0/8,192.168.1.5."
    problems: list[CheckMessage] = []
    for name in _NETWORKS:
        for text in getattr(settings, name):
            try:
                ipaddress.ip_network(text, strict=False)
            except ValueError as error:
                problems.append(Error(f"PARLAB_{name} {text!r} is no network: {error}", hint=hint, id="parlab.E005"))
    return problems


@register(Tags.security)
def issuer_is_private(**_: Any) -> list[CheckMessage]:
    """Check that single sign-on goes over TLS: who reads or changes its answers on the way could be anybody."""
    if not settings.OIDC_ISSUER:
        return []
    url = urlsplit(settings.OIDC_ISSUER)
    if url.hostname and (url.scheme == "https" or url.hostname in ("127.0.0.1", "localhost", "::1")):
        return []
    return [
        Error(
            f"PARLAB_OIDC_ISSUER {settings.OIDC_ISSUER!r} is not https",
            hint="Set it to the address of the issuer, for example https://login.example.org/realms/lab.",
            id="parlab.E006",
        )
    ]


@register()
def groups_give_known_roles(**_: Any) -> list[CheckMessage]:
    """Check the roles that groups of single sign-on give."""
    try:
        list(wishes())
    except ValueError as error:
        hint = 'Set it, for example, to {"gpu-admins": "admin", "vision": ["operator", "vision:maintainer"]}.'
        return [Error(f"PARLAB_SIGNON_GROUPS: {error}", hint=hint, id="parlab.E007")]
    return []


@register(Tags.security)
def node_key_is_long_enough(**_: Any) -> list[CheckMessage]:
    """Check the length of the node key, which allows starting runs on every node."""
    length = len(settings.NODE_KEY)
    if length >= MIN_NODE_KEY_BYTES:
        return []
    return [
        Error(
            f"the node key has {length} bytes, fewer than {MIN_NODE_KEY_BYTES}",
            hint="Set PARLAB_NODE_KEY on the server and on all nodes to a longer key, for example the output of:"
            " openssl rand -base64 48",
            id="parlab.E003",
        )
    ]


@register(Tags.security, deploy=True)
def remote_redis_has_a_password(**_: Any) -> list[CheckMessage]:
    """Check that a Redis on another host has a password: without it, any client can read logs and cancel runs."""
    if _redis_url_problem(settings.REDIS_URL):
        return []
    url = urlsplit(settings.REDIS_URL)
    if url.password or url.hostname in (None, "127.0.0.1", "localhost", "::1"):
        return []
    return [
        Warning(
            f"REDIS_URL connects to {url.hostname} without a password",
            hint="Set requirepass (or a user) in Redis and use redis://:password@host:6379/0.",
            id="parlab.W001",
        )
    ]


def _redis_url_problem(text: str) -> str:
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        return f"is not a valid URL: {error}"
    if url.scheme not in _REDIS_SCHEMES:
        return f"has the unknown scheme {url.scheme!r}; use one of {', '.join(_REDIS_SCHEMES)}"
    if url.scheme in ("redis", "rediss"):
        if not url.hostname:
            return "has no host"
        if port == 0:
            return "has port 0"
        database = url.path.strip("/")
        if database and not database.isdecimal():
            return f"has the database {database!r}, which is not a number"
    return ""
