"""Find and end processes: a supervisor's descendants, and what a dead supervisor left behind."""

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
"""Environment variable that every process of a run carries."""

STACK_SIGNAL = signal.SIGUSR1
"""Has a rank of an engine write the Python stacks of all its threads to standard error, whatever it waits for."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends, so that none can escape."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel does not let this process adopt its orphaned descendants")


def limit_memory(mib: int) -> None:
    """Let this process, and those it starts, each allocate no more than so much; torch then reports out of memory.

    Counted is what a process can write and has to itself (RLIMIT_DATA): not the code of libraries, not shared pages.
    """
    size = mib << 20
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    size = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def die_with(parent: int, memory_limit_mib: int | None = None) -> Callable[[], None]:
    """Return what a child calls before exec: the kernel kills it when its parent is killed, and limits its memory."""

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died just before that.
        if os.getppid() != parent:
            os._exit(1)
        if memory_limit_mib is not None:
            limit_memory(memory_limit_mib)

    return before_exec


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Keep those that run; a zombie only waits for its parent."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def descendants() -> list[psutil.Process]:
    """Find the living processes below the calling one."""
    return living(psutil.Process().children(recursive=True))


def marked() -> dict[psutil.Process, str]:
    """Find the living processes that carry a run's marker, other than the calling one: process -> marker."""
    found = {}
    for process in psutil.process_iter():
        # Processes of other people cannot be read, and cannot be ours.
        with contextlib.suppress(psutil.Error, OSError):
            marker = process.environ().get(MARKER)
            if marker and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found[process] = marker
    return found


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def kill_all(find: Callable[[], list[psutil.Process]], *, within_s: float) -> list[psutil.Process]:
    """Kill what `find` finds until it finds nothing (processes may fork meanwhile); return what is left."""
    deadline = time.monotonic() + within_s
    while left := find():
        signal_all(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []
