"""What `log` of the client costs a training."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from runners.client import init
from tests.bench.result import Result, Scale

METRICS = {f"train/metric_{number}": 1.2345678 * (number + 1) for number in range(10)}


def log_us(scale: Scale) -> Result:
    """Measure `log` with ten metrics without a server, against json.dumps and a flushed write per step."""
    steps, repeats = scale.of(20_000), scale.repeats(5)
    values, others = [], []
    with tempfile.TemporaryDirectory(prefix="parlab-client-") as directory:
        os.environ |= {"PARLAB_HOME": directory, "PARLAB_OFFLINE": "1"}
        try:
            for _ in range(repeats):
                values.append(_log(steps))
                others.append(_write(Path(directory, "lines"), steps))
        finally:
            del os.environ["PARLAB_HOME"], os.environ["PARLAB_OFFLINE"]
    value, other = median(values), median(others)
    return Result(value, "us", f"{other:.3g} us for json.dumps and a flushed write", other / value, repeats)


def _log(steps: int) -> float:
    run = init("bench")
    try:
        return _median_us(lambda step: run.log(METRICS, step=step), steps)
    finally:
        run.finish()


def _write(path: Path, steps: int) -> float:
    with path.open("w") as file:

        def write(step: int) -> None:
            file.write(json.dumps({"step": step, "t": time.time(), **METRICS}) + "\n")
            file.flush()

        return _median_us(write, steps)


def _median_us(work: Callable[[int], object], steps: int) -> float:
    times = []
    for step in range(steps):
        began = time.perf_counter_ns()
        work(step)
        times.append(time.perf_counter_ns() - began)
    return median(times) / 1e3
