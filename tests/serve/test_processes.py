"""The processes of `parlab serve` and of the demo end together, and none outlives its time."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from parlab.serve.processes import Child, end_together
from tests.patience import wait_for

SLOW_END = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: ({end})); print(flush=True); time.sleep(60)"


def started(tmp_path: Path, name: str, end: str) -> Child:
    child = Child(name, [sys.executable, "-c", SLOW_END.format(end=end)], os.environ, tmp_path / f"{name}.log")
    child.start()
    wait_for(lambda: bool(child.log.read_bytes()), "the process listens to SIGTERM")
    return child


def test_processes_end_at_the_same_time_and_one_that_ignores_it_is_killed(tmp_path: Path) -> None:
    slow = [started(tmp_path, name, "time.sleep(0.5), exit(0)") for name in ("web", "beat", "worker")]
    deaf = started(tmp_path, "deaf", "None")
    begun = time.monotonic()
    end_together([*slow, deaf], timeout=1.0)
    assert time.monotonic() - begun < 2.0
    assert [child.process.returncode for child in (*slow, deaf)] == [0, 0, 0, -9]
