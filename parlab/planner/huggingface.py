"""Read the model of a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .model import Model
from .row_values import maybe, number, whole

_GATED = ("silu", "swish", "swiglu", "geglu", "gelu_pytorch_tanh")
_PLAIN_TYPES = ("gpt2", "gpt_neox", "bert", "opt", "gptj", "bloom")
_LEARNED_TYPES = ("gpt2", "bert", "opt", "gpt_neo")
_NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"),
    "expert_ffn": ("moe_intermediate_size",),
    "length": ("max_position_embeddings", "n_positions", "n_ctx"),
    "chosen": ("num_experts_per_tok", "experts_per_token"),
}


def model_of(config: Mapping[str, Any], sequence_length: int | None = None) -> Model:
    """Return the model of a configuration; `sequence_length` defaults to its longest.

    Raises ValueError that names the missing or invalid field.
    """
    config = config.get("text_config") or config
    kind = str(config.get("model_type") or "").lower()
    experts = _first(config, "experts")
    ffn, dense_ffn = _first(config, "ffn"), None
    if experts and _first(config, "expert_ffn"):
        ffn, dense_ffn = _first(config, "expert_ffn"), ffn
    is_mla = bool(config.get("kv_lora_rank"))
    is_gated = kind not in _PLAIN_TYPES and str(config.get("hidden_act") or "silu").lower() in _GATED
    shared = maybe(config, "n_shared_experts") or 0
    return Model(
        _required(config, "num_layers"),
        _required(config, "hidden"),
        _required(config, "heads"),
        sequence_length or _required(config, "length"),
        whole(config, "vocab_size", 51_200),
        num_kv_heads=None if is_mla else maybe(config, "num_key_value_heads"),
        ffn_hidden_size=ffn,
        is_gated=is_gated,
        num_experts=experts or 1,
        experts_per_token=(_first(config, "chosen") or 1) if experts else 1,
        has_tied_embeddings=bool(config.get("tie_word_embeddings", not is_gated)),
        has_positions=kind in _LEARNED_TYPES,
        is_causal=kind != "bert",
        head_dim=maybe(config, "qk_nope_head_dim" if is_mla else "head_dim"),
        attention="mla" if is_mla else "gqa",
        q_lora_rank=maybe(config, "q_lora_rank") or 0,
        kv_lora_rank=whole(config, "kv_lora_rank", 512),
        rope_head_dim=whole(config, "qk_rope_head_dim", 64),
        shared_experts=shared,
        dense_layers=(maybe(config, "first_k_dense_replace") or 0) if experts else 0,
        dense_ffn_size=dense_ffn,
        sliding_window=_window(config),
        windowed_share=_windowed_share(config),
        has_dropout=any(
            number(name, config.get(name) or 0) > 0
            for name in ("resid_pdrop", "attn_pdrop", "hidden_dropout_prob", "attention_dropout", "dropout")
        ),
    )


def _first(config: Mapping[str, Any], field: str) -> int | None:
    return next((maybe(config, name) for name in _NAMES[field] if config.get(name)), None)


def _required(config: Mapping[str, Any], field: str) -> int:
    value = _first(config, field)
    if value is None:
        raise ValueError(f"{_NAMES[field][0]} is missing in config.json; add it")
    return value


def _window(config: Mapping[str, Any]) -> int | None:
    return maybe(config, "sliding_window") if config.get("use_sliding_window", True) else None


def _windowed_share(config: Mapping[str, Any]) -> float:
    """Return the share of layers with a sliding window; all of them if their types are not listed."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or not kinds:
        return 1.0
    return float(sum(kind == "sliding_attention" for kind in kinds) / len(kinds))
