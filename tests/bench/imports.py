"""Import of a log into the database."""

import io
import time
from statistics import median

import numpy as np
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User

from parlab.formats.source import Lines
from parlab.ingest.files.imports import upload_import
from tests.bench.result import Result, Scale

TIMERS = (
    "forward-compute", "forward-recv", "backward-compute", "backward-send", "backward-send-forward-recv",
    "backward-params-all-reduce", "backward-embedding-all-reduce", "optimizer-copy-to-main-grad",
    "optimizer-clip-main-grad", "optimizer-copy-main-to-model-params", "optimizer", "batch-generator",
)  # fmt: skip


def import_100k(scale: Scale) -> Result:
    """Measure the import of a Megatron-LM log of 100,000 iterations with timers, against reading its lines only."""
    iterations = scale.of(100_000)
    output = log(iterations)
    user, _ = get_user_model().objects.get_or_create(username="bench")
    seconds, others = [], []
    for repeat in range(scale.repeats(3)):
        seconds.append(_import_s(output + f"run {repeat}\n".encode(), user, iterations))
        others.append(_lines_s(output))
    value, other = median(seconds), median(others)
    return Result(value, f"{other:.2f} s for its lines only", len(seconds), other / value)


def log(iterations: int) -> bytes:
    """Return the output of Megatron-LM with --log-interval 1 and timers: two lines per iteration."""
    random = np.random.default_rng(0)
    step_ms = random.normal(1_380.0, 8.0, iterations)
    lines = []
    for number in range(1, iterations + 1):
        elapsed = step_ms[number - 1]
        lines.append(
            f" iteration {number:8d}/ {iterations:8d} | consumed samples: {number * 512:12d} |"
            f" elapsed time per iteration (ms): {elapsed:.1f} | learning rate: 1.471E-04 |"
            f" global batch size:   512 | lm loss: {11 / number**0.1:.6E} | loss scale: 16384.0 |"
            " grad norm: 3.312 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        timers = " | ".join(f"{name}: {elapsed * share:.2f}" for share, name in enumerate(TIMERS, 1))
        lines.append(f"time (ms) | {timers}")
    return ("\n".join(lines) + "\n").encode()


def _import_s(output: bytes, user: User, iterations: int) -> float:
    began = time.perf_counter()
    [source] = upload_import(experiment=None, name="megatron.log", stream=io.BytesIO(output), user=user)
    took = time.perf_counter() - began
    assert source.runs[0].summary["steps"]["last"] == iterations
    return took


def _lines_s(output: bytes) -> float:
    began = time.perf_counter()
    for _ in Lines(io.TextIOWrapper(io.BytesIO(output), "utf-8", newline="\n")):
        pass
    return time.perf_counter() - began
