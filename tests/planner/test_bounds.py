"""No order of the passes of a pipeline is faster than its bound, and neither is a measured run."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.planner.schedule import (
    Link,
    Pipeline,
    Plan,
    Scenario,
    StageTimes,
    answer,
    bound_of_any,
    fastest_of,
    outcome,
    share_within,
    simulate,
    uniform,
    written,
)
from runners.schedules import Operation, Schedule
from tests.planner.test_simulation import pipelines, plans


def any_order(random: Random, ranks: int, count: int, chunks: int, *, is_split: bool) -> Schedule:
    """Return operation lists of a random order that respects the dependencies, so that it cannot deadlock."""
    last = ranks * chunks - 1
    # A state per micro batch: the next stage, forward while it goes to the last stage, then backward.
    waiting = [(micro_batch, 0, True) for micro_batch in range(count)]
    deferred: list[tuple[int, Operation]] = []
    order: list[list[Operation]] = [[] for _ in range(ranks)]
    while waiting or deferred:
        if deferred and (not waiting or random.random() < 0.3):
            rank, operation = deferred.pop(random.randrange(len(deferred)))
            order[rank].append(operation)
            continue
        micro_batch, stage, is_forward = waiting.pop(random.randrange(len(waiting)))
        chunk, rank = divmod(stage, ranks)
        order[rank].append(Operation("F" if is_forward else "I" if is_split else "B", micro_batch, chunk))
        if is_split and not is_forward:
            deferred.append((rank, Operation("W", micro_batch, chunk)))
        if is_forward:
            waiting.append((micro_batch, stage + 1, True) if stage < last else (micro_batch, last, False))
        elif stage:
            waiting.append((micro_batch, stage - 1, False))
    return order


@settings(max_examples=150)
@given(
    st.data(), st.integers(1, 5), st.integers(1, 6), st.integers(1, 3), st.booleans(), st.randoms(use_true_random=False)
)
def test_no_order_of_the_passes_is_faster_than_the_bound(
    data: st.DataObject, ranks: int, count: int, chunks: int, is_split: bool, random: Random
) -> None:
    pipeline = data.draw(pipelines(ranks, count))
    order = any_order(random, ranks, count, chunks, is_split=is_split)
    taken = simulate(order, pipeline, num_chunks=chunks).iteration_s
    assert taken >= bound_of_any(pipeline, (chunks,)).seconds * (1 - 1e-9)


@settings(max_examples=100)
@given(st.data())
def test_no_schedule_is_faster_than_the_bound_of_any(data: st.DataObject) -> None:
    plan, ranks, count = data.draw(plans())
    pipeline = data.draw(pipelines(ranks, count))
    taken = outcome(plan, pipeline).simulation.iteration_s
    assert taken >= bound_of_any(pipeline, (1, plan.virtual_stages)).seconds * (1 - 1e-9)


@settings(max_examples=100)
@given(st.data(), st.floats(0.05, 2.0))
def test_a_measured_run_is_never_faster_than_the_bound_of_its_passes(data: st.DataObject, share: float) -> None:
    plan, ranks, count = data.draw(plans())
    pipeline = data.draw(pipelines(ranks, count))
    measured_s = share * outcome(plan, pipeline).simulation.iteration_s
    chunks = (1, plan.virtual_stages)
    found = share_within(pipeline, measured_s, chunks)
    without_passes = replace(pipeline, stages=(StageTimes(0, 0),) * ranks, step_s=0.0)
    if found is None:
        assert bound_of_any(without_passes, chunks).seconds > measured_s
        return
    stages = tuple(StageTimes(*(found * seconds for seconds in times)) for times in pipeline.stages)
    scaled = replace(pipeline, stages=stages, step_s=found * pipeline.step_s)
    assert bound_of_any(scaled, chunks).seconds <= measured_s * (1 + 1e-9)


def test_the_fastest_passes_are_taken_part_by_part() -> None:
    first, second = StageTimes(1, 4, 1), StageTimes(2, 3, 2)
    assert fastest_of([[first], [second]]) == (StageTimes(1, 2, 1),)


def test_a_simulation_has_one_bound_that_no_schedule_of_it_beats() -> None:
    """1F1B of whole backward passes cannot reach what a schedule with deferred weight gradients does."""
    scenario = Scenario(stages=4, micro_batches=8, delay_ms=[0.0], schedules=["1f1b", "zb-h1", "interleaved-1f1b-2"])
    result = answer(scenario)
    assert result.bound is not None
    fastest = min(found.simulation.iteration_s for found in result.outcomes)
    assert result.bound.seconds <= fastest < max(found.bound.seconds for found in result.outcomes)
    assert written(scenario).bound_s == result.bound.seconds


def test_links_faster_than_stated_show_nothing_about_passes() -> None:
    pipeline = uniform(3, 64, StageTimes(0.01, 0.02), Link(0.0, 8.0), 1.0)
    assert share_within(pipeline, 1.0) is None
    assert share_within(pipeline, math.inf) == 1.0
    assert share_within(uniform(1, 8, StageTimes(1, 2), Link(), 0.0), 12.0) == pytest.approx(0.5)


def test_a_plan_of_one_rank_takes_as_long_as_its_bound() -> None:
    pipeline = Pipeline((StageTimes(1, 2, 1),), 8, (Link(),))
    assert outcome(Plan("1f1b"), pipeline).simulation.iteration_s == bound_of_any(pipeline).seconds == 24
