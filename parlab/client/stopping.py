"""`parlab.should_stop`: whether this process was asked to write a checkpoint and end."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

CHECKPOINTED = 85
"""Exit code of a process that wrote a checkpoint because it was warned."""
WARN_SIGNAL = "PARLAB_WARN_SIGNAL"
"""Variable with the name of the signal that comes ahead of a time limit, such as SIGUSR2."""
SAVED_STEP = "PARLAB_SAVED_STEP"
"""Variable with the last step that an earlier attempt has saved."""
CHECKPOINT_DIRECTORY = "PARLAB_CHECKPOINT_DIR"
"""Variable with the directory that all attempts of a run share."""

_earlier: dict[int, Any] = {}
"""Signal -> the handler that was there before."""
_received: dict[int, None] = {}
_within: dict[int, None] = {}
"""Signals whose earlier handler is being called: one that was composed with ours calls ours again."""


def should_stop() -> bool:
    """Return whether SIGTERM, or the signal of PARLAB_WARN_SIGNAL, has come since the first call.

    The first call installs the handlers, which call an earlier handler of the script as well. Handlers can only be
    installed on the main thread: on another one the answer is that of the last call there. Each rank answers for
    itself: before a collective save, the ranks must agree, for example by an all-reduce.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _numbers():
            if number not in _earlier or signal.getsignal(number) not in (_receive, None):
                _install(number)
    return bool(_received)


def expect_warning() -> int | None:
    """Note a warning that comes before the first call of `should_stop`, instead of ending by it; return its number.

    SIGTERM still ends this process.
    """
    number = _warning()
    if number is not None:
        _install(number)
    return number


def replace_handlers() -> None:
    """Install the handlers so that they call no earlier ones: Lightning's waits for other ranks within its handler."""
    should_stop()
    for number in _earlier:
        _earlier[number] = None


def reason() -> str:
    """Return the name of the signal that came first; empty if none came."""
    return next((signal.Signals(number).name for number in _received), "")


def _numbers() -> set[int]:
    warning = _warning()
    return {int(signal.SIGTERM), *([] if warning is None else [warning])}


def _warning() -> int | None:
    named = getattr(signal, os.environ.get(WARN_SIGNAL, ""), None)
    return int(named) if isinstance(named, signal.Signals) else None


def _install(number: int) -> None:
    try:
        _earlier[number] = signal.getsignal(number)
        signal.signal(number, _receive)
    except (OSError, ValueError):  # SIGKILL and the like, or an interpreter within another program
        _earlier[number] = None


def _receive(number: int, frame: FrameType | None) -> None:
    _received.setdefault(number)
    earlier = _earlier.get(number)
    if number in _within or not callable(earlier) or earlier is signal.default_int_handler:
        return
    _within[number] = None
    try:
        earlier(number, frame)
    finally:
        _within.pop(number, None)
