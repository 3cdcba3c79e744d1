"""How many tasks of each name a worker ended, and how long they took."""

from __future__ import annotations

import time
from typing import Any

from parlab.shared_counters import counters

TASKS = "tasks"
TASK_SECONDS = "task_seconds"
_STARTS: dict[str, float] = {}


def note_start(task_id: str, **_: Any) -> None:
    _STARTS[task_id] = time.perf_counter()


def note_end(task_id: str, task: Any, state: str | None = None, **_: Any) -> None:
    """Count a task; workers are solo, so that flushing here delays the next task and nothing else."""
    began = _STARTS.pop(task_id, None)
    counters.add(TASKS, (task.name, (state or "unknown").lower()))
    if began is not None:
        counters.observe(TASK_SECONDS, (task.name,), time.perf_counter() - began)
    if counters.take_turn():
        counters.flush()
