"""The input of a simulation, its validation and its answer."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from parlab.planner.schedule import Plan, Scenario, answer, code_of, plan_of, refusals, written


def test_milliseconds_gigabits_and_megabytes_become_seconds_bits_and_bytes() -> None:
    pipeline = Scenario.model_validate(
        {"stages": 2, "forward_ms": "20 30", "backward_ms": 60, "delay_ms": [1, 2], "message_mb": 4, "optimizer_ms": 5}
    ).pipeline()
    assert [stage.forward_s for stage in pipeline.stages] == [0.02, 0.03]
    assert [stage.weight_s for stage in pipeline.stages] == [0.03, 0.03]
    assert [link.delay_s for link in pipeline.links] == [0.001, 0.002]
    assert pipeline.links[0].bits_per_s == 1e9
    assert pipeline.forward_bytes == pipeline.backward_bytes == 4e6
    assert pipeline.step_s == 0.005


def test_an_empty_bandwidth_is_no_limit_and_bf16_halves_fp32_messages() -> None:
    pipeline = Scenario.model_validate({"bandwidth_gbps": "", "wire": "bf16", "message_mb": 4}).pipeline()
    assert pipeline.links[0].bits_per_s == math.inf
    assert pipeline.forward_bytes == 2e6
    computed_in_16_bits = Scenario.model_validate({"wire": "bf16", "message_mb": 4, "number_bytes": "2"}).pipeline()
    assert computed_in_16_bits.forward_bytes == 4e6


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("gpipe", Plan("gpipe")),
        ("1f1b", Plan("1f1b", 1)),
        ("1f1b-3", Plan("1f1b", 3)),
        ("interleaved-1f1b-4", Plan("interleaved-1f1b", 1, 4)),
        ("zb-h1", Plan("zb-h1")),
    ],
)
def test_schedule_names_survive_a_round_trip(text: str, plan: Plan) -> None:
    assert plan_of(text) == plan
    assert code_of(plan) == text


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        ({"stages": 0}, "stages", "stages 0 is invalid: input should be greater than or equal to 1"),
        ({"stages": "many"}, "stages", "stages many is invalid"),
        ({"forward_ms": "1 -2"}, "forward_ms", "forward_ms -2 is invalid"),
        ({"forward_ms": "1 nan"}, "forward_ms", "forward_ms nan is invalid"),
        ({"forward_ms": ""}, "forward_ms", "forward_ms (empty) is invalid"),
        ({"backward_ms": [1, 2]}, "backward_ms", "backward_ms has 2 numbers for 3 stages; give one, or 3"),
        ({"backward_ms": 5, "weight_ms": 6}, "weight_ms", "weight_ms 6 is more than backward_ms 5; use at most that"),
        ({"bandwidth_gbps": 0}, "bandwidth_gbps", "bandwidth_gbps 0 is invalid"),
        ({"schedules": ["2f2b"]}, "schedules", "schedules: unknown schedule '2f2b'; use gpipe, 1f1b,"),
        ({"schedules": ["gpipe-3"]}, "schedules", "schedules: unknown schedule 'gpipe-3'"),
        ({"colour": "blue"}, "colour", "unknown field colour; use one of stages, micro_batches"),
    ],
)
def test_an_error_names_field_value_and_remedy(data: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate(data)
    (problem,) = refusals(caught.value)
    assert problem.field == field
    assert message in problem.message


def test_best_is_replaced_by_the_best_slope_and_each_schedule_is_simulated_once() -> None:
    simulated = answer(Scenario(schedules=["1f1b-3", "best", "gpipe", "gpipe"]))
    assert simulated.choice is not None
    assert [code_of(outcome.plan) for outcome in simulated.outcomes] == ["1f1b-3", "gpipe"]
    assert simulated.choice.best.plan == Plan("1f1b", 3)


def test_an_unsupported_schedule_is_refused_and_the_others_are_simulated() -> None:
    simulated = answer(Scenario(stages=3, micro_batches=4, schedules=["interleaved-1f1b-2", "1f1b"]))
    assert [code_of(outcome.plan) for outcome in simulated.outcomes] == ["1f1b"]
    assert simulated.refused[0].message == "num_micro_batches 4 is not a multiple of the 3 ranks; use a multiple of 3"


def test_a_deadlock_is_refused() -> None:
    simulated = answer(Scenario(sends_block=True, receives_ahead=False, schedules=["1f1b"]))
    assert not simulated.outcomes
    assert "deadlock: " in simulated.refused[0].message


def test_the_json_answer_agrees_with_the_simulation() -> None:
    scenario = Scenario(stages=2, micro_batches=2, schedules=["gpipe"])
    (outcome,) = written(scenario, with_timeline=True).outcomes
    (expected,) = answer(scenario).outcomes
    assert outcome.iteration_s == expected.simulation.iteration_s
    assert outcome.passes is not None
    assert outcome.transfers is not None
    assert len(outcome.passes) == 8
    assert {(t.kind, t.source, t.target) for t in outcome.transfers} == {("activations", 0, 1), ("gradients", 1, 0)}
    assert written(scenario).outcomes[0].passes is None
