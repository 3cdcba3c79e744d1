"""What trainings have that parlab's own engines lack: configurations of other trainers describe it by these fields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """Fields that one property of a training needs."""

    lack: str
    """How a message names that an engine does not have it: "engine pipeline LACK"."""
    fields: tuple[str, ...]


FEATURES = (
    Feature("has no experts", (
        "model.num_experts", "model.experts_per_token", "model.shared_experts", "model.dense_layers",
        "model.dense_ffn_size", "model.expert_groups", "model.groups_per_token", "parallel.expert_parallel_size",
        "parallel.expert_tensor_parallel_size", "parallel.expert_dispatcher", "parallel.expert_imbalance",
        "parallel.grouped_products", "parallel.overlap_experts",
    )),
    Feature("has keys and values for each head", (
        "model.num_kv_heads", "model.multi_latent_attention", "model.q_lora_rank", "model.kv_lora_rank",
        "model.rope_head_dim",
    )),
    Feature("has heads of hidden_size / num_attention_heads", ("model.head_dim",)),
    Feature("has plain MLPs of 4 x hidden_size", ("model.mlp", "model.ffn_hidden_size")),
    Feature("has no sliding windows", ("model.sliding_window", "model.windowed_share")),
    Feature("chooses embeddings and dropout by the kind of the model", (
        "model.tied_embeddings", "model.positions", "model.dropout",
    )),
    Feature("has no context parallelism", ("parallel.context_parallel_size", "parallel.context_exchange")),
    Feature("partitions over all replicas", ("parallel.shard_ranks", "parallel.reshard_after_forward")),
    Feature("makes stages as even as possible", ("parallel.first_stage_layers", "parallel.last_stage_layers")),
    Feature("recomputes in all layers or in none", ("train.recomputed_layers",)),
    Feature("keeps activations on the device", ("train.offload_activations",)),
    Feature("decides itself what overlaps", (
        "parallel.overlap_gradients", "parallel.overlap_tensor", "parallel.overlap_pipeline", "train.cuda_graphs",
    )),
)  # fmt: skip
FEATURE_FIELDS = tuple(field for feature in FEATURES for field in feature.fields)
PRECISIONS = ("fp32", "bf16", "fp16")
"""Precisions that parlab's engines have."""
RECOMPUTES = ("none", "selective", "full")
"""Recomputation that parlab's engines have."""
