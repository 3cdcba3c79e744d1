"""Find and end processes: descendants of a supervisor, and processes that a killed supervisor left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable

import psutil

MARKER = "PARLAB_RUN"
"""Environment variable of every process of a run."""

STACK_SIGNAL = signal.SIGUSR1
"""Makes a rank write the Python stacks of all its threads to standard error, even while it waits."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends, so that none is missed."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel does not allow this process to adopt its orphaned descendants")


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


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that are alive, without zombies."""
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def descendants() -> list[psutil.Process]:
    """Return the living descendants of the calling process."""
    return living(psutil.Process().children(recursive=True))


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
