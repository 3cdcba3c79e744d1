"""A training without dependencies whose data loader is slow; its argument is the number of data workers."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time

STEPS, WARMUP, BATCH = 8, 2, 4
LOAD_S, COMPUTE_S = 0.08, 0.02


def load() -> float:
    """Read a batch."""
    time.sleep(LOAD_S)
    return 1.0


def worker(batches: queue.Queue[float]) -> None:
    """Read batches ahead."""
    while True:
        batches.put(load())


workers = int(sys.argv[1])
ahead: queue.Queue[float] = queue.Queue(maxsize=8)
for _ in range(8 * workers):
    threading.Thread(target=worker, args=(ahead,), daemon=True).start()
for step in range(1, STEPS + 1):
    began = time.perf_counter()
    batch = ahead.get() if workers else load()
    loaded = time.perf_counter()
    time.sleep(COMPUTE_S)
    ended = time.perf_counter()
    timers = {"data-loading": loaded - began, "forward-compute": ended - loaded}
    event = {"parlab": 1, "t": round(time.time(), 3), "rank": 0, "event": "step", "step": step}
    event |= {"warmup": step <= WARMUP, "step_time_s": ended - began, "samples": BATCH, "timers_s": timers}
    print(json.dumps(event, separators=(",", ":")), flush=True)
