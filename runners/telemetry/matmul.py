"""Peak FLOP/s of this machine's processor in large matrix products, which no data sheet of a CPU states.

`python -m runners.telemetry.matmul` takes seconds and prints JSON: {"flops": {precision: {threads: FLOP/s}}, "torch"}.
The daemon does so when it starts, while no run is active, and keeps the highest values; MFU on the CPU refers to them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import metadata

from runners.supervisor.processes import die_with

PRECISIONS = ("fp32", "bf16")
ENOUGH_S = 0.02
"""Duration of a product above which the cost of the call is negligible."""
TRY_S = 0.5
_SMALLEST, _LARGEST = 256, 8192


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


if __name__ == "__main__":
    # The process must not outlive the daemon, which may have ended during the imports: it tells its process id.
    die_with(int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid())()
    result = measure(len(os.sched_getaffinity(0)))
    sys.stdout.write(json.dumps({"flops": result, "torch": metadata.version("torch")}) + "\n")
