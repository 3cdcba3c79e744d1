"""Simulated schedules agree with closed formulas and satisfy invariants."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Literal, TypeVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parlab.planner.schedule import (
    MAX_PASSES,
    Link,
    Pipeline,
    Plan,
    Simulation,
    StageTimes,
    lower_bound,
    outcome,
    simulate,
    uniform,
)
from parlab.planner.schedule.pipeline import check_passes
from runners.schedules import Operation, gpipe, micro_batches_in_flight, one_f_one_b, schedule
from runners.schedules import bubble_fraction as bubble_over_ideal
from tests.planner.three_nodes import MEASURED_S, NETWORKS, calibrated, errors, on

FREE = Link()
T = TypeVar("T")
ranks_ = st.integers(1, 9)
counts = st.integers(1, 24)
seconds = st.integers(0, 50).map(lambda value: value / 16)
positive = st.integers(1, 50).map(lambda value: value / 16)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, int, int]:
    """Draw a schedule with ranks and micro batches that it supports."""
    name, ranks, count = (
        draw(st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"])),
        draw(ranks_),
        draw(counts),
    )
    if name == "interleaved-1f1b":
        return Plan(name, virtual_stages=draw(st.integers(1, 3))), ranks, ranks * draw(st.integers(1, 4))
    return Plan(name, draw(st.integers(1, 5)) if name == "1f1b" else 1), ranks, count


@st.composite
def pipelines(draw: st.DrawFn, ranks: int, count: int) -> Pipeline:
    """Draw unequal stages and links, some of them without delay or limit."""
    stages = []
    for _ in range(ranks):
        backward = draw(seconds)
        stages.append(StageTimes(draw(seconds), backward, backward * draw(st.sampled_from([0, 0.5, 1]))))
    rates = st.sampled_from([math.inf, 8.0, 2.0])
    links = tuple(Link(draw(seconds), draw(rates)) for _ in range(ranks))
    return Pipeline(tuple(stages), count, links, draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(seconds))


def time_of(plan: Plan, pipeline: Pipeline) -> float:
    return outcome(plan, pipeline).simulation.iteration_s


@given(ranks_, counts, positive, positive, st.integers(1, 4))
def test_without_transfers_gpipe_and_1f1b_have_the_bubble_of_the_formula(
    ranks: int, count: int, forward: float, backward: float, slope: int
) -> None:
    pipeline = uniform(ranks, count, StageTimes(forward, backward), FREE, 1e6)
    expected = count * (forward + backward) * (1 + bubble_over_ideal(ranks, count))
    assert time_of(Plan("gpipe"), pipeline) == pytest.approx(expected)
    assume(count >= ranks)
    assert time_of(Plan("1f1b", slope), pipeline) == pytest.approx(expected)


@given(st.integers(2, 8), st.integers(1, 4), st.integers(1, 4), positive, positive)
def test_chunks_divide_the_bubble(ranks: int, rounds: int, chunks: int, forward: float, backward: float) -> None:
    count, both = rounds * ranks, forward + backward
    simulation = outcome(
        Plan("interleaved-1f1b", virtual_stages=chunks),
        uniform(ranks, count, StageTimes(forward, backward), FREE, 1e6),
    ).simulation
    assert simulation.iteration_s == pytest.approx(count * both + (ranks - 1) * both / chunks)
    assert simulation.bubble_fraction == pytest.approx(1 - count * both / simulation.iteration_s)


@given(ranks_, counts, positive, positive, st.floats(0, 1))
def test_zero_bubble_h1_saves_the_weight_gradients_of_all_ranks_but_one(
    ranks: int, count: int, forward: float, of_input: float, share: float
) -> None:
    assume(count >= ranks)
    weight = share * min(forward, of_input)
    times = StageTimes(forward, of_input + weight, weight)
    iteration_s = time_of(Plan("zb-h1"), uniform(ranks, count, times, FREE, 1e6))
    assert iteration_s == pytest.approx(count * (times.both_s) + (ranks - 1) * (forward + of_input - weight))


def test_gpipe_waits_for_a_link_that_is_slower_than_its_forward_passes() -> None:
    """Each activation takes 2 s on the link and each forward pass 1 s; backward passes of 4 s hide their messages."""
    simulation = simulate(gpipe(2, 8), uniform(2, 8, StageTimes(1, 4), Link(0.5, 8.0), 2.0))
    # The first pass, eight activations one after the other, their delay, then all of rank 1 and one gradient back.
    assert simulation.iteration_s == 1 + 8 * 2 + 0.5 + 1 + 8 * 4 + 2 + 0.5 + 4
    assert [transfer.left_s for transfer in simulation.transfers[0]] == [1 + 2 * (k + 1) for k in range(8)]


def test_both_directions_share_the_outgoing_link() -> None:
    """The middle of three ranks sends activations and gradients of 1 s each: 2 s per micro batch."""
    times = StageTimes(0.25, 0.25)
    simulation = simulate(one_f_one_b(3, 32, 8), uniform(3, 32, times, Link(0.0, 8.0), 1.0))
    sent = simulation.transfers[1]
    assert len(sent) == 64
    assert all(before.left_s <= after.begin_s for before, after in pairwise(sent))
    bound = lower_bound(uniform(3, 32, times, Link(0.0, 8.0), 1.0))
    assert bound.binds == "outgoing link of rank 1"
    assert bound.seconds <= simulation.iteration_s < 1.2 * bound.seconds


def test_a_round_trip_per_micro_batch_slows_1f1b_and_a_slope_of_3_hides_it() -> None:
    """With a delay as long as a micro batch, slope 1 waits two thirds of a round trip per micro batch."""
    pipeline = uniform(3, 64, StageTimes(1, 3), Link(4.0), 1.0)
    slope_1, slope_3 = time_of(Plan("1f1b"), pipeline), time_of(Plan("1f1b", 3), pipeline)
    assert slope_1 == pytest.approx(64 * (4 + 2 * 4 * 2 / 3), rel=0.05)
    assert slope_3 == lower_bound(pipeline).seconds == 64 * 4 + 2 * (4 + 2 * 4)


@settings(max_examples=50)
@given(st.data())
def test_every_pass_and_message_occurs_once_and_after_its_input(data: st.DataObject) -> None:
    plan, ranks, count = data.draw(plans())
    pipeline = data.draw(pipelines(ranks, count))
    simulation = outcome(plan, pipeline).simulation
    operations = schedule(plan.name, ranks, count, warmup_slope=plan.warmup_slope, virtual_stages=plan.virtual_stages)
    for rank, passes in enumerate(simulation.passes):
        assert [Operation(step.kind, step.micro_batch, step.chunk) for step in passes] == operations[rank]
        assert all(before.end_s <= after.begin_s for before, after in pairwise(passes))
        assert simulation.held[rank] == micro_batches_in_flight(operations[rank])
    arrivals = {(t.kind, t.micro_batch, t.target): t for sent in simulation.transfers for t in sent}
    if plan.virtual_stages == 1:
        assert sum(map(len, simulation.transfers)) == len(arrivals) == 2 * count * (ranks - 1)
        for rank, passes in enumerate(simulation.passes):
            for step in passes:
                kind: Literal["activations", "gradients"] = "activations" if step.kind == "F" else "gradients"
                message = arrivals.get((kind, step.micro_batch, rank)) if step.kind != "W" else None
                assert message is None or message.arrival_s <= step.begin_s
    for sent in simulation.transfers:
        assert all(before.left_s <= after.begin_s for before, after in pairwise(sent))


@settings(max_examples=50)
@given(st.data())
def test_nothing_is_faster_than_the_bound(data: st.DataObject) -> None:
    plan, ranks, count = data.draw(plans())
    pipeline = data.draw(pipelines(ranks, count))
    simulated = outcome(plan, pipeline)
    assert simulated.simulation.iteration_s >= simulated.bound.seconds * (1 - 1e-9)


@settings(max_examples=50)
@given(st.data())
def test_a_slower_link_or_stage_never_makes_an_iteration_faster(data: st.DataObject) -> None:
    plan, ranks, count = data.draw(plans())
    pipeline = data.draw(pipelines(ranks, count))
    rank, extra = data.draw(st.integers(0, ranks - 1)), data.draw(positive)
    original = time_of(plan, pipeline)
    link, stage = pipeline.links[rank], pipeline.stages[rank]
    slower = [
        replace(pipeline, links=_with(pipeline.links, rank, link._replace(delay_s=link.delay_s + extra))),
        replace(pipeline, links=_with(pipeline.links, rank, Link(link.delay_s, 1.0))),
        replace(pipeline, stages=_with(pipeline.stages, rank, stage._replace(forward_s=stage.forward_s + extra))),
        replace(pipeline, forward_bytes=pipeline.forward_bytes + extra),
        replace(pipeline, step_s=pipeline.step_s + extra),
        replace(pipeline, sends_block=True),
    ]
    assert all(time_of(plan, changed) >= original - 1e-9 for changed in slower)


def _with(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


@settings(max_examples=60)
@given(st.data())
def test_no_schedule_deadlocks_with_the_transfers_of_the_engine(data: st.DataObject) -> None:
    """Late receives or blocking sends alone do not deadlock; only both together can."""
    plan, ranks, count = data.draw(plans())
    pipeline = data.draw(pipelines(ranks, count))
    unchanged = time_of(plan, pipeline)
    assert time_of(plan, replace(pipeline, receives_ahead=False)) >= unchanged - 1e-9
    assert time_of(plan, replace(pipeline, sends_block=True)) >= unchanged - 1e-9


def test_a_deadlock_names_the_ranks() -> None:
    pipeline = uniform(2, 4, StageTimes(1, 1), Link(1.0), 1.0, sends_block=True, receives_ahead=False)
    with pytest.raises(
        ValueError, match=r"deadlock: rank 0 at .* rank 1 at .* wait for each other; post receives ahead"
    ):
        simulate(one_f_one_b(2, 4), pipeline)


@pytest.mark.parametrize(("name", "limit"), [("gpipe", 0.03), ("1f1b", 0.04)])
def test_a_calibration_on_the_default_network_predicts_the_published_times_of_the_others(
    name: str, limit: float
) -> None:
    relative_errors = errors(name)
    assert len(relative_errors) == 9
    assert sum(relative_errors) / 9 < limit


def test_published_slowdowns_are_predicted() -> None:
    slowdowns = {
        name: time_of(Plan(name), on(calibrated(name, 1), NETWORKS[-1])) / times[0][0]
        for name, times in MEASURED_S.items()
    }
    assert slowdowns["gpipe"] == pytest.approx(8.38 / 6.64, rel=0.03)
    assert slowdowns["1f1b"] == pytest.approx(11.21 / 6.54, rel=0.03)


def test_a_simulation_without_work_has_no_bubble() -> None:
    simulation = outcome(Plan("gpipe"), uniform(2, 2, StageTimes(0, 0), FREE, 0)).simulation
    assert (simulation.iteration_s, simulation.bubble_fraction) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": (StageTimes(-1, 1),) * 2}, r"forward_s of stage 0 -1 is out of range; use 0 to"),
        ({"stages": (StageTimes(1, math.nan),) * 2}, r"backward_s of stage 0 nan is out of range"),
        ({"stages": (StageTimes(1, 1, 2),) * 2}, r"weight_s of stage 0 2 is more than backward_s 1.*use at most that"),
        ({"stages": (StageTimes(1, 1),)}, r"links has 2 entries for 1 stages; give one for each"),
        ({"stages": ()}, r"stages 0 is out of range; use 1 to 64"),
        ({"num_micro_batches": 5000}, r"num_micro_batches 5000 is out of range; use 1 to 4096"),
        ({"links": (Link(-1.0), FREE)}, r"delay_s of link 0 -1 is out of range"),
        ({"links": (Link(0.0, 0.0), FREE)}, r"bits_per_s of link 0 0 is out of range; use at least 1"),
        ({"links": (Link(0.0, math.nan), FREE)}, r"bits_per_s of link 0 nan is out of range"),
        ({"forward_bytes": -1.0}, r"forward_bytes -1 is out of range"),
        ({"step_s": math.inf}, r"step_s inf is out of range"),
    ],
)
def test_an_error_names_field_value_and_remedy(change: dict[str, object], message: str) -> None:
    pipeline = uniform(2, 4, StageTimes(1, 1), FREE, 1.0)
    with pytest.raises(ValueError, match=message):
        replace(pipeline, **change)  # type: ignore[arg-type]


def test_a_plan_for_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="the plan has 3 ranks, but the pipeline has 2 stages"):
        simulate(gpipe(3, 4), uniform(2, 4, StageTimes(1, 1), FREE, 1.0))


def test_a_simulation_with_too_many_passes_is_refused() -> None:
    check_passes([MAX_PASSES // 2] * 2)
    with pytest.raises(ValueError, match="65537 passes are more than 65536"):
        check_passes([MAX_PASSES, 1])
    with pytest.raises(ValueError, match="524288 passes are more than 65536"):
        simulate(gpipe(64, 4096), uniform(64, 4096, StageTimes(1, 1), FREE, 1.0))


def test_a_single_rank_has_no_transfers() -> None:
    simulation: Simulation = simulate(gpipe(1, 3), uniform(1, 3, StageTimes(1, 2), Link(9.0, 8.0), 5.0))
    assert simulation.iteration_s == 9
    assert simulation.transfers == [[]]
