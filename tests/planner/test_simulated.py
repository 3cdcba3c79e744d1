"""Pipelines with uneven stages: where the closed form holds, and where the simulation replaces it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from parlab.planner import DEFAULT, Job, cluster, predict_job
from parlab.planner.job.presets import preset
from parlab.planner.prediction.simulated import NOTE, has_largest_first_stage, simulated_s
from parlab.planner.prediction.timing import Clock
from parlab.planner.requests.answer import outline
from parlab.planner.requests.request import PlanRequest

LLAMA = preset("Llama 3.1 405B")
assert LLAMA is not None
JOB = Job(
    LLAMA.model, 32, tensor_parallel=8, pipeline_parallel=16, has_flash_attention=True, sequence_parallel=True,
    overlaps_pipeline=True, family="Megatron-Core",
)  # fmt: skip
NODES = cluster("H100", 128, 8)


def closed_s(job: Job) -> float:
    parts = Clock(job, NODES, DEFAULT.time).timing()
    return parts.compute_s + parts.bubble_s + parts.tensor_s + parts.context_s + parts.expert_s + parts.pipeline_s


def off_by(job: Job) -> float:
    return closed_s(job) / simulated_s(Clock(job, NODES, DEFAULT.time)) - 1


SHAPES = list(product((4, 8, 16), (1, 4), (61, 80, 126), (("1f1b", 1), ("gpipe", 1), ("interleaved-1f1b", 2))))


def test_the_closed_form_agrees_with_the_simulation_for_even_stages() -> None:
    for stages, rounds, layers, (schedule, chunks) in SHAPES:
        model = replace(JOB.model, num_layers=layers)
        job = replace(JOB, model=model, pipeline_parallel=stages, global_batch_size=rounds * stages)
        job = replace(job, schedule=schedule, virtual_stages=chunks)  # type: ignore[arg-type]
        assert not has_largest_first_stage(job)
        assert abs(off_by(job)) < 0.04, (stages, rounds, layers, schedule)


@pytest.mark.parametrize("ends", [{"first_stage_layers": 4}, {"last_stage_layers": 12}, {"last_stage_layers": 4}])
def test_it_also_agrees_where_the_first_stage_is_not_the_largest(ends: dict[str, Any]) -> None:
    job = replace(JOB, **ends)
    assert not has_largest_first_stage(job)
    assert abs(off_by(job)) < 0.04
    assert NOTE not in predict_job(job, NODES).reasons


def test_a_larger_first_stage_is_simulated_and_said_so() -> None:
    job = replace(JOB, first_stage_layers=12)
    assert has_largest_first_stage(job)
    assert off_by(job) > 0.1
    prediction = predict_job(job, NODES)
    assert NOTE in prediction.reasons
    parts = prediction.parts
    total = parts.compute_s + parts.bubble_s + parts.tensor_s + parts.context_s + parts.expert_s + parts.pipeline_s
    assert total == pytest.approx(simulated_s(Clock(job, NODES, DEFAULT.time)))
    assert predict_job(JOB, NODES).iteration_s < prediction.iteration_s


def test_what_the_simulation_does_not_know_keeps_the_closed_form() -> None:
    for changes in ({"schedule": "zb-v"}, {"schedule": "dualpipe"}, {"global_batch_size": 4096}):
        assert not has_largest_first_stage(replace(JOB, first_stage_layers=12, **changes))


def test_an_answer_names_the_simulation() -> None:
    fields = {"model": "Llama 3.1 405B", "gpu": "H100 SXM", "nodes": 16, "tensor_parallel": 8, "pipeline_parallel": 16}
    request = PlanRequest.model_validate(fields | {"global_batch": 32, "first_stage_layers": 12, "recompute": "full"})
    answer = outline(request, NODES.device)
    assert NOTE in answer.prediction.reasons


def test_an_answer_compares_schedules_that_its_micro_batches_do_not_divide_into() -> None:
    fields = {"model": "Llama 3.1 405B", "gpu": "H100 SXM", "nodes": 16, "tensor_parallel": 8, "pipeline_parallel": 16}
    request = PlanRequest.model_validate(fields | {"global_batch": 40, "first_stage_layers": 12, "recompute": "full"})
    answer = outline(request, NODES.device)
    assert NOTE in answer.prediction.reasons
    assert len({prediction.job.schedule for prediction in answer.schedules}) > 5
