from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.formats import read_document
from parlab.ingest.batches.events import Limits, parse
from parlab.ingest.readings.imported_summary import segment_summary
from parlab.ingest.summaries.summary import summarise, summary_of
from parlab.lab.models import Attempt
from parlab.series import store
from parlab.series.columns import Columns

from .output import event, step, training

RESOLVED = {"train": {"global_batch_size": 4}, "model": {"sequence_length": 16}}


def summary(output: bytes) -> dict[str, Any]:
    series: dict[str, dict[int, Columns]] = {}
    for (metric, rank), columns in parse(output, limits=Limits(8)).series.items():
        series.setdefault(metric, {})[rank] = columns
    parsed = summary_of(series, RESOLVED)
    json.dumps(parsed, allow_nan=False)
    return parsed


def test_the_summary_of_a_stored_training(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    store.append(attempt.pk, parse(training(10), limits=Limits(2)).series)
    assert summarise(attempt.pk, attempt.run.resolved) == {
        "steps": {"count": 9, "first": 2, "last": 10, "left_out": [1], "why": "warm-up"},
        "step_time_s": {"median": 0.75, "p10": 0.75, "p90": 0.75, "mean": 0.75, "mean_without_first": 0.75},
        "samples_per_s": pytest.approx(4 / 0.75),
        "tokens_per_s": pytest.approx(4 * 16 / 0.75),
        "ms_per_sample": pytest.approx(750 / 4),
        "memory_peak_bytes": {"min": 1000, "max": 1001, "by_rank": {"0": 1000, "1": 1001}},
        "timers_s": {
            "backward-compute": {"median": 0.25, "min": 0.25, "max": 0.25, "by_rank": {"0": 0.25, "1": 0.25}},
            "forward-compute": {
                "median": pytest.approx(0.1625),
                "min": 0.1,
                "max": 0.225,
                "by_rank": {"0": 0.1, "1": 0.225},
            },
        },
        "loss": {"first": 9.875, "last": 8.75},
        "basis": "median of 9 steps (2 to 10), slowest rank of each; step 1 left out as warm-up",
    }


def test_a_summary_takes_two_queries(
    make_attempt: Callable[..., Attempt], django_assert_num_queries: Callable[[int], Any]
) -> None:
    attempt = make_attempt()
    store.append(attempt.pk, parse(training(10), limits=Limits(2)).series)
    with django_assert_num_queries(2):
        summarise(attempt.pk, RESOLVED)


def test_the_time_of_a_step_is_that_of_its_slowest_rank() -> None:
    times = {0: [1.0, 5.0, 1.0], 1: [2.0, 2.0, 9.0]}
    result = summary(b"".join(step(n + 1, rank=r, step_time_s=times[r][n]) for n in range(3) for r in times))
    assert result["step_time_s"]["median"] == 5.0
    assert result["step_time_s"]["mean_without_first"] == 7.0
    assert result["step_time_s"]["p10"] == pytest.approx(np.percentile([2, 5, 9], 10))


def test_the_mean_without_the_first_step_counts_further_warm_up_steps() -> None:
    result = summary(b"".join(step(n, warmup=n <= 3, step_time_s=float(n)) for n in range(1, 6)))
    assert result["step_time_s"]["mean"] == 4.5
    assert result["step_time_s"]["mean_without_first"] == 3.5
    assert result["basis"].endswith("; steps 1 to 3 left out as warm-up")


def test_nothing_measured_is_an_empty_summary() -> None:
    assert summary(b"hello\n" + event("telemetry", rank=-1, memory_bytes=5)) == {}


def test_a_run_that_fails_in_its_warm_up_has_memory_and_loss_but_no_rates() -> None:
    result = summary(step(1, warmup=True, loss=3.0, memory_peak_bytes=7, timers_s={"optimizer": 1.0}))
    assert result == {
        "steps": {"count": 0, "left_out": [1], "why": "warm-up"},
        "basis": "no step is counted; step 1 left out as warm-up",
        "memory_peak_bytes": {"min": 7, "max": 7, "by_rank": {"0": 7}},
        "loss": {"first": 3.0, "last": 3.0},
    }


def test_a_step_without_the_time_of_every_rank_is_excluded() -> None:
    output = b"".join(step(n, rank=r) for n in (1, 2, 3) for r in (0, 1)) + step(4, rank=0, step_time_s=99.0)
    result = summary(output)
    assert result["steps"] == {
        "count": 3,
        "first": 1,
        "last": 3,
        "left_out": [4],
        "why": "not timed by every rank",
    }
    assert result["step_time_s"]["mean"] == 0.5


def test_a_step_that_is_repeated_after_a_restart_counts_once() -> None:
    result = summary(step(1) + step(2, step_time_s=8.0) + step(2, step_time_s=1.0))
    assert result["steps"]["count"] == 2
    assert result["step_time_s"]["mean"] == 0.75


def test_a_diverged_training_has_a_first_loss_and_no_last_one() -> None:
    result = summary(step(1, loss=5.0) + step(2, loss=math.nan) + step(3, loss=math.inf))
    assert result["loss"] == {"first": 5.0, "not_finite": 2, "first_not_finite": 2, "before": [5.0]}


def test_the_basis_names_a_single_step() -> None:
    assert summary(step(1))["basis"] == "1 step (1), its slowest rank"


def test_memory_of_the_node_is_not_a_peak_of_a_rank() -> None:
    result = summary(step(1, memory_peak_bytes=5) + event("telemetry", rank=-1, memory_peak_bytes=50))
    assert result["memory_peak_bytes"]["by_rank"] == {"0": 5}


def test_thousands_of_warm_up_steps_do_not_fill_the_summary() -> None:
    result = summary(b"".join(step(n, warmup=True) for n in range(1, 5_001)) + step(5_001))
    assert len(result["steps"]["left_out"]) == 1_000
    assert result["basis"].endswith("steps 1 to 5000 left out as warm-up")


numbers = st.one_of(st.floats(), st.sampled_from([0.0, 1e-320, 1e300, 2**62]), st.none())
steps = st.builds(
    lambda number, rank, warmup, time, peak, loss: event(
        rank=rank,
        step=number,
        warmup=warmup,
        step_time_s=time,
        memory_peak_bytes=peak,
        loss=loss,
        timers_s={"optimizer": time},
    ),
    st.integers(0, 4),
    st.integers(-1, 2),
    numbers,
    numbers,
    numbers,
    numbers,
)


@given(st.lists(steps, max_size=8))
def test_the_summary_is_json_with_finite_numbers_for_any_output(lines: list[bytes]) -> None:
    result = summary(b"".join(lines))  # which serialises it without NaN
    if "step_time_s" in result:
        assert result["steps"]["count"] >= 1
        assert result["step_time_s"]["p10"] <= result["step_time_s"]["median"] <= result["step_time_s"]["p90"]


def test_the_summary_of_an_import_tells_the_kind_of_what_is_not_printed() -> None:
    lines = [f"step {n}: loss 2.{n}, avg step time: {500 + n} ms, mfu: 0.4{n}\n" for n in (1, 2, 3)]
    (segment,) = read_document(lines, file="log").segments
    summary = segment_summary(segment, {}, None)
    assert summary["step_time_s"]["median"] == 0.503
    assert summary["mfu_pct"] == pytest.approx(42.0)
    assert summary["kinds"] == {"step_time_s": "average"}
