"""Read the model of a Hugging Face `config.json`, and list the fields of it that were not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from parlab.planner.publications.row_values import maybe, number, whole

from .huggingface_kinds import (
    BIDIRECTIONAL_KINDS,
    DROPOUTS,
    GATED,
    LEARNED_KINDS,
    NAMES,
    NESTED,
    PLAIN_KINDS,
    TIED_KINDS,
    UNSUPPORTED_KINDS,
    WITHOUT_EFFECT,
)
from .model import Model

_ALTERNATIVES = frozenset(name for names in (*NAMES.values(), DROPOUTS) for name in names)


class Reading(NamedTuple):
    """The model of a configuration, and the fields that were not read although they may change it."""

    model: Model
    kind: str
    unread: list[str]

    @property
    def summary(self) -> str:
        """Describe what was read: the type of the model, and the fields that were not."""
        return f"{self.kind or 'model'}; not read: {', '.join(self.unread)}" if self.unread else self.kind or "model"


class Fields(Mapping[str, Any]):
    """A configuration that remembers which of its fields were read."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return self._data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    @property
    def unread(self) -> list[str]:
        """Fields with a value that were not read and are not known to be without effect."""
        return sorted(
            name
            for name, value in self._data.items()
            if name not in self.seen | WITHOUT_EFFECT | _ALTERNATIVES and value not in (None, False, [], {}, 0, "")
        )


def model_of(config: Mapping[str, Any], sequence_length: int | None = None) -> Model:
    """Return the model of a configuration; see `read_config`."""
    return read_config(config, sequence_length).model


def read_config(config: Mapping[str, Any], sequence_length: int | None = None) -> Reading:
    """Read a configuration; `sequence_length` defaults to its longest.

    Multimodal models are read as their language model. Raises ValueError that names a missing or invalid field, and for
    kinds of models that are no transformer with one stack of layers.
    """
    flat = Fields(_language_model(config))
    kind = str(flat.get("model_type") or config.get("model_type") or "").lower()
    if kind in UNSUPPORTED_KINDS:
        raise ValueError(f"model_type {kind} is not supported: {UNSUPPORTED_KINDS[kind]}; use a decoder or an encoder")
    is_mla = bool(flat.get("kv_lora_rank"))
    is_gated = _is_gated(flat, kind)
    layers = _required(flat, "num_layers")
    experts = _experts(flat, layers)
    window = _window(flat)
    model = Model(
        layers,
        _required(flat, "hidden"),
        _required(flat, "heads"),
        sequence_length or _first(flat, "length") or 2048,
        whole(flat, "vocab_size", 51_200),
        num_kv_heads=None if is_mla else _kv_heads(flat, kind),
        ffn_hidden_size=experts.width if experts else _width(flat),
        is_gated=is_gated,
        **_expert_fields(experts),
        has_tied_embeddings=bool(flat.get("tie_word_embeddings", kind in TIED_KINDS)),
        has_positions=kind in LEARNED_KINDS,
        is_causal=kind not in BIDIRECTIONAL_KINDS or bool(flat.get("is_decoder")),
        head_dim=maybe(flat, "qk_nope_head_dim" if is_mla else "head_dim"),
        attention="mla" if is_mla else "gqa",
        q_lora_rank=maybe(flat, "q_lora_rank") or 0,
        kv_lora_rank=maybe(flat, "kv_lora_rank") or 512,
        rope_head_dim=maybe(flat, "qk_rope_head_dim") or 64,
        sliding_window=window,
        windowed_share=_windowed_share(flat, kind, layers) if window else 0.5,
        has_dropout=_has_dropout(flat),
    )
    # The width of values equals that of keys in the planner.
    value_width = maybe(flat, "v_head_dim")
    unread = flat.unread + (["v_head_dim"] if is_mla and value_width not in (None, model.head_dim) else [])
    return Reading(model, kind, unread)


def _language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the language model, with those of nested sections."""
    for name in NESTED:
        section = config.get(name)
        if isinstance(section, Mapping):
            return _language_model({"tie_word_embeddings": config.get("tie_word_embeddings"), **section})
    flat = {name: value for name, value in config.items() if name not in ("ffn_config", "attn_config")}
    if flat.get("tie_word_embeddings", 0) is None:
        del flat["tie_word_embeddings"]
    # DBRX and MPT keep the sizes of MLP and attention in sections of their own.
    for name in ("ffn_config", "attn_config"):
        section = config.get(name)
        flat |= {field: value for field, value in section.items() if field != "model_type"} if section else {}
    return flat


_SHARED_EXPERTS = {"llama4_text": 1, "llama4": 1}
"""Shared experts that a kind always has."""


class _Experts(NamedTuple):
    number: int
    chosen: int
    width: int | None
    groups: int
    chosen_groups: int | None
    shared: int
    dense_layers: int
    dense_width: int | None


def _expert_fields(experts: _Experts | None) -> dict[str, Any]:
    """Return the fields of a model that describe its experts; none without experts."""
    if experts is None:
        return {}
    return {
        "num_experts": experts.number,
        "experts_per_token": experts.chosen,
        "expert_groups": experts.groups,
        "groups_per_token": experts.chosen_groups,
        "shared_experts": experts.shared,
        "dense_layers": experts.dense_layers,
        "dense_ffn_size": experts.dense_width,
    }


def _has_dropout(flat: Fields) -> bool:
    return any(number(name, flat.get(name) or 0) > 0 for name in DROPOUTS)


def _experts(flat: Fields, layers: int) -> _Experts | None:
    """Return the experts of a configuration; None without."""
    experts = _first(flat, "experts")
    if not experts or experts == 1:
        return None
    expert_width, width = _first(flat, "expert_ffn"), _width(flat)
    shared = _first(flat, "shared") or _SHARED_EXPERTS.get(str(flat.get("model_type")), 0)
    chosen_width = expert_width or width
    shared_width = maybe(flat, "shared_expert_intermediate_size")
    if shared_width and chosen_width:
        # Qwen2 has one shared expert with a width of its own.
        shared = max(1, round(shared_width / chosen_width))
    dense = whole(flat, "first_k_dense_replace", 0) if flat.get("first_k_dense_replace") else 0
    step = _first(flat, "expert_step") or 1
    listed = flat.get("mlp_only_layers")
    if step > 1:
        dense = layers - layers // step
    elif isinstance(listed, list) and listed:
        dense = len(listed)
    dense_width = maybe(flat, "intermediate_size_mlp") or (width if expert_width else None)
    groups = _first(flat, "groups") or 1
    return _Experts(
        experts,
        _first(flat, "chosen") or 1,
        chosen_width,
        groups,
        _first(flat, "chosen_groups") if groups > 1 else None,
        shared,
        min(dense, layers),
        dense_width if dense else None,
    )


def _is_gated(flat: Fields, kind: str) -> bool:
    activation = _text(flat, "activation") or "silu"
    return kind not in PLAIN_KINDS and (activation in GATED or "glu" in activation)


def _text(flat: Fields, field: str) -> str:
    for name in NAMES[field]:
        value = flat.get(name)
        if isinstance(value, Mapping):
            value = value.get("name")
        if isinstance(value, str):
            return value.lower()
    return ""


def _width(flat: Fields) -> int | None:
    if flat.get("expansion_ratio"):
        return round(number("expansion_ratio", flat["expansion_ratio"]) * _required(flat, "hidden"))
    return _first(flat, "ffn")


def _kv_heads(flat: Fields, kind: str) -> int | None:
    stated = _first(flat, "kv_heads")
    # Falcon's first generation and StarCoder share one head of keys and values.
    shares_one = bool(flat.get("multi_query")) and not flat.get("new_decoder_architecture")
    return 1 if shares_one and (kind != "falcon" or stated in (None, _first(flat, "heads"))) else stated


def _first(flat: Mapping[str, Any], field: str) -> int | None:
    """Return the first stated name of a field; a list with one value per layer counts as its largest."""
    for name in NAMES[field]:
        value = flat.get(name)
        if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
            return int(max(value))
        if value:
            return maybe(flat, name)
    return None


def _required(flat: Mapping[str, Any], field: str) -> int:
    value = _first(flat, field)
    if value is None:
        raise ValueError(f"{NAMES[field][0]} is missing in config.json; add it")
    return value


def _window(flat: Fields) -> int | None:
    is_used = flat.get("use_sliding_window", True)
    return (maybe(flat, "sliding_window") or maybe(flat, "attention_window_size")) if is_used else None


def _windowed_share(flat: Fields, kind: str, layers: int) -> float:
    """Return the share of layers with a sliding window: as listed, by the pattern of the family, otherwise all."""
    kinds = flat.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return float(sum("sliding" in str(each) or "chunked" in str(each) for each in kinds) / len(kinds))
    pattern = maybe(flat, "sliding_window_pattern") or {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}.get(kind)
    if pattern:
        return 1 - 1 / pattern
    full = maybe(flat, "max_window_layers")
    return max(0.0, 1 - full / layers) if full else 1.0
