"""Models and layouts that parlab's engines lack, from the arguments of other trainers -> fields of a RunConfig. Pure.

Sources of the names: Megatron-LM's and Megatron-Core's arguments, Megatron-Bridge's and NeMo's configurations,
torchtitan's job configuration, Hugging Face's config.json, nanotron.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from parlab.formats.launch import CONTEXT

_EXPERTS = ("num_experts", "num_moe_experts", "moe_num_experts", "num_local_experts", "n_routed_experts")
_EXCHANGES = {"p2p": "ring", "ring": "ring", "allgather": "all-gather", "all_gather": "all-gather"}
_POSITIONS = {"learned_absolute": "learned", "learned": "learned", "rope": "rotary", "yarn": "rotary",
              "rotary": "rotary", "mrope": "rotary"}  # fmt: skip
_GATED = ("silu", "swish", "swiglu", "geglu")
_DISPATCHERS = {"allgather": "allgather", "alltoall": "alltoall", "deepep": "deepep", "hybridep": "hybridep",
                "standard": "alltoall", "torch": "allgather"}  # fmt: skip
"""Megatron-Core's and torchtitan's names; AutoModel's `torch` gathers all tokens."""
_FLAGS: dict[str, tuple[str, ...]] = {
    "parallel.sequence_parallel": ("sequence_parallel",),
    "parallel.overlap_gradients": ("overlap_grad_reduce",),
    "parallel.overlap_tensor": ("tp_comm_overlap",),
    "parallel.overlap_experts": ("overlap_moe_expert_parallel_comm",),
    "parallel.overlap_pipeline": ("overlap_p2p_comm", "overlap_p2p_communication"),
    "train.offload_activations": ("cpu_offloading",),
    "train.cuda_graphs": ("enable_cuda_graph",),
}
_SIZES: dict[str, tuple[str, ...]] = {
    "parallel.context_parallel_size": CONTEXT,
    "parallel.expert_parallel_size": ("expert_model_parallel_size", "expert_parallel_size", "expert_parallel_degree",
                                      "moe_expert_parallel_size", "ep_size", "ep"),
    "parallel.expert_tensor_parallel_size": ("expert_tensor_parallel_size", "expert_tensor_parallel_degree"),
    "parallel.first_stage_layers": ("decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage"),
    "parallel.last_stage_layers": ("decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage"),
}  # fmt: skip


class _Arguments:
    """Arguments by their last name: `parallelism.context_parallel_degree` is context_parallel_degree."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._values = {name.rpartition(".")[2]: value for name, value in arguments.items()}

    def get(self, *names: str) -> Any:
        return next((value for name in names if (value := self._values.get(name)) is not None), None)

    def whole(self, *names: str) -> int | None:
        """Return the first argument that is a whole number above 0."""
        for name in names:
            value = self._values.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if 0 < value < 2**40 and value == int(value):
                return int(value)
        return None


def described_fields(
    arguments: Mapping[str, Any], hidden_size: int | None = None, num_heads: int | None = None
) -> dict[str, Any]:
    """Return the dotted fields that arguments state about experts, attention, MLPs and the rest of a layout."""
    stated = _Arguments(arguments)
    fields = dict(_mlp(stated)) | dict(_attention(stated, hidden_size, num_heads)) | dict(_rest_of_model(stated))
    fields |= {field: size for field, names in _SIZES.items() if (size := stated.whole(*names))}
    for field, names in _FLAGS.items():
        value = stated.get(*names)
        if isinstance(value, bool):
            fields[field] = value
    if "model.num_experts" in fields:
        fields |= dict(_dispatcher(stated))
    return fields | dict(_layout(stated)) | dict(_training(stated))


def _mlp(stated: _Arguments) -> Iterator[tuple[str, Any]]:
    experts, width = stated.whole(*_EXPERTS), stated.whole("ffn_hidden_size", "intermediate_size")
    activation = stated.get("hidden_act", "activation_func")
    if stated.get("swiglu", "gated_linear_unit") is True or str(activation).lower() in _GATED:
        yield "model.mlp", "gated"
    if experts is None or experts == 1:
        yield "model.ffn_hidden_size", width
        return
    yield "model.num_experts", experts
    yield "model.experts_per_token", stated.whole("moe_router_topk", "num_experts_per_tok", "moe_top_k", "top_k")
    own = stated.whole("moe_ffn_hidden_size", "moe_intermediate_size")
    groups = stated.whole("moe_router_num_groups", "n_group", "n_groups", "num_expert_groups")
    if groups and experts % groups == 0:
        yield "model.expert_groups", groups
        limit = stated.whole("moe_router_group_topk", "topk_group", "topk_groups", "num_limited_groups")
        yield "model.groups_per_token", limit if limit and limit <= groups else None
    yield "model.ffn_hidden_size", own or width
    if own and width:
        yield "model.dense_ffn_size", width
    shared, shared_width = stated.whole("n_shared_experts"), stated.whole("moe_shared_expert_intermediate_size")
    if shared_width and (own or width):
        shared = round(shared_width / (own or width or 1))
    yield "model.shared_experts", shared
    yield "model.dense_layers", stated.whole("first_k_dense_replace") or _dense_layers(stated.get("moe_layer_freq"))


def _dense_layers(pattern: Any) -> int | None:
    """Return the first layers without experts of Megatron-LM's pattern: `([0]*3+[1]*58)`, or a list of 0 and 1."""
    if isinstance(pattern, list):
        pattern = str(pattern)
    if not isinstance(pattern, str):
        return None
    if (product := re.match(r"\(?\[0\]\s*\*\s*(\d{1,4})\s*\+", pattern)) is not None:
        return int(product[1])
    zeros = re.match(r"\[((?:0,\s*)+)1", pattern)
    return zeros[1].count("0") if zeros else None


def _attention(stated: _Arguments, hidden: int | None, heads: int | None) -> Iterator[tuple[str, Any]]:
    if stated.get("group_query_attention") is not False:
        # Without grouped queries Megatron-LM prints one group.
        yield "model.num_kv_heads", stated.whole("num_query_groups", "num_key_value_heads", "n_kv_heads")
    is_huggingface = stated.get("kv_lora_rank") is not None and stated.get("qk_rope_head_dim") is not None
    if stated.get("multi_latent_attention") is True or is_huggingface:
        yield "model.multi_latent_attention", True
        yield "model.num_kv_heads", None
        yield "model.q_lora_rank", stated.whole("q_lora_rank") or 0
        yield "model.kv_lora_rank", stated.whole("kv_lora_rank")
        yield "model.rope_head_dim", stated.whole("qk_pos_emb_head_dim", "qk_rope_head_dim")
        yield "model.head_dim", stated.whole("qk_head_dim", "qk_nope_head_dim")
        return
    own = stated.whole("head_dim", "kv_channels")
    if own and hidden and heads and own * heads != hidden:
        yield "model.head_dim", own


def _rest_of_model(stated: _Arguments) -> Iterator[tuple[str, Any]]:
    window = stated.get("sliding_window", "window_size")
    digits = re.match(r"[(\[]?\s*(\d{1,8})", str(window)) if isinstance(window, int | str | list) else None
    if digits and int(digits[1]) and stated.get("use_sliding_window") is not False and window is not True:
        yield "model.sliding_window", int(digits[1])
        every = stated.whole("window_attn_skip_freq")
        yield "model.windowed_share", 1.0 if every is None else 1 - 1 / every
    untied = stated.get("untie_embeddings_and_output_weights")
    tied = stated.get("tie_word_embeddings", "share_embeddings_and_output_weights")
    if isinstance(untied, bool) or isinstance(tied, bool):
        yield "model.tied_embeddings", not untied if isinstance(untied, bool) else tied
    yield "model.positions", _POSITIONS.get(str(stated.get("position_embedding_type")))
    rates = [stated.get(name) for name in ("hidden_dropout", "attention_dropout")]
    rates = [rate for rate in rates if isinstance(rate, int | float) and not isinstance(rate, bool)]
    if rates:
        yield "model.dropout", any(rates)


def _layout(stated: _Arguments) -> Iterator[tuple[str, Any]]:
    yield "parallel.context_exchange", _EXCHANGES.get(str(stated.get("cp_comm_type")))
    chunks = stated.whole("virtual_pipeline_model_parallel_size", "virtual_pipeline_parallel_size")
    if chunks and chunks > 1:
        yield "parallel.schedule", "interleaved-1f1b"
        yield "parallel.virtual_stages", chunks
    # torchtitan: -1 shards over all ranks that are left.
    shards = stated.get("data_parallel_shard_degree")
    if isinstance(shards, int) and (shards > 1 or shards == -1):
        yield "parallel.zero_stage", 3
        yield "parallel.shard_ranks", shards if shards > 1 else None
    elif stated.get("use_distributed_optimizer") is True:
        yield "parallel.zero_stage", 1


def _dispatcher(stated: _Arguments) -> Iterator[tuple[str, Any]]:
    """Generate what sends tokens; Megatron-Core's `flex` names a backend of its own, DeepEP by default."""
    kind = str(stated.get("moe_token_dispatcher_type", "expert_parallel_comm_backend", "dispatcher")).lower()
    if kind == "flex" or stated.get("moe_enable_deepep", "enable_deepep") is True:
        kind = str(stated.get("moe_flex_dispatcher_backend") or "deepep").lower()
    yield "parallel.expert_dispatcher", _DISPATCHERS.get(kind)
    grouped = stated.get("moe_grouped_gemm", "use_grouped_mm")
    if stated.get("cutedsl_fused_grouped_mlp") is True:
        yield "parallel.grouped_products", "fused"
    elif isinstance(grouped, bool):
        yield "parallel.grouped_products", "grouped" if grouped else "separate"


def _training(stated: _Arguments) -> Iterator[tuple[str, Any]]:
    recipe = f"{stated.get('fp8_recipe')} {stated.get('fp8')}".lower()
    if isinstance(stated.get("fp4"), str):
        yield "train.precision", "nvfp4"
    elif stated.get("fp8") and "mxfp8" in recipe:
        yield "train.precision", "mxfp8"
    if stated.get("recompute_granularity") == "full" and stated.get("recompute_method") == "block":
        yield "train.recomputed_layers", stated.whole("recompute_num_layers")


def replicas_of(arguments: Mapping[str, Any], world_size: int, tensor: int | None, pipeline: int | None) -> int | None:
    """Return the data parallel size that follows from all ranks where shards and replicas are stated apart."""
    stated = _Arguments(arguments)
    if stated.get("data_parallel_shard_degree") is None:
        return None
    share = (tensor or 1) * (pipeline or 1) * (stated.whole(*CONTEXT) or 1)
    return None if world_size % share else world_size // share


def is_counted(model: Mapping[str, Any]) -> bool:
    """Return whether section model states all sizes that the FLOPs of a model with experts or gates depend on."""
    has_width = model.get("ffn_hidden_size") is not None
    return has_width and (model.get("num_experts", 1) == 1 or model.get("experts_per_token") is not None)
