"""Find and end processes: descendants of a supervisor, and processes that a killed supervisor left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import psutil

MARKER = "PARLAB_RUN"
"""Environment variable of every process of a run."""

STACK_SIGNAL = signal.SIGUSR1
"""Makes a rank write the Python stacks of all its threads to standard error, even while it waits."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends, so that none is missed."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel does not allow this process to adopt its orphaned descendants")


def call_this(name: str) -> None:
    """Name this process for lists of processes: its command line is that of the one from which it was forked."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def limit_memory(mib: int) -> None:
    """Limit the memory of this process and of each that it starts; torch reports out of memory beyond it.

    The limit counts private writable memory (RLIMIT_DATA), not the code of libraries or shared pages.
    """
    size = mib << 20
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    size = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def die_with(
    parent: int, memory_limit_mib: int | None = None, *, may_gain_privileges: bool = True
) -> Callable[[], None]:
    """Return a function for a child to call before exec: the child dies with its parent, and its memory is limited.

    Unless it may gain privileges, programs like sudo do not become root for it.
    """

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may already have died.
        if os.getppid() != parent:
            os._exit(1)
        if memory_limit_mib is not None:
            limit_memory(memory_limit_mib)
        if not may_gain_privileges and _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            os._exit(1)

    return before_exec


class Apart(NamedTuple):
    """What a container runtime changes about the processes of this run."""

    helpers: frozenset[str] = frozenset()
    """Programs of the runtime, which are not of the run."""
    marker: str = ""
    """Marker of processes that are no descendants; empty: all are descendants."""


_apart = Apart()


def expect_container(helpers: frozenset[str], marker: str) -> None:
    """Let this module know the container runtime of the run of this process, before its launcher is started."""
    global _apart  # noqa: PLW0603  # like the adoption of orphans, a property of the process
    _apart = Apart(helpers, marker)


def is_helper(pid: int) -> bool:
    """Whether a process is the container runtime's own: it passes signals on, and ends after those of the run."""
    if not _apart.helpers:
        return False
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as name:
        return name.read().strip() in _apart.helpers
    return False


def of_run(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes without those of a container runtime."""
    return [process for process in processes if not is_helper(process.pid)]


def apart() -> list[psutil.Process]:
    """Return the processes of this run that a container runtime has started apart from this process."""
    if not _apart.marker:
        return []
    return [process for process, marker in marked().items() if marker == _apart.marker]


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that are alive, without zombies."""
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def descendants() -> list[psutil.Process]:
    """Return the living descendants of the calling process, and those that a container runtime has put elsewhere."""
    own = living(psutil.Process().children(recursive=True))
    return [*own, *(process for process in apart() if process not in own)]


def marked() -> dict[psutil.Process, str]:
    """Return the living processes with the marker of a run, except the calling one: process -> marker."""
    markers = {}
    for process in psutil.process_iter():
        # Processes of other users cannot be read, and do not belong to a run.
        with contextlib.suppress(psutil.Error, OSError):
            marker = process.environ().get(MARKER)
            if marker and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                markers[process] = marker
    return markers


def catches(pid: int, number: int) -> bool:
    """Return whether a process handles a signal, which would end most others."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
        caught = next((line.split()[1] for line in status if line.startswith("SigCgt:")), "0")
        return bool(int(caught, 16) >> (number - 1) & 1)
    return False


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def kill_all(find: Callable[[], list[psutil.Process]], *, within_s: float) -> list[psutil.Process]:
    """Kill the processes that `find` returns until there are none (they may fork meanwhile); return the survivors."""
    deadline = time.monotonic() + within_s
    while remaining := find():
        signal_all(remaining, signal.SIGKILL)
        if time.monotonic() > deadline:
            return remaining
        time.sleep(0.02)
    return []
