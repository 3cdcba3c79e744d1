"""A command line of Megatron-LM or DeepSpeed -> the fields of a configuration that train the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.formats.launch import command_arguments, normalise
from parlab.formats.schema import Launch
from parlab.ingest.launches import resolved_of

VOCABULARIES = {"bert": 28_996, "gpt": 50_257}
"""Entries of bert-large-cased's and GPT-2's vocabularies, before padding: Megatron reads them from a file."""
PADDING = 128
MAX_LENGTH = 20_000
_CLIP = 1.0
"""Megatron's default of --clip-grad."""
_READ = (
    "num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings", "micro_batch_size",
    "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "train_iters", "log_interval",
    "lr", "clip_grad", "loss_scale", "optimizer", "seed", "fp16", "bf16", "sequence_parallel", "model", "vocab_size",
    "checkpoint_activations", "recompute_activations", "recompute_granularity", "zero_stage", "world_size",
    "nproc_per_node", "nnodes", "num_gpus", "num_nodes", "make_vocab_size_divisible_by",
)  # fmt: skip


class Flags(NamedTuple):
    """What a command line says, as far as a configuration has a field for it."""

    data: dict[str, dict[str, Any]]
    """Sections of a RunConfig, without what nobody said."""
    unread: list[str]
    """Flags that change nothing here."""


def config_of_command(text: str) -> Flags:
    """Read a command line; raises ValueError where it names no size of a model."""
    # A line that goes on behind a backslash is one line.
    arguments = command_arguments(text[:MAX_LENGTH].replace("\\\n", " "))
    sizes, derived = normalise(arguments)
    told = resolved_of(Launch(**sizes, derived=derived, arguments=arguments))
    if not {"num_layers", "hidden_size"} <= told["model"].keys():
        raise ValueError("no --num-layers and --hidden-size in it; paste the whole command, with its flags")
    model, train, parallel = told["model"], told["train"], told["parallel"]
    is_bert = "bert" in text.lower() and arguments.get("model") != "gpt"
    model |= {"kind": "bert" if is_bert else "gpt", "attention_mask": "bidirectional" if is_bert else "causal"}
    tensor = int(parallel.get("tensor_parallel_size", 1))
    multiple = int(_number(arguments, "make_vocab_size_divisible_by") or PADDING) * tensor
    entries = int(_number(arguments, "vocab_size") or VOCABULARIES[model["kind"]])
    model["vocab_size"] = -(-entries // multiple) * multiple
    stage = sizes["zero_stage"]
    parallel |= {"engine": "zero", "zero_stage": stage} if stage else {"engine": "megatron", "zero_stage": 0}
    if arguments.get("sequence_parallel") is True:
        parallel["sequence_parallel"] = True
    if not stage:
        train["gradient_clipping"] = float(_number(arguments, "clip_grad") or _CLIP)
        train["optimizer"] = "sgd" if arguments.get("optimizer") == "sgd" else "adamw"
    if interval := _number(arguments, "log_interval"):
        train["log_interval"] = int(interval)
    # A training of days becomes a measurement; how long is for its reader to say.
    train.pop("iterations", None)
    return Flags(_without_empty(told), sorted(name for name in arguments if name not in _READ))


def _number(arguments: Mapping[str, Any], name: str) -> float | None:
    value = arguments.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _without_empty(told: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {section: dict(fields) for section, fields in told.items() if fields}
