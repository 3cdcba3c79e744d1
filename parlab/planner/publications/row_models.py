"""Read the model of a row of published measurements; missing keys get usual values, listed in the notes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from parlab.planner.job.model import Model
from parlab.planner.job.presets import PRESETS, preset
from parlab.planner.requests.fields import nearest_name

from . import row_choices
from .row_choices import flag
from .row_values import given, is_missing, maybe, number, stated, whole

_NEAR = 1.1
"""Ratio up to which a number of parameters is that of the sizes."""


def read_model(
    data: Mapping[str, Any], notes: list[str], *, is_shaped: bool = False, has_dropout: bool = True
) -> Model:
    """Read the model of a row; a known name completes missing fields, and `has_dropout` is the default of dropout.

    `is_shaped`: the row comes from an experiment with shaped links between single GPUs.
    """
    data = _completed(data, notes)
    vocab = data.get("vocab")
    if is_missing(vocab) and is_shaped and "vocab" not in data:
        # Experiments with shaped links between single GPUs train only the blocks (Decentralized FM: no output layer).
        vocab = 1
        notes.append("vocab is not given: no output layer assumed")
    elif is_missing(vocab):
        vocab = 51200
        notes.append("vocab is not given: 51200 assumed, as in Megatron-LM's tables")
    sequence = whole(data, "seq", 1024)
    layers, hidden = _shape(data, notes)
    heads = whole(data, "heads", max(1, hidden // 128))
    is_gated = row_choices.is_gated(data.get("mlp"))
    if is_missing(data.get("seq")):
        notes.append(f"seq is not given: {sequence} assumed")
    if is_missing(data.get("heads")):
        notes.append(f"heads is not given: {heads} assumed, of 128 values each")
    notes += _defaults(data, hidden)
    # Gated models are of the kind of Llama: rotary positions, an output layer of their own, no dropout.
    if is_gated and not {"tied_embeddings", "positions", "dropout"} <= data.keys():
        notes.append("gated MLP: rotary positions, untied embeddings and no dropout assumed")
    model = Model(
        layers,
        hidden,
        heads,
        sequence,
        whole({"vocab": vocab}, "vocab", 51200),
        num_kv_heads=stated(data, "kv_heads"),
        ffn_hidden_size=stated(data, "ffn"),
        is_gated=is_gated,
        num_experts=whole(data, "experts", 1),
        experts_per_token=whole(data, "experts_per_token", 1),
        expert_groups=whole(data, "expert_groups", 1),
        groups_per_token=stated(data, "groups_per_token"),
        has_tied_embeddings=flag("model", data, "tied_embeddings", not is_gated),
        has_positions=row_choices.has_learned_positions(data.get("positions"), "rotary" if is_gated else "learned"),
        is_causal=flag("model", data, "causal", True),
        head_dim=stated(data, "head_dim"),
        attention=row_choices.attention_kind(data.get("attention")),
        q_lora_rank=maybe(data, "q_lora_rank") or 0,
        kv_lora_rank=whole(data, "kv_lora_rank", 512),
        rope_head_dim=whole(data, "rope_head_dim", 64),
        shared_experts=maybe(data, "shared_experts") or 0,
        dense_layers=maybe(data, "dense_layers") or 0,
        dense_ffn_size=stated(data, "dense_ffn"),
        sliding_window=maybe(data, "window"),
        windowed_share=number("windowed_share", given(data.get("windowed_share"), 0.5)),
        has_dropout=flag("model", data, "dropout", has_dropout and not is_gated),
    )
    parameters = number("params_b", given(data.get("params_b"), model.parameters / 1e9)) * 1e9
    if not 1 / _NEAR < model.parameters / parameters < _NEAR:
        notes.append(f"params_b {data['params_b']} is not the {model.parameters / 1e9:.3g} of the sizes, which count")
    return model


def _shape(data: Mapping[str, Any], notes: list[str]) -> tuple[int, int]:
    """Return layers and hidden size: as stated, otherwise those of a GPT with `params_b` parameters."""
    sizes = {name: stated(data, name) for name in ("layers", "hidden")}
    parameters = number("params_b", given(data.get("params_b"), 1)) * 1e9
    if not parameters > 0:
        raise ValueError(f"params_b {data['params_b']} is not positive; use billions of parameters")
    missing = [name for name, size in sizes.items() if size is None]
    layers, hidden = sizes.values()
    if layers and hidden:
        return layers, hidden
    if len(missing) == 1:
        raise ValueError(f"model.{missing[0]} is missing; give layers and hidden, or only params_b")
    if is_missing(data.get("params_b")):
        raise ValueError(_unknown_shape(given(data.get("name"), "")))
    layers, hidden = _usual_shape(parameters)
    notes.append(f"layers and hidden are not given: {layers} and {hidden} assumed for params_b {data['params_b']}")
    return layers, hidden


def _unknown_shape(name: str) -> str:
    """Return the error message for a model without sizes, whose name is missing or unknown."""
    if not name:
        return "model.layers, model.hidden and model.params_b are missing; give layers and hidden, or params_b"
    nearest = nearest_name(name, [known.name for known in PRESETS])
    hint = f"did you mean {nearest}? " if nearest else ""
    return f"name {name[:40]} is no known model; {hint}give layers and hidden, or params_b"


def _defaults(data: Mapping[str, Any], hidden: int) -> Iterator[str]:
    """Describe the values of a model that a row leaves out."""
    if is_missing(data.get("mlp")):
        yield "mlp is not given: plain assumed"
    if is_missing(data.get("ffn")):
        yield f"ffn is not given: {4 * hidden} assumed, 4 x hidden"
    if is_missing(data.get("kv_heads")) and data.get("attention") != "mla":
        yield "kv_heads is not given: as many as heads assumed"
    if whole(data, "experts", 1) > 1 and is_missing(data.get("experts_per_token")):
        yield "experts_per_token is not given: 1 assumed"


def _completed(data: Mapping[str, Any], notes: list[str]) -> Mapping[str, Any]:
    """Return the fields with those that the preset of this name adds; MLA without sizes gets those of DeepSeek-V3."""
    name = given(data.get("name"), "")
    if not isinstance(name, str):
        raise ValueError(f"name {str(name)[:40]!r} is not a text; use the name of a model, or leave it out")
    named = preset(name)
    if name and named is None:
        notes.append(f"name {name[:40]} is no known model: only the sizes of the row count")
    is_mla = "mla" in str(data.get("attention") or "").lower()
    source = named or (preset("DeepSeek-V3") if is_mla else None)
    if source is None:
        return data
    model = source.model
    usual: dict[str, Any] = {"head_dim": model.head_dim, "window": model.sliding_window}
    if is_mla:
        usual |= {"q_lora_rank": model.q_lora_rank, "kv_lora_rank": model.kv_lora_rank}
    if model.expert_groups > 1 and maybe(data, "experts") == model.num_experts:
        usual |= {"expert_groups": model.expert_groups, "groups_per_token": model.groups_per_token}
    if named and (is_missing(data.get("layers")) or is_missing(data.get("hidden"))):
        usual |= _fields(model)
    added = {field: value for field, value in usual.items() if value and is_missing(data.get(field))}
    if added:
        notes.append(
            f"{', '.join(added)} {'is' if len(added) == 1 else 'are'} not given: those of {source.name} assumed"
        )
    return {**data, **added}


def _fields(model: Model) -> dict[str, Any]:
    """Return the sizes of a model under the names of a row."""
    return {
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "heads": model.num_heads,
        "vocab": model.vocab_size,
        "kv_heads": model.num_kv_heads,
        "ffn": model.ffn_hidden_size,
        "mlp": "gated" if model.is_gated else "plain",
        "experts": model.num_experts,
        "experts_per_token": model.experts_per_token,
        "expert_groups": model.expert_groups if model.expert_groups > 1 else None,
        "groups_per_token": model.groups_per_token,
        "shared_experts": model.shared_experts,
        "dense_layers": model.dense_layers,
        "dense_ffn": model.dense_ffn_size,
        "attention": model.attention,
    }


def _usual_shape(parameters: float) -> tuple[int, int]:
    """Return layers and hidden size of a GPT with that many parameters, its hidden size about 128 times its layers."""
    layers = max(1, round((parameters / (12 * 128**2)) ** (1 / 3)))
    hidden = math.sqrt(parameters / (12 * layers))
    return layers, max(64, round(hidden / 64) * 64)
