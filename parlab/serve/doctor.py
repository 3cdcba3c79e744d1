"""What an installation lacks: a table of checks, each with what it found and what to do."""

from __future__ import annotations

import platform
import shutil
import smtplib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import redis
import requests
from django.conf import settings
from django.contrib.auth.models import User
from django.core import checks
from django.core.mail import get_connection
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from parlab.client.version import VERSION
from parlab.lab.models import Node, NodeKey, Project
from parlab.lab.services import stored_files
from parlab.lab.services.access.passwords import is_signon_set, may_use_password
from parlab.lab.services.access.signon import role_map, wishes
from parlab.newer_database import refusal
from parlab.series import partitions

from . import readiness

Level = Literal["ok", "warning", "error"]
CLOCK_S = 2.0
LOW_DISK_GIB = 10
_NO_EVICTION = "noeviction"


class Finding(NamedTuple):
    """What one check found; `remedy` is empty where nothing is to be done."""

    check: str
    level: Level
    text: str
    remedy: str = ""


Check = Callable[[], Iterator[tuple[Level, str, str]]]


def _settings() -> Iterator[tuple[Level, str, str]]:
    for message in checks.run_checks(include_deployment_checks=True):
        level: Level = "error" if message.is_serious() else "warning"
        yield level, f"{message.id}: {message.msg}", message.hint or ""


def _database() -> Iterator[tuple[Level, str, str]]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as error:
        yield "error", f"it does not answer ({str(error).strip()[:200]})", "start it, and check DATABASE_URL"
        return
    if reason := refusal():
        yield "error", reason, "start the newer release"
    elif missing:
        yield "error", f"{len(missing)} migrations are missing", "stop the server and run parlab manage migrate"
    if connection.vendor == "sqlite":
        yield "ok", "SQLite, which is right for one machine", ""
    else:
        yield from _vacuum()


def _vacuum() -> Iterator[tuple[Level, str, str]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('autovacuum'), current_setting('track_counts')")
        if cursor.fetchone() != ("on", "on"):
            yield "error", "autovacuum is off: tables only grow", "set autovacuum = on and track_counts = on"
    if rare := partitions.rarely_vacuumed():
        remedy = "run parlab manage doctor --mend as the owner of the tables"
        yield "warning", f"{len(rare)} partitions have the default autovacuum, the first {rare[0]}", remedy


def _redis() -> Iterator[tuple[Level, str, str]]:
    try:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)
        with client:
            facts = client.info()
            policy = client.config_get("maxmemory-policy").get("maxmemory-policy", _NO_EVICTION)
    except redis.ResponseError:
        return  # a user who may not ask for the configuration
    except (redis.RedisError, OSError) as error:
        yield "error", f"it does not answer ({str(error)[:200]})", "start it, and check REDIS_URL"
        return
    if policy != _NO_EVICTION and facts.get("maxmemory"):
        yield "warning", f"it removes keys when it is full ({policy})", "set maxmemory-policy noeviction"


def _clock() -> Iterator[tuple[Level, str, str]]:
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
            seconds, microseconds = client.time()
    except (redis.RedisError, OSError):
        return
    off_s = seconds + microseconds / 1e6 - time.time()
    if abs(off_s) > CLOCK_S:
        yield "error", f"it differs from that of Redis by {off_s:.1f} s", "synchronise both by NTP"


def _disk() -> Iterator[tuple[Level, str, str]]:
    try:
        readiness.check_disk()
    except readiness.Unready as problem:
        yield "error", str(problem), "mount the disk, or check PARLAB_DATA_DIR and PARLAB_ARTIFACTS_DIR"
    for directory in sorted({Path(settings.DATA_DIR), Path(settings.ARTIFACTS_DIR)}):
        if directory.exists() and (free := shutil.disk_usage(directory).free) < LOW_DISK_GIB << 30:
            yield "warning", f"{free >> 20} MiB are free at {directory}", "make room, or move it to a larger disk"


def _proxy() -> Iterator[tuple[Level, str, str]]:
    if not settings.HTTPS:
        yield (
            "warning",
            "passwords and tokens pass unencrypted, except on this machine",
            "set PARLAB_HTTPS=1 behind TLS",
        )
    elif not settings.TRUSTED_PROXIES:
        remedy = "set PARLAB_TRUSTED_PROXIES to the network of the proxy, unless uvicorn itself ends TLS"
        yield "warning", "no proxy is trusted: all requests have its address, and redirect without end", remedy


def _logins() -> Iterator[tuple[Level, str, str]]:
    if not is_signon_set():
        yield "ok", "passwords; PARLAB_OIDC_ISSUER sets single sign-on", ""
        return
    if settings.OIDC_ISSUER:
        yield from _issuer()
    if settings.PROXY_USER_HEADER and not settings.TRUSTED_PROXIES:
        yield "warning", "no proxy is trusted, so PARLAB_PROXY_USER_HEADER lets nobody in", "set PARLAB_TRUSTED_PROXIES"
    if not role_map():
        remedy = "set PARLAB_SIGNON_GROUPS to give roles and to limit who comes in"
        yield "warning", "everybody whom it names comes in, as a viewer", remedy
    gone = {wish.rpartition(":")[0] for _, wish in wishes()} - {"", *Project.objects.values_list("slug", flat=True)}
    if gone:
        yield (
            "warning",
            f"PARLAB_SIGNON_GROUPS names unknown projects: {', '.join(sorted(gone))}",
            "create or remove them",
        )
    people = User.objects.filter(is_active=True)
    if not any(user.has_usable_password() and may_use_password(user) for user in people.iterator()):
        text = "nobody could log in without single sign-on"
        yield "warning", text, "create a superuser with a password, and keep it for emergencies"


def _issuer() -> Iterator[tuple[Level, str, str]]:
    place = f"{settings.OIDC_ISSUER.rstrip('/')}/.well-known/openid-configuration"
    try:
        answer = requests.get(place, timeout=5)
        answer.raise_for_status()
        named = str(answer.json().get("issuer", ""))
    except (requests.RequestException, AttributeError) as error:
        yield "error", f"the issuer does not answer ({str(error)[:200]})", "check PARLAB_OIDC_ISSUER"
        return
    if named.rstrip("/") != settings.OIDC_ISSUER.rstrip("/"):
        yield "error", f"the issuer calls itself {named[:200]!r}", "set PARLAB_OIDC_ISSUER to that"
    else:
        yield "ok", f"single sign-on by {named}", ""


def _mail() -> Iterator[tuple[Level, str, str]]:
    if not settings.SENDS_MAIL:
        yield "ok", "the server sends none; EMAIL_URL sets a mail server", ""
        return
    try:
        with get_connection():
            pass
    except (OSError, smtplib.SMTPException) as error:
        yield "error", f"the mail server does not answer ({str(error)[:200]})", "check EMAIL_URL"


def _storage() -> Iterator[tuple[Level, str, str]]:
    if settings.STORAGE_URL:
        try:
            stored_files.is_missing()
            yield "ok", f"files are in {settings.STORAGE_URL}", ""
        except (OSError, ImportError, ValueError) as error:
            remedy = "check PARLAB_STORAGE_URL and its credentials; s3:// needs pip install 'parlab[s3]'"
            yield "error", str(error)[:300], remedy
    if settings.RAW_DAYS and not settings.ARCHIVE_URL:
        remedy = "set PARLAB_ARCHIVE_URL to keep them"
        yield "warning", f"points of series are removed for ever after {settings.RAW_DAYS:g} days", remedy


def _nodes() -> Iterator[tuple[Level, str, str]]:
    nodes = list(Node.objects.filter(is_enabled=True))
    silent = [node.name for node in nodes if not node.is_online]
    if silent:
        yield "warning", f"silent: {', '.join(silent)}", "start their daemons, or disable them"
    for node in nodes:
        if abs(node.clock_offset_s) > CLOCK_S:
            yield "warning", f"the clock of {node.name} is off by {node.clock_offset_s:.1f} s", "synchronise it by NTP"
    for node in nodes:
        if runtimes := (node.abilities or {}).get("containers"):
            yield "ok", f"{node.name} starts containers with {', '.join(runtimes)}", ""
    if settings.SHARED_NODE_KEY:
        own = set(NodeKey.objects.values_list("node_name", flat=True))
        shared = [node.name for node in nodes if node.name not in own]
        if shared:
            remedy = "enrol them with codes, then set PARLAB_SHARED_NODE_KEY=0"
            yield "warning", f"{', '.join(shared)} may use the shared key, with which each can act as another", remedy
    if alike := [node.name for node in nodes if not node.hardware.get("run_as")]:
        text = "runs have the account of the daemon: their code can read the key of its node and the URL of Redis"
        remedy = "start the daemon as root with --run-as (not with Slurm), or let only people whom you trust launch"
        yield "warning", f"{', '.join(alike)}: {text}", remedy


def _workers() -> Iterator[tuple[Level, str, str]]:
    try:
        readiness.check_workers()
    except readiness.Unready as problem:
        yield "error", str(problem), "start workers for all queues, and beat"


def _versions() -> Iterator[tuple[Level, str, str]]:
    yield "ok", f"parlab {VERSION}, Python {platform.python_version()}", ""
    other = [f"{node.name} {node.daemon_version}" for node in Node.objects.filter(is_enabled=True) if _differs(node)]
    if other:
        yield "warning", f"daemons of other releases: {', '.join(other)}", f"upgrade them to {VERSION}"


def _differs(node: Node) -> bool:
    return bool(node.daemon_version) and node.daemon_version.partition("+")[0] != VERSION


CHECKS: dict[str, Check] = {
    "settings": _settings,
    "database": _database,
    "redis": _redis,
    "clock": _clock,
    "disk": _disk,
    "proxy": _proxy,
    "logins": _logins,
    "mail": _mail,
    "storage": _storage,
    "nodes": _nodes,
    "workers": _workers,
    "versions": _versions,
}


def examine() -> Iterator[Finding]:
    """Yield what each check finds; one that finds nothing is ok."""
    for name, check in CHECKS.items():
        try:
            found = [Finding(name, *row) for row in check()]
        except DatabaseError:
            found = [Finding(name, "error", "unknown without the database", "see the check of the database")]
        except ValueError as error:
            found = [Finding(name, "error", f"a setting is invalid ({error})", "see the check of the settings")]
        yield from found or [Finding(name, "ok", "nothing to do")]


def mend() -> int:
    """Change what the doctor can change by itself; return how much."""
    names = partitions.rarely_vacuumed() if connection.vendor == "postgresql" else []
    for name in names:
        partitions.vacuum_often(name)
    return len(names)
