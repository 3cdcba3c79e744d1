"""MLPerf 5: single steps, then a summary of their block; the numbers of a headline share one basis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from parlab.formats import read_document

BATCH, LENGTH, STEPS, BLOCKS = 32, 4096, 5, 3


def lines() -> Iterator[str]:
    """Yield one run of three blocks; a summary counts the pauses of its block, so its rate is lower."""
    clock = 1_700_000_000_000

    def event(key: str, value: object = None, kind: str = "POINT_IN_TIME", **details: Any) -> str:
        content = {"time_ms": clock, "event_type": kind, "key": key, "value": value, "metadata": details}
        return f":::MLLOG {json.dumps({'namespace': '', **content})}\n"

    yield event("submission_benchmark", "llama31_405b")
    yield event("global_batch_size", BATCH)
    yield event("max_sequence_length", LENGTH)
    yield event("run_start", kind="INTERVAL_START")
    for block in range(BLOCKS):
        done = block * STEPS * BATCH
        yield event("block_start", kind="INTERVAL_START", samples_count=done)
        for step in range(1, STEPS + 1):
            clock += 4_000
            stats = {"train_step_time": 4.0, "reduced_train_loss": 8.0 - block}
            yield event("tracked_stats", stats, samples_count=done + step * BATCH, step=done + step * BATCH)
        stats = {"throughput": 6.5, "train_step_time": 4.9, "max_memory_usage": 61.5}
        yield event("tracked_stats", stats, step=done + STEPS * BATCH)
        yield event("block_stop", kind="INTERVAL_END", samples_count=done + STEPS * BATCH)
    yield event("run_stop", kind="INTERVAL_END", status="success")


def test_summaries_of_blocks_are_no_steps_and_the_headline_has_one_basis() -> None:
    document = read_document(lines(), file="x")
    (segment,) = document.segments
    assert (document.format, segment.records, segment.steps and segment.steps.last) == ("mlperf", 15, 15)
    time = segment.step_time_s
    assert time is not None
    assert segment.samples_per_s is not None
    assert (time.median, segment.samples_per_s) == (4.0, 8.0)
    assert segment.samples_per_s * (time.mean_without_first or 0.0) == pytest.approx(BATCH)
    assert segment.tokens_per_s == pytest.approx(segment.samples_per_s * LENGTH)
    assert segment.metrics["block_step_time_s"].mean == pytest.approx(4.9)
    assert segment.metrics["samples_per_s"].mean == pytest.approx(6.5), "the rates of the blocks are metrics"
    assert segment.end.state == "finished"
