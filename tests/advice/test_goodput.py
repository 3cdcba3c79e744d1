"""Goodput: parts that add up over restarts, and checkpoint intervals checked against a simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.advice.goodput import GPU_FAILURE_S, GPUS, Failures, Tries, daly, goodput, intervals, lost_share, young


def attempt(first: int, count: int, start_s: float, *, has_failed: bool = False, **fields: float) -> Tries:
    """Steps of 2 s with 0.5 s between them after 10 s of start-up; the first one takes 5 s longer."""
    lengths = np.full(count, 2.0)
    lengths[:1] += 5.0
    ends = start_s + 10 + np.cumsum(lengths) + 0.5 * np.arange(count)
    last_s = float(ends[-1]) if count else start_s + 10
    values = {"waited_s": 3.0, "ended_s": last_s + (30.0 if has_failed else 1.0), **fields}
    return Tries(
        values["waited_s"], start_s, values["ended_s"], has_failed, np.arange(first, first + count), ends, lengths,
        fields.get("checkpoints_s", 0.0), fields.get("last_checkpoint_s", 0.0),
    )  # fmt: skip


def test_steps_that_a_restart_makes_again_are_lost() -> None:
    first = attempt(1, 100, 0.0, has_failed=True)
    second = attempt(81, 40, 1000.0)
    result = goodput([first, second])
    assert {part.key: part.seconds for part in result.parts} == pytest.approx({
        "progress": 2 * 120.0,  # 80 of the first and 40 of the second
        "lost": 2 * 20.0,
        "checkpoint": 0.0,
        "compile": 10.0,
        "between": 0.5 * (99 + 39),
        "startup": 20.0,
        "silent": 30.0,
        "finish": 1.0,
        "queue": 6.0,
    }, rel=0.03)  # fmt: skip
    assert (result.lost_steps, result.failures, result.attempts) == (20, 1, 2)
    assert result.failure_every_s == pytest.approx(first.ended_s + second.ended_s - 1000)


def test_a_run_without_steps_and_one_that_saves_checkpoints() -> None:
    assert goodput([]).share == 0.0
    failed = attempt(1, 0, 0.0, has_failed=True)
    assert goodput([failed]).seconds("silent") == pytest.approx(40.0)
    saved = goodput([attempt(1, 100, 0.0, checkpoints_s=20.0)])
    assert saved.seconds("checkpoint") == 20.0
    assert saved.seconds("progress") == pytest.approx(180.0)
    assert saved.failure_every_s is None


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30), st.booleans(), st.floats(0, 100)), max_size=5),
)
def test_the_parts_add_up_to_the_wall_time(shapes: list[tuple[int, int, bool, float]]) -> None:
    attempts = [
        attempt(first, count, 1000.0 * number, has_failed=failed, waited_s=waited)
        for number, (first, count, failed, waited) in enumerate(shapes)
    ]
    result = goodput(attempts)
    expected = sum(each.waited_s + each.ended_s - each.started_s for each in attempts)
    assert result.wall_s == pytest.approx(expected)
    assert all(part.seconds >= -1e-9 for part in result.parts)


def test_intervals_for_1_to_16384_gpus() -> None:
    rows = intervals(60.0, 86_400.0 * 365, 300.0)
    assert [row.gpus for row in rows] == list(GPUS)
    assert rows[-1].gpus == 16_384
    assert [row.daly_s for row in rows] == sorted((row.daly_s for row in rows), reverse=True)
    assert rows[0].young_s == pytest.approx((2 * 60 * 86_400 * 365) ** 0.5)
    assert daly(100.0, 40.0) == 40.0
    assert daly(80.0, 40.0) == 40.0
    with pytest.raises(ValueError, match="checkpoint_s 0 is out of range"):
        intervals(0.0, 1.0)


def test_dalys_interval_loses_least_in_a_simulation() -> None:
    generator = np.random.default_rng(1)
    checkpoint_s, every_s = 5.0, 300.0

    def simulated(interval_s: float) -> float:
        failures, wall_s = generator.exponential(every_s, 20_000), 0.0
        # Between two failures only whole intervals with their checkpoint count.
        done = np.floor(failures / (interval_s + checkpoint_s)) * interval_s
        wall_s = float(failures.sum())
        return 1 - float(done.sum()) / wall_s

    best = daly(checkpoint_s, every_s)
    assert best == pytest.approx(young(checkpoint_s, every_s), rel=0.15)
    assert simulated(best) == pytest.approx(lost_share(checkpoint_s, every_s, best), abs=0.01)
    assert simulated(best) < min(simulated(best / 3), simulated(3 * best))


def test_a_checkpoint_after_the_last_step_is_none_of_its_end() -> None:
    saved = goodput([attempt(1, 100, 0.0, last_checkpoint_s=0.75)])
    assert saved.seconds("checkpoint") == 0.75
    assert saved.seconds("finish") == pytest.approx(0.25)
    longer = goodput([attempt(1, 100, 0.0, last_checkpoint_s=9.0)])
    assert (longer.seconds("checkpoint"), longer.seconds("finish")) == (1.0, 0.0)


def test_few_failures_do_not_measure_the_time_between_them() -> None:
    assert Failures(2, 7200.0).gpu_every_s == GPU_FAILURE_S
    assert "published" in Failures(2, 7200.0).source
    assert Failures(3, 10800.0).gpu_every_s == 3600.0
    assert Failures(3, 10800.0).source == "measured: 3 attempts were lost in 3 GPU hours"
