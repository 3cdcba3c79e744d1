"""Timeouts of tests that wait for other processes.

A wait ends as soon as its condition holds, so a long timeout costs nothing when the code works. It tells a fault
from a slow or busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 150.0
"""Timeout for what takes a few seconds on an idle machine: the start of a process, a response, an exit."""
TRAINING_S = 800.0
"""Timeout for what takes up to a minute there: several trainings in sequence. The timeout of pytest is a bit longer."""


def wait_for(condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Wait until a condition holds and return what it returned."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s} s: {what}")
