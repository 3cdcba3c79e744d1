"""Configurations describe trainings that parlab's engines do not have; the planner reads them as its own questions."""

from __future__ import annotations

import pytest

from parlab.formats.schema import Launch
from parlab.ingest.readings.architecture import described_fields, replicas_of
from parlab.ingest.readings.launches import resolved_of
from parlab.planner import cluster, predict, predict_job
from parlab.planner.job.configs import job_of
from parlab.planner.job.descriptions import description_of
from parlab.planner.job.hardware import find
from parlab.planner.job.imported_jobs import stated_job
from parlab.planner.job.presets import PRESETS, preset, usual_question
from parlab.planner.prediction.work import work_of
from parlab.planner.requests.launches import described_launch, launch_of
from parlab.planner.requests.request import PlanRequest
from runners.config import ENGINES, check, complete
from runners.config.features import FEATURE_FIELDS

DEEPSEEK = {
    "model": "DeepSeek-V3", "gpu": "H800", "nodes": 256, "gpus_per_node": 8, "pipeline_parallel": 16,
    "expert_parallel": 64, "tensor_parallel": 1, "schedule": "dualpipe", "precision": "fp8", "global_batch": 3840,
    "micro_batch": 1, "recompute": "selective", "zero": 1, "first_stage_layers": 3, "last_stage_layers": 2,
}  # fmt: skip
LLAMA = {
    "model": "Llama 3 405B", "gpu": "H100", "nodes": 512, "tensor_parallel": 8, "context_parallel": 4,
    "pipeline_parallel": 16, "schedule": "interleaved-1f1b", "chunks": 8, "sequence": 131_072, "global_batch": 128,
    "zero": 3, "shard_ranks": 4, "reshard_after_forward": False, "context_exchange": "all-gather",
    "recompute": "operations", "recomputed_layers": 4, "overlap_gradients": False, "offload_activations": True,
}  # fmt: skip


@pytest.mark.parametrize("fields", [DEEPSEEK, LLAMA])
def test_a_configuration_describes_what_a_question_asks_and_has_the_same_prediction(fields: dict[str, object]) -> None:
    question = PlanRequest.model_validate(fields)
    job = question.job()
    config, problems = check(complete(dict(described_launch(job, 8).data)))
    assert config is not None, problems
    gpu = find(question.gpu)
    assert gpu is not None
    where = cluster(gpu, question.gpus, 8)
    described, asked = predict(config, where), predict_job(job, where)
    assert (described.iteration_s, described.memory_bytes) == (asked.iteration_s, asked.memory_bytes)
    assert config.world_size == question.gpus


def test_every_known_model_can_be_described() -> None:
    for entry in PRESETS:
        one_gpu = {"nodes": 1, "gpus_per_node": 1, "tensor_parallel": 1, "pipeline_parallel": 1}
        job = PlanRequest.model_validate(usual_question(entry) | one_gpu).job()
        config, problems = check(complete(description_of(job, 8, 20, 5)))
        assert config is not None, (entry.name, problems)
        assert job_of(config, "").model == job.model


@pytest.mark.parametrize(("gpus", "batch"), [(1024, 512), (16_384, 2048)])
def test_a_model_without_a_published_batch_gets_a_sequence_for_eight_gpus_at_least(gpus: int, batch: int) -> None:
    small = preset("Llama 3 8B")
    assert small is not None
    assert usual_question(small, gpus)["global_batch"] == batch


@pytest.mark.parametrize("engine", [name for name, row in ENGINES.items() if not row.is_external])
@pytest.mark.parametrize(
    ("section", "name", "value", "reason"),
    [
        ("model", "num_experts", 8, "has no experts"),
        ("parallel", "context_parallel_size", 2, "has no context parallelism"),
        ("model", "num_kv_heads", 2, "has keys and values for each head"),
        ("train", "precision", "fp8", "does not support precision fp8"),
        ("parallel", "schedule", "dualpipe", "does not support schedule dualpipe"),
    ],
)
def test_an_engine_refuses_what_it_does_not_have(
    engine: str, section: str, name: str, value: object, reason: str
) -> None:
    data: dict[str, dict[str, object]] = {"parallel": {"engine": engine}}
    data.setdefault(section, {})[name] = value
    _, problems = check(data)
    messages = [problem.message for problem in problems if problem.field == f"{section}.{name}"]
    assert any(reason in message for message in messages), problems


def test_impossible_combinations_are_named_at_once() -> None:
    _, problems = check(
        {
            "model": {"num_experts": 8, "experts_per_token": 9, "num_kv_heads": 3, "dense_layers": 9},
            "parallel": {"engine": "command", "expert_parallel_size": 3, "schedule": "dualpipe", "shard_ranks": 2,
                         "pipeline_parallel_size": 3, "first_stage_layers": 4},
            "command": {"argv": ["/opt/train.py"]},
        }
    )  # fmt: skip
    assert {problem.field for problem in problems} >= {
        "model.experts_per_token", "model.num_kv_heads", "model.dense_layers", "parallel.expert_parallel_size",
        "parallel.pipeline_parallel_size", "parallel.first_stage_layers", "parallel.shard_ranks",
    }  # fmt: skip


def test_a_command_is_planned_only_if_its_configuration_describes_its_training() -> None:
    data = complete({"parallel": {"engine": "command"}, "command": {"argv": ["/opt/train.py"]}})
    config, _ = check(data)
    assert config is not None
    with pytest.raises(ValueError, match=r"set command\.describes_training"):
        job_of(config)


def test_the_launch_for_an_engine_still_says_what_it_leaves_out() -> None:
    changed = launch_of(PlanRequest.model_validate(DEEPSEEK).job(), 8).changed
    assert any("no engine has experts" in text for text in changed)


MEGATRON = {
    "num_experts": 256, "moe_router_topk": 8, "moe_ffn_hidden_size": 2048, "ffn_hidden_size": 18432, "swiglu": True,
    "moe_shared_expert_intermediate_size": 2048, "moe_layer_freq": "([0]*3+[1]*58)", "multi_latent_attention": True,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "num_query_groups": 1,
    "expert_model_parallel_size": 64, "expert_tensor_parallel_size": 1, "context_parallel_size": 2, "fp8": "e4m3",
    "fp8_recipe": "mxfp8", "untie_embeddings_and_output_weights": True, "position_embedding_type": "rope",
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "use_distributed_optimizer": True, "overlap_grad_reduce": True,
    "virtual_pipeline_model_parallel_size": 4, "padded_vocab_size": 129280, "recompute_granularity": "selective",
}  # fmt: skip
"""Arguments in the names of Megatron-Core."""


def test_arguments_of_megatron_core_are_the_model_of_its_paper() -> None:
    launch = Launch(
        world_size=2048, data_parallel_size=64, tensor_parallel_size=1, pipeline_parallel_size=16, micro_batch_size=1,
        global_batch_size=4096, sequence_length=4096, num_layers=61, hidden_size=7168, num_attention_heads=128,
        precision="fp8", arguments=MEGATRON,
    )  # fmt: skip
    resolved = resolved_of(launch)
    gpu = find("H800")
    assert gpu is not None
    job, where = stated_job(resolved, gpu, 2048)
    known = next(entry.model for entry in PRESETS if entry.name == "DeepSeek-V3")
    assert job.model.parameters == pytest.approx(known.parameters, rel=0.01)
    assert (job.expert_parallel, job.context_parallel, job.precision, job.zero_stage) == (64, 2, "mxfp8", 1)
    assert (job.schedule, job.virtual_stages, where.gpus) == ("interleaved-1f1b", 4, 2048)
    work = work_of(resolved)
    assert work is not None
    # 6 FLOPs for each of 37 billion active parameters and each token, and the attention.
    assert work.model_flops / (4096 * 4096) == pytest.approx(6 * 37e9, rel=0.25)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"group_query_attention": False, "num_query_groups": 1}, {}),
        ({"model.num_query_groups": 8}, {"model.num_kv_heads": 8}),
        ({"model.num_moe_experts": 128}, {"model.num_experts": 128}),
        ({"parallelism.data_parallel_shard_degree": -1}, {"parallel.zero_stage": 3}),
        ({"parallelism.context_parallel_degree": 8}, {"parallel.context_parallel_size": 8}),
        ({"hidden_act": "silu", "intermediate_size": 14336}, {"model.mlp": "gated", "model.ffn_hidden_size": 14336}),
        ({"sliding_window": 4096, "use_sliding_window": False}, {}),
        ({"window_size": "(128, 0)", "window_attn_skip_freq": 2},
         {"model.sliding_window": 128, "model.windowed_share": 0.5}),
        ({"num_experts": "[1]", "moe_layer_freq": 1}, {}),
        ({"num_experts": 64, "moe_router_num_groups": 8, "moe_router_group_topk": 4},
         {"model.num_experts": 64, "model.expert_groups": 8, "model.groups_per_token": 4}),
        ({"num_experts": 64, "moe_token_dispatcher_type": "flex"},
         {"model.num_experts": 64, "parallel.expert_dispatcher": "deepep"}),
        ({"num_experts": 64, "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
         {"model.num_experts": 64, "parallel.expert_dispatcher": "hybridep"}),
        ({"num_experts": 64, "parallelism.expert_parallel_comm_backend": "standard"},
         {"model.num_experts": 64, "parallel.expert_dispatcher": "alltoall"}),
        ({"num_experts": 64, "moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": False},
         {"model.num_experts": 64, "parallel.expert_dispatcher": "alltoall", "parallel.grouped_products": "separate"}),
        ({"moe_token_dispatcher_type": "allgather", "moe_grouped_gemm": False}, {}),
    ],
)  # fmt: skip
def test_arguments_of_other_trainers_become_fields(arguments: dict[str, object], fields: dict[str, object]) -> None:
    described = {field: value for field, value in described_fields(arguments).items() if value is not None}
    assert described == fields


def test_shards_and_replicas_stated_apart_make_the_data_parallel_size() -> None:
    assert replicas_of({"data_parallel_shard_degree": -1, "context_parallel_degree": 2}, 64, 4, 1) == 8
    assert replicas_of({}, 64, 4, 1) is None


def test_every_described_field_is_a_field_of_the_configuration() -> None:
    assert set(FEATURE_FIELDS) <= {f"{s}.{f}" for s, fields in complete({}).items() for f in fields}
