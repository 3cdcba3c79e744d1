"""Whether a compute node reaches the Redis of its login node, and the start of its shipping.

Apart from runners.node.jobs.ship, so that the supervisor does not import what only the shipping needs.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from parlab.client.journal import tail
from parlab.client.json_log import start_logging
from runners.node.jobs.state import JobDir, JobStateDir
from runners.supervisor import processes
from runners.wire.protocol import login_key

log = logging.getLogger(__name__)

NAME = "parlab-ship"
"""Of the process that ships."""
CONNECT_S = 3.0
FLUSH_S = 5.0
"""Time at the end of a run for the answers to its last batches; then the login node asks for them."""
LOADING_S = 30.0
"""Time in which ranks load their libraries: a shipper that loads its own then would hold them up."""
ENDED_S = 2.0
"""Time for the login node to ship the last batches of a run that ends before."""
LOOK_S = 0.5
"""Seconds between two looks for the order to start."""


class Shipping(NamedTuple):
    """What ships from a node."""

    module: str
    is_at_once: bool
    """Whether it begins before the ranks; else the login node ships until they have loaded their libraries."""


REDIS = Shipping("runners.node.jobs.ship", is_at_once=False)


def why_not(state: JobStateDir) -> str:
    """Return why this node cannot ship; empty if it reaches the Redis of its login node."""
    settings = state.read_broker()
    if settings is None:
        return "its daemon was started with PARLAB_SLURM_SHIP=login"
    try:
        is_same = _has(settings["url"], login_key(state.id))
    except (OSError, ValueError) as error:
        return f"this node does not reach Redis: {str(error)[:200]}"
    return "" if is_same else "another Redis answers on this node at the address that the login node uses"


def _has(url: str, key: str) -> bool:
    """Return whether a Redis has a key. Raises OSError, ValueError."""
    parts = urlsplit(url)
    if parts.scheme != "redis" or parts.query:
        return _has_by_client(url, key)
    # Its client takes longer to load than all else that a supervisor needs before its ranks can start.
    commands: list[Sequence[str]] = [("EXISTS", key)]
    if parts.path.strip("/") not in ("", "0"):
        commands.insert(0, ("SELECT", parts.path.strip("/")))
    if parts.password:
        commands.insert(0, ("AUTH", *([unquote(parts.username)] if parts.username else []), unquote(parts.password)))
    with socket.create_connection((parts.hostname or "localhost", parts.port or 6379), CONNECT_S) as connection:
        connection.sendall(b"".join(map(_command, commands)))
        with connection.makefile("rb") as answers:
            lines = [answers.readline().decode(errors="replace").strip() for _ in commands]
    if wrong := next((line for line in lines if line[:1] not in ("+", ":")), None):
        raise OSError(wrong.lstrip("-"))
    if not lines[-1]:
        raise OSError("it has closed the connection")
    return lines[-1] == ":1"


def _command(words: Sequence[str]) -> bytes:
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)


def _has_by_client(url: str, key: str) -> bool:
    import redis  # heavy

    options: dict[str, Any] = {"socket_timeout": CONNECT_S, "socket_connect_timeout": CONNECT_S, "retry": None}
    try:
        with redis.Redis.from_url(url, **options) as client:
            return bool(client.exists(key))
    except redis.RedisError as error:
        raise OSError(str(error)) from None


def start(run: JobDir, shipping: Shipping) -> socket.socket:
    """Start to ship a run in a process that is no descendant.

    Returns a connection to it: it ends in order when that is shut for writing, and closes its own end then.
    """
    own, other = socket.socketpair()
    child = os.fork()
    if child:
        other.close()
        os.waitpid(child, 0)
        return own
    # Its parent ends at once, so that the supervisor, which ends all its descendants, does not count it among them.
    if os.fork():
        os._exit(0)
    try:
        _ship(run, shipping, other.fileno())
    except Exception:
        log.exception("%s: shipping failed", run)
    finally:
        os._exit(0)


def _ship(run: JobDir, shipping: Shipping, supervisor: int) -> None:
    """Ship in a process of its own, which has what this one has loaded already."""
    os.setsid()
    processes.call_this(NAME)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it ends with its supervisor, whatever the system signals
    output = os.open(run.path / "shipper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for place, descriptor in enumerate((supervisor, output, output)):
        os.dup2(descriptor, place)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:  # above all the lock of the run, and the other end of this connection
            with contextlib.suppress(OSError):
                os.close(descriptor)
    start_logging()
    if shipping.is_at_once or _have_loaded(run):
        importlib.import_module(shipping.module).main([str(run.path)])


def _have_loaded(run: JobDir) -> bool:
    """Wait until the ranks of a run have loaded their libraries; return False if it ends before, and all is stored."""
    due = float("inf")
    while time.monotonic() < due:
        if select.select([0], [], [], LOOK_S)[0]:
            return not _is_stored(run, time.monotonic() + ENDED_S)
        if due == float("inf") and run.has_go:
            due = time.monotonic() + LOADING_S
    return True


def _is_stored(run: JobDir, until: float) -> bool:
    """Wait until the server has stored everything, as the login node records; return whether it has."""
    while (is_open := tail(run.spool) > run.acknowledged()) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_open
