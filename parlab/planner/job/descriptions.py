"""A job as sections of a RunConfig for a trainer that is not parlab's: the inverse of `configs.job_of`."""

from __future__ import annotations

from typing import Any

from runners.config.engines import COMMAND

from .workload import Job, Model

ARGUMENTS = (
    "/opt/train.py",
    "--num-layers", "{model.num_layers}",
    "--hidden-size", "{model.hidden_size}",
    "--num-attention-heads", "{model.num_attention_heads}",
    "--seq-length", "{model.sequence_length}",
    "--num-experts", "{model.num_experts}",
    "--micro-batch-size", "{train.micro_batch_size}",
    "--global-batch-size", "{train.global_batch_size}",
    "--train-iters", "{train.iterations}",
    "--tensor-model-parallel-size", "{parallel.tensor_parallel_size}",
    "--pipeline-model-parallel-size", "{parallel.pipeline_parallel_size}",
    "--context-parallel-size", "{parallel.context_parallel_size}",
    "--expert-model-parallel-size", "{parallel.expert_parallel_size}",
)  # fmt: skip
"""Arguments in the names of Megatron-Core, as a start for the command of another trainer."""


def description_of(job: Job, gpus_per_node: int, iterations: int, warmup_steps: int) -> dict[str, dict[str, Any]]:
    """Return the sections that describe a job completely, run by a command."""
    gpus = job.world_size
    nodes = -(-gpus // gpus_per_node)
    return {
        "model": _model(job.model),
        "train": {
            "global_batch_size": job.global_batch_size,
            "micro_batch_size": job.micro_batch_size,
            "iterations": iterations,
            "warmup_steps": warmup_steps,
            "precision": job.precision,
            "recompute": job.recompute,
            "recomputed_layers": job.recomputed_layers,
            "offload_activations": job.offloads_activations,
            "cuda_graphs": job.has_cuda_graphs,
        },
        "parallel": _parallel(job),
        "cluster": {"nodes": nodes, "gpus_per_node": gpus // nodes},
        "command": {"argv": list(ARGUMENTS), "describes_training": True},
    }


def plain_model(model: Model) -> dict[str, Any]:
    """Return the fields of section model that every engine reads."""
    return {
        "kind": "gpt" if model.is_causal else "bert",
        "attention_mask": "causal" if model.is_causal else "bidirectional",
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "sequence_length": model.sequence_length,
        "vocab_size": model.vocab_size,
    }


def _model(model: Model) -> dict[str, Any]:
    is_mla = model.attention == "mla"
    ranks = ("q_lora_rank", "kv_lora_rank", "rope_head_dim")
    compressed = {name: getattr(model, name) for name in ranks} if is_mla else {}
    return {
        **plain_model(model),
        "num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "multi_latent_attention": is_mla,
        **compressed,
        "mlp": "gated" if model.is_gated else "plain",
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_experts": model.num_experts,
        "experts_per_token": model.experts_per_token,
        "expert_groups": model.expert_groups,
        "groups_per_token": model.groups_per_token,
        "shared_experts": model.shared_experts,
        "dense_layers": model.dense_layers,
        "dense_ffn_size": model.dense_ffn_size,
        "sliding_window": model.sliding_window,
        "windowed_share": model.windowed_share,
        "tied_embeddings": model.has_tied_embeddings,
        "positions": "learned" if model.has_positions else "rotary",
        "dropout": model.has_dropout,
    }


def _parallel(job: Job) -> dict[str, Any]:
    return {
        "engine": COMMAND.name,
        "tensor_parallel_size": job.tensor_parallel,
        "sequence_parallel": job.sequence_parallel and job.tensor_parallel > 1,
        "pipeline_parallel_size": job.pipeline_parallel,
        "data_parallel_size": job.data_parallel,
        "context_parallel_size": job.context_parallel,
        "context_exchange": job.context_exchange,
        "expert_parallel_size": job.expert_parallel,
        "expert_tensor_parallel_size": job.expert_tensor_parallel,
        "schedule": job.schedule if job.pipeline_parallel > 1 else "1f1b",
        "virtual_stages": job.chunks if job.pipeline_parallel > 1 else 1,
        "first_stage_layers": job.first_stage_layers,
        "last_stage_layers": job.last_stage_layers,
        "zero_stage": job.zero_stage,
        "zero_offload": job.zero_offload if job.zero_stage else "none",
        "shard_ranks": job.shard_ranks,
        "reshard_after_forward": job.reshards_after_forward,
        "expert_dispatcher": job.dispatcher,
        "expert_imbalance": job.expert_imbalance,
        "grouped_products": job.grouped_products,
        "overlap_gradients": job.overlaps_gradients,
        "overlap_tensor": job.overlaps_tensor,
        "overlap_experts": job.overlaps_experts,
        "overlap_pipeline": job.overlaps_pipeline,
    }
