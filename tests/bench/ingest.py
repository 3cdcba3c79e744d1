"""Ingestion of raw training output into the database."""

import json
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
from django.db import transaction

from parlab.ingest.batches.events import Limits, parse
from parlab.ingest.batches.services import batch_apply
from parlab.lab.models import Attempt
from parlab.series import store
from runners.wire.protocol import MAX_BATCH_BYTES, Batch
from tests.bench.database import RANKS, PointRow, new_attempt
from tests.bench.result import Result, Scale

TIMERS = ("forward-compute", "backward-compute", "forward-recv", "backward-send", "optimizer")


def points_per_s(scale: Scale) -> Result:
    """Measure batches of a training with three ranks, against one row per point for a tenth of the same output."""
    output = training(steps=scale.of(20_000))
    tenth = output[: output.index(b"\n", len(output) // 10) + 1]
    repeats = scale.repeats(5)
    value = median(_rate(output, _apply) for _ in range(repeats))
    other = _rate(tenth, _apply_as_rows)  # dozens of times as slow: once is enough
    return Result(value, f"{other:,.0f} with a row per point (bulk_create)", repeats, value / other)


def training(steps: int) -> bytes:
    """Return the output of three ranks: a step event with twelve numbers each, and a log line every ten steps."""
    random = np.random.default_rng(0)
    lines = []
    for step in range(1, steps + 1):
        for rank in range(RANKS):
            step_time_s = float(random.normal(0.3, 0.01))
            event = {
                "parlab": 1,
                "t": round(1.76e9 + step * 0.3 + rank / 1000, 3),
                "rank": rank,
                "event": "step",
                "step": step,
                "warmup": step == 1,
                "step_time_s": round(step_time_s, 6),
                "samples": 16,
                "tokens": 16_384,
                "loss": round(11 / step**0.1 + float(random.normal(0, 0.05)), 6),
                "memory_bytes": 512 * int(random.normal(4e6, 1e3)),
                "memory_peak_bytes": 512 * 4_200_000,
                "timers_s": {name: round(step_time_s * float(random.normal(0.2, 0.01)), 6) for name in TIMERS},
            }
            lines.append(json.dumps(event, separators=(",", ":")))
        if step % 10 == 0:
            lines.append(f" iteration {step:8d}/ {steps} | elapsed time per iteration (ms): {step_time_s * 1e3:.1f} |")
    return ("\n".join(lines) + "\n").encode()


def batches(output: bytes, attempt: Attempt) -> Iterator[Batch]:
    """Split output into batches as a node does: at line ends, up to MAX_BATCH_BYTES each."""
    begin = 0
    while begin < len(output):
        end = output.rfind(b"\n", begin, begin + MAX_BATCH_BYTES) + 1
        yield Batch(
            run=attempt.run_id,
            attempt=attempt.number,
            node="bench",
            sequence=begin,
            next_sequence=end,
            output=output[begin:end],
        )
        begin = end


def _apply(attempt: Attempt, output: bytes) -> int:
    for batch in batches(output, attempt):
        batch_apply(batch=batch)
    return sum(info.points for info in store.metrics(attempt.pk))


def _apply_as_rows(attempt: Attempt, output: bytes) -> int:
    points = 0
    for batch in batches(output, attempt):
        parsed = parse(batch.output, limits=Limits(RANKS))
        points += parsed.points
        with transaction.atomic():
            PointRow._default_manager.bulk_create(
                PointRow(attempt_id=attempt.pk, metric=metric, rank=rank, step=step, time=at, value=value)
                for (metric, rank), columns in parsed.series.items()
                for step, at, value in zip(
                    columns.steps.tolist(), columns.times.tolist(), columns.values.tolist(), strict=True
                )
            )
    return points


def _rate(output: bytes, apply: Callable[[Attempt, bytes], int]) -> float:
    attempt = new_attempt()
    began = time.perf_counter()
    points = apply(attempt, output)
    return points / (time.perf_counter() - began)
