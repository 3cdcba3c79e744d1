"""Questions to the simulation as people write them, and what is answered."""

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


def test_an_empty_rate_is_no_limit_and_a_narrow_wire_halves_messages() -> None:
    pipeline = Scenario.model_validate({"bandwidth_gbps": "", "wire": "bf16", "message_mb": 4}).pipeline()
    assert pipeline.links[0].bits_per_s == math.inf
    assert pipeline.forward_bytes == 2e6
    already = Scenario.model_validate({"wire": "bf16", "message_mb": 4, "number_bytes": "2"}).pipeline()
    assert already.forward_bytes == 4e6


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
def test_a_schedule_is_written_as_it_is_read(text: str, plan: Plan) -> None:
    assert plan_of(text) == plan
    assert code_of(plan) == text


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        ({"stages": 0}, "stages", "0 cannot be stages: input should be greater than or equal to 1"),
        ({"stages": "many"}, "stages", "many cannot be stages"),
        ({"forward_ms": "1 -2"}, "forward_ms", "-2 cannot be forward_ms"),
        ({"forward_ms": "1 nan"}, "forward_ms", "nan cannot be forward_ms"),
        ({"forward_ms": ""}, "forward_ms", "cannot be forward_ms"),
        ({"backward_ms": [1, 2]}, "backward_ms", "backward_ms has 2 numbers for 3 stages; give one, or 3"),
        ({"backward_ms": 5, "weight_ms": 6}, "weight_ms", "weight_ms 6 is more than backward_ms 5; use at most that"),
        ({"bandwidth_gbps": 0}, "bandwidth_gbps", "0 cannot be bandwidth_gbps"),
        ({"schedules": ["2f2b"]}, "schedules", "schedules: '2f2b' is not known; use gpipe, 1f1b,"),
        ({"schedules": ["gpipe-3"]}, "schedules", "schedules: 'gpipe-3' is not known"),
        ({"colour": "blue"}, "colour", "unknown field colour; known are stages, micro_batches"),
    ],
)
def test_what_makes_no_sense_names_field_value_and_remedy(data: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate(data)
    (found,) = refusals(caught.value)
    assert found.field == field
    assert message in found.message


def test_best_stands_for_the_slope_that_suits_and_each_schedule_comes_once() -> None:
    found = answer(Scenario(schedules=["1f1b-3", "best", "gpipe", "gpipe"]))
    assert found.choice is not None
    assert [code_of(one.plan) for one in found.outcomes] == ["1f1b-3", "gpipe"]
    assert found.choice.best.plan == Plan("1f1b", 3)


def test_a_schedule_that_the_sizes_do_not_have_leaves_the_others() -> None:
    found = answer(Scenario(stages=3, micro_batches=4, schedules=["interleaved-1f1b-2", "1f1b"]))
    assert [code_of(one.plan) for one in found.outcomes] == ["1f1b"]
    assert found.refused[0].message == "num_micro_batches 4 is no multiple of the 3 ranks; use one"


def test_ranks_that_would_wait_for_ever_are_named() -> None:
    found = answer(Scenario(sends_block=True, receives_ahead=False, schedules=["1f1b"]))
    assert not found.outcomes
    assert "wait for each other for ever" in found.refused[0].message


def test_the_written_answer_says_what_the_simulation_says() -> None:
    scenario = Scenario(stages=2, micro_batches=2, schedules=["gpipe"])
    (one,) = written(scenario, with_timeline=True).outcomes
    (meant,) = answer(scenario).outcomes
    assert one.iteration_s == meant.simulation.iteration_s
    assert one.passes is not None
    assert one.transfers is not None
    assert len(one.passes) == 8
    assert {(t.kind, t.source, t.target) for t in one.transfers} == {("activations", 0, 1), ("gradients", 1, 0)}
    assert written(scenario).outcomes[0].passes is None
