"""The choice of a schedule for a network, and the times it is based on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.planner.schedule import (
    Link,
    Plan,
    StageTimes,
    best_schedule,
    calibrate,
    lower_bound,
    on_wire,
    outcome,
    rule_slope,
    split_times,
    stage_times,
    uniform,
)
from tests.planner.three_nodes import NETWORKS, calibrated, on

SLOW = NETWORKS[-1]


def test_the_slow_network_of_the_three_nodes_needs_a_slope_of_3() -> None:
    pipeline = on(calibrated("1f1b", 1), SLOW)
    choice = best_schedule(pipeline)
    assert choice.best.plan == Plan("1f1b", 3)
    assert choice.rule_slope == 3
    assert choice.best.held == 7
    assert choice.best.simulation.iteration_s == pytest.approx(6.79, abs=0.01)
    assert choice.best.bound.seconds == pytest.approx(6.63, abs=0.01)
    assert choice.best.bound.binds == "outgoing link of rank 1"
    assert choice.best.gap_to_bound < 0.05
    assert [candidate.plan.warmup_slope for candidate in choice.compared][:3] == [1, 2, 3]
    assert choice.best.simulation.iteration_s / 6.54 < 1.15


def test_16_bit_messages_are_chosen_if_allowed_and_faster() -> None:
    choice = best_schedule(on(calibrated("1f1b", 1), SLOW), wires=("same", "bf16"))
    assert (choice.best.wire, choice.best.plan.warmup_slope) == ("bf16", 2)
    assert choice.best.simulation.iteration_s == pytest.approx(6.23, abs=0.01)
    assert choice.best.simulation.iteration_s / 6.54 < 1.05
    fast = best_schedule(on(calibrated("1f1b", 1), Link(0.0, 100e9)), wires=("same", "bf16"))
    assert (fast.best.wire, fast.best.plan.warmup_slope) == ("same", 1)


def test_the_limit_of_micro_batches_in_flight_is_respected() -> None:
    choice = best_schedule(on(calibrated("1f1b", 1), SLOW), max_held=5)
    assert choice.best.plan.warmup_slope == 2
    assert choice.best.held == 5
    assert best_schedule(on(calibrated("1f1b", 1), SLOW), max_held=1).best.plan.warmup_slope == 1


@given(st.integers(1, 6), st.integers(1, 30), st.floats(0.01, 2), st.floats(0, 3))
def test_the_smallest_sufficient_slope_is_chosen(ranks: int, count: int, both: float, delay: float) -> None:
    choice = best_schedule(uniform(ranks, count, StageTimes(both / 3, 2 * both / 3), Link(delay), 0.0))
    times = {candidate.plan.warmup_slope: candidate.simulation.iteration_s for candidate in choice.compared}
    best = choice.best.plan.warmup_slope
    assert times[best] <= 1.01 * min(times.values())
    assert all(seconds > 1.01 * min(times.values()) for slope, seconds in times.items() if slope < best)


@settings(max_examples=50)
@given(st.integers(2, 6), st.integers(1, 24), st.floats(0.01, 2), st.floats(0, 3), st.floats(0, 2))
def test_no_skipped_slope_is_much_faster(
    ranks: int, count: int, both: float, delay: float, message_bytes: float
) -> None:
    pipeline = uniform(ranks, count, StageTimes(both / 4, 3 * both / 4), Link(delay, 8.0), message_bytes)
    chosen = best_schedule(pipeline).best.simulation.iteration_s
    every = [outcome(Plan("1f1b", slope), pipeline).simulation.iteration_s for slope in range(1, count + 1)]
    assert chosen <= 1.03 * min(every)


def test_the_steepest_slope_is_not_skipped() -> None:
    choice = best_schedule(uniform(2, 18, StageTimes(0.125 / 4, 3 * 0.125 / 4), Link(2.0, 8.0), 0.0))
    assert choice.best.plan == Plan("1f1b", 17)


def test_a_plateau_of_slopes_before_the_steepest_does_not_end_the_search() -> None:
    """Slopes 4 to 8 differ by less than 0.1 %; slope 9 takes half the time."""
    choice = best_schedule(uniform(2, 10, StageTimes(0.003, 0.009), Link(3.0, 8.0), 0.0))
    assert choice.best.plan == Plan("1f1b", 9)


def test_few_micro_batches_also_need_a_slope_on_a_slow_link() -> None:
    """Of three micro batches on three ranks, rank 0 has all in flight at slope 1, rank 1 only at slope 2."""
    choice = best_schedule(uniform(3, 3, StageTimes(1, 3), Link(4.0), 0.0))
    assert choice.best.plan == Plan("1f1b", 2)


def test_the_rule_counts_a_round_trip_in_micro_batches() -> None:
    assert rule_slope(uniform(3, 64, StageTimes(1, 3), Link(4.0), 0.0)) == 3
    assert rule_slope(uniform(3, 64, StageTimes(1, 3), Link(0.0), 0.0)) == 1
    assert rule_slope(uniform(1, 64, StageTimes(1, 3), Link(4.0), 0.0)) == 1
    assert rule_slope(uniform(3, 8, StageTimes(0, 0), Link(4.0), 0.0)) == 7  # rank 1 warms up with all but one of them


def test_the_precision_of_messages_scales_their_size() -> None:
    pipeline = uniform(2, 4, StageTimes(1, 1), SLOW, 4000.0)
    assert on_wire(pipeline, "same", 4) == pipeline
    assert on_wire(pipeline, "bf16", 4).forward_bytes == on_wire(pipeline, "fp16", 4).backward_bytes == 2000
    assert on_wire(pipeline, "int8", 4).forward_bytes == 1000
    assert on_wire(pipeline, "bf16", 2) == pipeline


@settings(max_examples=50)
@given(st.sampled_from(["gpipe", "1f1b", "zb-h1"]), st.integers(1, 5), st.integers(1, 20), st.floats(0.01, 5))
def test_a_calibrated_pipeline_takes_the_measured_time(name: str, ranks: int, count: int, both: float) -> None:
    link = Link(0.001, 1e9)
    truth = uniform(ranks, count, split_times(both, 2.0), link, 1e6, step_s=0.25)
    measured = outcome(Plan(name), truth).simulation.iteration_s
    times = calibrate(measured, Plan(name), truth, backward_per_forward=2.0)
    assert times.both_s == pytest.approx(both, rel=1e-4)
    assert times.backward_s == pytest.approx(2 * times.forward_s)


def test_a_measured_time_below_the_transfers_is_refused() -> None:
    pipeline = uniform(3, 64, StageTimes(0, 0), Link(1.0), 0.0)
    with pytest.raises(ValueError, match=r"iteration_s 0.5 is less than the transfers .*; check"):
        calibrate(0.5, Plan("1f1b"), pipeline, backward_per_forward=2.0)


def test_timers_of_each_rank_are_divided_by_its_micro_batches() -> None:
    timers = {"forward-compute": [0.8, 0.4], "backward-compute": [1.6, 0.8]}
    assert stage_times(timers, 8) == (StageTimes(0.1, 0.2), StageTimes(0.05, 0.1))
    split = stage_times({**timers, "backward-weight": [0.4, 0.4]}, 8)
    assert split[1].backward_s == pytest.approx(0.15)
    assert split[1].weight_s == 0.05


def test_weight_gradients_are_half_of_the_backward_pass_without_recomputation() -> None:
    assert split_times(3.0, 2.0) == StageTimes(1.0, 2.0, 1.0)
    assert split_times(4.0, 3.0) == StageTimes(1.0, 3.0, 1.0)
    with pytest.raises(ValueError, match="backward_per_forward -1 is out of range; use 0 to 100"):
        split_times(1.0, -1.0)


def test_the_bound_names_the_limiting_resource() -> None:
    assert lower_bound(uniform(1, 8, StageTimes(1, 2), SLOW, 1e9)) == (24.0, "compute of rank 0")
    assert lower_bound(uniform(2, 1, StageTimes(1, 2), Link(1.0), 0.0)).seconds == 2 * 3 + 2
    uneven = uniform(2, 8, StageTimes(1, 2), Link(0.0), 0.0)
    slow_first = lower_bound(uneven.__class__((StageTimes(4, 4), StageTimes(1, 1)), 8, uneven.links))
    assert slow_first == (64.0, "compute of rank 0")
