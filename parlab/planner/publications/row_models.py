"""Read the model of a row of published measurements; missing keys get usual values, listed in the notes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from parlab.planner.job.model import Model
from parlab.planner.job.presets import preset

from . import row_choices
from .row_choices import flag
from .row_values import maybe, number, whole


def read_model(
    data: Mapping[str, Any], notes: list[str], *, is_shaped: bool = False, has_dropout: bool = True
) -> Model:
    """Read the model of a row; a known name completes missing fields, and `has_dropout` is the default of dropout.

    `is_shaped`: the row comes from an experiment with shaped links between single GPUs.
    """
    data = _completed(data, notes)
    vocab = data.get("vocab")
    if vocab is None and is_shaped and "vocab" not in data:
        # Experiments with shaped links between single GPUs train only the blocks (Decentralized FM: no output layer).
        vocab = 1
        notes.append("vocab is not given: no output layer assumed")
    elif vocab is None:
        vocab = 51200
        notes.append("vocab is not given: 51200 assumed, as in Megatron-LM's tables")
    sequence = whole(data, "seq", 1024)
    if data.get("layers") and data.get("hidden"):
        layers, hidden = whole(data, "layers", 1), whole(data, "hidden", 1)
    else:
        layers, hidden = _usual_shape(number("params_b", data.get("params_b") or 0) * 1e9)
        notes.append(
            f"layers and hidden are not given: {layers} and {hidden} assumed for params_b {data.get('params_b')}"
        )
    heads = whole(data, "heads", max(1, hidden // 128))
    is_gated = row_choices.is_gated(data.get("mlp"))
    if not data.get("seq"):
        notes.append(f"seq is not given: {sequence} assumed")
    if not data.get("heads"):
        notes.append(f"heads is not given: {heads} assumed, of 128 values each")
    # Gated models are of the kind of Llama: rotary positions, an output layer of their own, no dropout.
    if is_gated and not {"tied_embeddings", "positions", "dropout"} <= data.keys():
        notes.append("gated MLP: rotary positions, untied embeddings and no dropout assumed")
    return Model(
        layers,
        hidden,
        heads,
        sequence,
        whole({"vocab": vocab}, "vocab", 51200),
        num_kv_heads=maybe(data, "kv_heads"),
        ffn_hidden_size=maybe(data, "ffn"),
        is_gated=is_gated,
        num_experts=whole(data, "experts", 1),
        experts_per_token=whole(data, "experts_per_token", 1),
        expert_groups=whole(data, "expert_groups", 1),
        groups_per_token=maybe(data, "groups_per_token"),
        has_tied_embeddings=flag("model", data, "tied_embeddings", not is_gated),
        has_positions=row_choices.has_learned_positions(data.get("positions") or ("rotary" if is_gated else "learned")),
        is_causal=flag("model", data, "causal", True),
        head_dim=maybe(data, "head_dim"),
        attention=row_choices.attention_kind(data.get("attention")),
        q_lora_rank=maybe(data, "q_lora_rank") or 0,
        kv_lora_rank=whole(data, "kv_lora_rank", 512),
        rope_head_dim=whole(data, "rope_head_dim", 64),
        shared_experts=maybe(data, "shared_experts") or 0,
        dense_layers=maybe(data, "dense_layers") or 0,
        dense_ffn_size=maybe(data, "dense_ffn"),
        sliding_window=maybe(data, "window"),
        windowed_share=number("windowed_share", data.get("windowed_share", 0.5)),
        has_dropout=flag("model", data, "dropout", has_dropout and not is_gated),
    )


def _completed(data: Mapping[str, Any], notes: list[str]) -> Mapping[str, Any]:
    """Return the fields with those that the preset of this name adds; MLA without sizes gets those of DeepSeek-V3."""
    named = preset(str(data.get("name") or ""))
    if data.get("name") and named is None:
        notes.append(f"name {str(data['name'])[:40]} is no known model: only the sizes of the row count")
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
    if named and not (data.get("layers") and data.get("hidden")):
        usual |= _fields(model)
    added = {name: value for name, value in usual.items() if value and not data.get(name)}
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
    if not parameters > 0:
        raise ValueError(
            "model.layers, model.hidden and model.params_b are missing; give layers and hidden, or params_b"
        )
    layers = max(1, round((parameters / (12 * 128**2)) ** (1 / 3)))
    hidden = math.sqrt(parameters / (12 * layers))
    return layers, max(64, round(hidden / 64) * 64)
