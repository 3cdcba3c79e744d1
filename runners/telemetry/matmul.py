"""Peak FLOP/s of this machine's processor in large matrix products, which no data sheet of a CPU states.

`python -m runners.telemetry.matmul` takes seconds and prints JSON: {"flops": {precision: {threads: FLOP/s}}, "torch"}.
The daemon does so when it starts, while no run is active, and keeps the highest values; MFU on the CPU refers to them.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from runners.supervisor.processes import die_with

PRECISIONS = ("fp32", "bf16")
ENOUGH_S = 0.02
"""Duration of a product above which the cost of the call is negligible."""
TRY_S = 0.5
WITHIN_S = 300
_SMALLEST, _LARGEST = 256, 8192

log = logging.getLogger(__name__)


def thread_counts(cores: int) -> list[int]:
    """Return the numbers of threads to measure: powers of two up to the number of cores, and that number."""
    return sorted({cores, *(1 << power for power in range(cores.bit_length()) if 1 << power <= cores)})


def measure(cores: int) -> dict[str, dict[str, float]]:
    """Time products of square matrices of growing size: {precision: {threads: FLOP/s}}."""
    import torch  # takes seconds and a hundred MiB, in this process only

    flops: dict[str, dict[str, float]] = {}
    for precision, dtype in zip(PRECISIONS, (torch.float32, torch.bfloat16), strict=True):
        for threads in thread_counts(cores):
            torch.set_num_threads(threads)

            def product(size: int, dtype: torch.dtype = dtype) -> Callable[[], object]:
                a, b = (torch.ones(size, size, dtype=dtype) for _ in range(2))
                out = torch.empty(size, size, dtype=dtype)
                return lambda: torch.mm(a, b, out=out)

            flops.setdefault(precision, {})[str(threads)] = best_flops(product)
    return flops


def best_flops(product: Callable[[int], Callable[[], object]], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the highest FLOP/s (2 n³ over the time) of products of growing size n."""
    size, best = _SMALLEST, 0.0
    while True:
        multiply = product(size)
        multiply()
        began = clock()
        while True:
            start = clock()
            multiply()
            took = max(clock() - start, 1e-9)
            best = max(best, 2 * size**3 / took)
            is_enough = took >= ENOUGH_S or size == _LARGEST
            if not is_enough or clock() - began >= TRY_S:
                break
        if is_enough:
            return best
        size *= 2


def stored(path: Path, machine: dict[str, Any]) -> dict[str, Any] | None:
    """Return the stored measurement; None if the processor or torch has changed since."""
    try:
        content = json.loads(path.read_text())
        measured = content["measured"] if content["of"] == _key(machine) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return measured if isinstance(measured, dict) else None


def highest(stored: dict[str, Any] | None, measured: dict[str, Any]) -> dict[str, Any]:
    """Return the higher value of each two measurements."""
    flops = {precision: dict(by_threads) for precision, by_threads in measured["flops"].items()}
    for precision, by_threads in (stored or {}).get("flops", {}).items():
        for threads, value in by_threads.items():
            before = flops.setdefault(precision, {}).get(threads, 0.0)
            flops[precision][threads] = max(before, value)
    return {**measured, "flops": flops}


def store(path: Path, machine: dict[str, Any], measured: dict[str, Any]) -> None:
    """Store a measurement for later daemons."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"of": _key(machine), "measured": measured}, indent=1))
    draft.rename(path)


def _key(machine: dict[str, Any]) -> list[Any]:
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return [machine.get("cpu_model"), len(os.sched_getaffinity(0)), torch]


def measured_apart() -> dict[str, Any] | None:
    """Measure in a separate process; None if that fails, for instance without torch."""
    command = [sys.executable, "-m", "runners.telemetry.matmul"]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=WITHIN_S, stdin=subprocess.DEVNULL
        )
        measured: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        log.warning(
            "the matrix products of this node cannot be measured, so MFU on its CPU is not available: %s", error
        )
        return None
    return measured


if __name__ == "__main__":
    # The process must not outlive the daemon.
    die_with(os.getppid())()
    result = measure(len(os.sched_getaffinity(0)))
    sys.stdout.write(json.dumps({"flops": result, "torch": metadata.version("torch")}) + "\n")
