"""A training of a user: steps with a loss, a checkpoint on the signal or SIGTERM, exit code 85.

Arguments: number of steps, seconds of a step, and optionally every how many steps it writes a checkpoint besides.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

STOP: list[int] = []
RANK = int(os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0")
CHECKPOINT = Path(os.environ.get("PARLAB_CHECKPOINT_DIR", ".")) / f"step-{RANK}"


def load() -> int:
    """Return the last step of the checkpoint; 0 without one."""
    try:
        return int(CHECKPOINT.read_text())
    except FileNotFoundError:
        return 0


def save(step: int) -> None:
    """Write the checkpoint, which is never half written."""
    draft = CHECKPOINT.with_suffix(".draft")
    draft.write_text(str(step))
    draft.rename(CHECKPOINT)


def main(steps: int, step_s: float, every: int = 0) -> int:
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    for number in {signal.SIGTERM, getattr(signal, os.environ.get("PARLAB_WARN_SIGNAL", "SIGTERM"))}:
        signal.signal(number, lambda number, _: STOP.append(number))
    first = load()
    print(f"attempt {os.environ.get('PARLAB_ATTEMPT')} goes on from step {first}", flush=True)
    for step in range(first + 1, steps + 1):
        began = time.time()
        time.sleep(step_s)
        loss = 1.0 + 1.0 / step
        event = {"parlab": 1, "t": time.time(), "rank": RANK, "event": "step", "step": step}
        event |= {"step_time_s": time.time() - began, "loss": loss}
        print(json.dumps(event, separators=(",", ":")), flush=True)
        if every and step % every == 0:
            save(step)
        if STOP:
            save(step)
            print(f"checkpoint of step {step} after {signal.Signals(STOP[0]).name}", flush=True)
            return 85
    save(steps)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:])))
