"""Routing and dispatch of experts: how often tokens are sent, what the busiest rank does, and who decides."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from parlab.planner import Job, cluster, predict_job
from parlab.planner.job.huggingface import model_of
from parlab.planner.job.presets import preset
from parlab.planner.job.workload import Dispatcher
from parlab.planner.prediction.dispatch import KERNELS, distinct, sent_copies
from parlab.planner.prediction.parameters import TimeParameters
from parlab.planner.publications import rows
from parlab.planner.requests.request import PlanRequest

DEEPSEEK = preset("DeepSeek-V3")
assert DEEPSEEK is not None
JOB = Job(
    DEEPSEEK.model, 2048, pipeline_parallel=4, data_parallel=64, expert_parallel=64, zero_stage=1,
    has_flash_attention=True, dispatcher="deepep",
)  # fmt: skip
NODES = cluster("H100", 256, 8)
NODE = cluster("H100", 8, 8)
QWEN: dict[str, Any] = {
    "id": "qwen",
    "source": "NVIDIA Megatron-Bridge performance page, 26.04.01 NeMo Container",
    "model": {"name": "Qwen3 235B-A22B", "seq": 4096},
    "parallel": {"tp": 2, "pp": 8, "ep": 32, "vp": 4, "gbs": 8192, "precision": "fp8", "framework": "Megatron-Bridge"},
    "hardware": {"gpu": "H100-80GB", "count": 256},
}
QUESTION: dict[str, Any] = {
    "model": "DeepSeek-V3", "gpu": "H100 SXM", "nodes": 32, "pipeline_parallel": 4, "tensor_parallel": 1,
    "expert_parallel": 64, "global_batch": 2048,
}  # fmt: skip


def reached(parts: int, choices: int, groups: int, limit: int, experts: int = 256, tokens: int = 4000) -> float:
    """Return the mean number of parts that random tokens reach, one by one."""
    deal, total = Random(7), 0
    for _ in range(tokens):
        own = deal.sample(range(groups), limit)
        size = experts // groups
        allowed = [group * size + index for group in own for index in range(size)]
        total += len({expert * parts // experts for expert in deal.choices(allowed, k=choices)})
    return total / tokens


@pytest.mark.parametrize(("parts", "groups", "limit"), [(8, 8, 4), (32, 8, 4), (4, 8, 3), (8, 1, 1), (64, 8, 8)])
def test_tokens_reach_as_many_ranks_as_random_tokens_do(parts: int, groups: int, limit: int) -> None:
    assert distinct(parts, 8, groups, limit) == pytest.approx(reached(parts, 8, groups, limit), rel=0.02)


def test_routing_limited_to_nodes_sends_less_between_them() -> None:
    free = replace(JOB, model=replace(JOB.model, groups_per_token=None))
    assert sent_copies(JOB, 8) < 0.72 * sent_copies(free, 8)
    limited, unlimited = predict_job(JOB, NODES), predict_job(free, NODES)
    assert limited.parts.expert_s < 0.8 * unlimited.parts.expert_s
    assert limited.memory == unlimited.memory


def test_a_dispatcher_sends_a_token_to_each_rank_each_expert_or_all_ranks() -> None:
    def copies(dispatcher: Dispatcher) -> float:
        return sent_copies(replace(JOB, model=replace(JOB.model, groups_per_token=None), dispatcher=dispatcher), 8)

    assert copies("deepep") == copies("hybridep") == pytest.approx(7 / 8 * 8 * (1 - (7 / 8) ** 8))
    assert copies("alltoall") == 7
    assert copies("allgather") == 7
    one_node = replace(JOB, pipeline_parallel=1, data_parallel=8, expert_parallel=8)
    times = [predict_job(replace(one_node, dispatcher=name), NODE).parts.expert_s for name in ("alltoall", "deepep")]
    assert times[0] > 1.1 * times[1] > 0


def test_an_exchange_inside_a_node_takes_the_time_of_the_published_rate() -> None:
    chosen = preset("Qwen3 30B-A3B")
    assert chosen is not None
    job = Job(chosen.model, 64, data_parallel=8, expert_parallel=8, has_flash_attention=True, dispatcher="hybridep")
    prediction = predict_job(job, cluster("B200", 8, 8))
    sent = sent_copies(job, 8) * 4096 * 2048 * 2
    expected = 8 * 48 * 4 * (sent / (900e9 * KERNELS["hybridep"].inside * TimeParameters().exchange_efficiency) + 8e-6)
    assert prediction.parts.expert_s == pytest.approx(expected)


def test_the_busiest_rank_computes_sends_and_stores_more() -> None:
    even, uneven = predict_job(JOB, NODES), predict_job(replace(JOB, expert_imbalance=1.5), NODES)
    assert uneven.parts.compute_s > 1.1 * even.parts.compute_s
    assert uneven.parts.expert_s == pytest.approx(1.5 * even.parts.expert_s, rel=0.01)
    assert uneven.memory.activations_bytes > 1.1 * even.memory.activations_bytes
    assert uneven.memory.weights_bytes == even.memory.weights_bytes


def test_a_rank_has_at_most_all_tokens_of_its_group() -> None:
    few = replace(JOB.model, num_experts=8, expert_groups=1, groups_per_token=None)
    alone = replace(JOB, model=few, expert_parallel=1)
    assert predict_job(replace(alone, expert_imbalance=4.0), NODES).parts == predict_job(alone, NODES).parts
    assert replace(JOB, expert_parallel=2, expert_imbalance=9.0).busiest_share == 2
    with pytest.raises(ValueError, match=r"expert_imbalance 0\.5 is out of range; use 1 or more"):
        replace(JOB, expert_imbalance=0.5)


def test_experts_that_run_on_their_own_take_longest_to_launch_and_fused_ones_least_work() -> None:
    chosen = preset("Qwen3 30B-A3B")
    assert chosen is not None
    job = Job(chosen.model, 64, data_parallel=8, expert_parallel=8, precision="fp8", has_flash_attention=True)
    separate, grouped, fused = (
        predict_job(replace(job, grouped_products=kind), NODE).parts.compute_s
        for kind in ("separate", "grouped", "fused")
    )
    assert separate > 1.5 * grouped > 1.5 * fused


def test_an_exchange_beside_computation_takes_multiprocessors() -> None:
    parts = predict_job(replace(JOB, overlaps_experts=True), NODES).parts
    alone = predict_job(JOB, NODES).parts
    assert KERNELS["deepep"].multiprocessors * alone.expert_s < parts.expert_s < 0.5 * alone.expert_s


@pytest.mark.parametrize(
    ("fields", "dispatcher"),
    [
        ({}, "deepep"),
        ({"gpu": "GB200"}, "hybridep"),
        ({"gpu": "MI300X"}, "alltoall"),
        ({"gpu": "A100 SXM4 80 GB"}, "alltoall"),
        ({"code_base": "torchtitan"}, "alltoall"),
        ({"gpu": "GB200", "code_base": "NeMo AutoModel"}, "deepep"),
        ({"expert_dispatcher": "allgather"}, "allgather"),
    ],
)
def test_a_question_gets_the_usual_dispatcher_unless_it_states_one(fields: dict[str, Any], dispatcher: str) -> None:
    assert PlanRequest.model_validate(QUESTION | fields).job().dispatcher == dispatcher


def test_a_known_model_has_its_groups_and_impossible_ones_are_refused() -> None:
    model = PlanRequest.model_validate(QUESTION).job().model
    assert (model.expert_groups, model.groups_per_token) == (8, 4)
    with pytest.raises(ValidationError) as refusal:
        PlanRequest.model_validate(QUESTION | {"expert_groups": 3, "groups_per_token": 5})
    assert "expert_groups 3 does not divide experts 256; use a divisor" in str(refusal.value)
    assert "groups_per_token 5 is more than expert_groups 3; use at most that" in str(refusal.value)


def test_a_configuration_of_hugging_face_states_groups() -> None:
    config = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "n_routed_experts": 16, "n_group": 4,
              "topk_group": 2, "num_experts_per_tok": 2}  # fmt: skip
    model = model_of(config)
    assert (model.expert_groups, model.groups_per_token) == (4, 2)
    assert model_of(config | {"n_group": 1, "topk_group": 1}).groups_per_token is None


def test_a_published_row_has_the_dispatcher_of_its_recipe_unless_it_states_one() -> None:
    row = rows.read(QWEN)
    assert (row.job.dispatcher, row.job.overlaps_experts, row.job.release) == ("alltoall", True, "26.04")
    assert "as in its recipe: expert_dispatcher alltoall, overlap_experts True" in row.notes
    stated = QWEN | {"parallel": QWEN["parallel"] | {"expert_dispatcher": "Hybrid-EP", "expert_imbalance": 1.2}}
    job = rows.read(stated).job
    assert (job.dispatcher, job.overlaps_experts, job.expert_imbalance) == ("hybridep", True, 1.2)


def test_later_releases_have_later_recipes() -> None:
    def job_of(release: str, gpu: str) -> Job:
        source = f"NVIDIA Megatron-Bridge performance page, {release} NeMo Container"
        parallel = {"ep": 8, "gbs": 512, "precision": "mxfp8", "framework": "Megatron-Bridge"}
        hardware = {"gpu": gpu, "count": 8}
        model = {"name": "Qwen3 30B-A3B", "seq": 4096}
        return rows.read({"source": source, "model": model, "parallel": parallel, "hardware": hardware}).job

    assert job_of("26.02", "B200").dispatcher == "alltoall"
    assert (job_of("26.04", "B200").dispatcher, job_of("26.04", "B200").grouped_products) == ("hybridep", "grouped")
    assert job_of("26.08", "GB200").grouped_products == "fused"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("expert_dispatcher", "deepepp", "parallel.expert_dispatcher 'deepepp' is unknown; did you mean deepep"),
        ("grouped_products", "fusd", "parallel.grouped_products 'fusd' is unknown; did you mean fused"),
        ("expert_imbalance", "much", "expert_imbalance 'much' is not a number; use a number"),
        ("expert_imbalance", 0.2, "expert_imbalance 0.2 is out of range; use 1 or more"),
    ],
)
def test_unknown_values_of_experts_are_refused_with_the_nearest(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rows.read(QWEN | {"parallel": QWEN["parallel"] | {field: value}})


def test_each_default_of_experts_is_a_note() -> None:
    parallel = {name: value for name, value in QWEN["parallel"].items() if name != "framework"}
    notes = rows.read(QWEN | {"source": "", "parallel": parallel}).notes
    assert "expert_dispatcher is not given: deepep assumed" in notes
    assert "expert_imbalance is not given: even routing assumed" in notes
    stated = parallel | {"expert_dispatcher": "alltoall", "expert_imbalance": 1.1}
    assert not [
        note for note in rows.read(QWEN | {"source": "", "parallel": stated}).notes if note.startswith("expert_")
    ]
