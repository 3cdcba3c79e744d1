"""How long tests wait for what other processes do: far longer than it takes.

A wait ends as soon as what it waits for is there, so patience costs nothing where things work. Where they do not, it
is what tells a fault from a machine that is slow and busy with something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 150.0
"""For what takes a few seconds on a quiet machine: a process that starts, an answer, an end."""
TRAINING_S = 800.0
"""For what takes up to a minute there: several trainings one after the other. pytest itself ends a test a bit later."""


def wait_for(condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Wait until a condition holds and return what it returned."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s} s: {what}")
