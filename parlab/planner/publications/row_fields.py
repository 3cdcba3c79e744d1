"""The fields of a row of published measurements; any other field is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

MODEL = [
    "name",
    "layers",
    "hidden",
    "heads",
    "seq",
    "vocab",
    "params_b",
    "kv_heads",
    "head_dim",
    "ffn",
    "mlp",
    "experts",
    "experts_per_token",
    "expert_groups",
    "groups_per_token",
    "shared_experts",
    "dense_layers",
    "dense_ffn",
    "attention",
    "q_lora_rank",
    "kv_lora_rank",
    "rope_head_dim",
    "window",
    "windowed_share",
    "tied_embeddings",
    "positions",
    "dropout",
    "causal",
]
PARALLEL = [
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "etp",
    "expert_dispatcher",
    "expert_imbalance",
    "grouped_products",
    "fsdp",
    "mbs",
    "gbs",
    "gas",
    "microbatches",
    "zero",
    "schedule",
    "virtual_pp",
    "vp",
    "sequence_parallel",
    "recompute",
    "recomputed_layers",
    "precision",
    "optimizer",
    "offload",
    "framework",
    "release",
    "attention",
    "compile",
    "ddp",
    "dp_comm",
    "cp_comm",
    "reshard_after_forward",
    "overlap_gradients",
    "overlap_tensor",
    "overlap_experts",
    "overlap_pipeline",
    "fused_loss",
    "first_stage_layers",
    "last_stage_layers",
    "offload_activations",
    "cuda_graphs",
    "gathered_logits",
    "fused_norms",
    "recompute_activation",
    "compressed_experts",
    "expandable_segments",
]
HARDWARE = [
    "gpu",
    "count",
    "node",
    "inter_node",
    "link_gb_s",
    "delay_ms",
    "gbps",
    "peak_tflops",
    "nvlink_domain",
    "oversubscription",
    "rail_optimized",
]

_NAMES = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_heads": "heads",
    "sequence_length": "seq",
    "vocab_size": "vocab",
    "num_kv_heads": "kv_heads",
    "ffn_hidden_size": "ffn",
    "num_experts": "experts",
    "dense_ffn_size": "dense_ffn",
    "sliding_window": "window",
    "global_batch_size": "gbs",
    "micro_batch_size": "mbs",
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "data_parallel": "dp",
    "context_parallel": "cp",
    "expert_parallel": "ep",
    "expert_tensor_parallel": "etp",
    "virtual_stages": "vp",
    "gpus_per_node": "node",
    "gpus": "count",
}
"""Field of a job, model or cluster -> field of a row."""


@contextmanager
def names_of_rows() -> Iterator[None]:
    """Give an error about a job, model or cluster the names that a row has for its fields."""
    try:
        yield
    except ValueError as error:
        raise ValueError(re.sub(r"\b[a-z_]+\b", lambda word: _NAMES.get(word[0], word[0]), str(error))) from error
