"""Convert a command line of Megatron-LM or DeepSpeed, or DeepSpeed's JSON, to configuration fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.formats.launch import command_arguments, flatten, normalise
from parlab.formats.schema import Launch
from parlab.ingest.readings.launches import resolved_of
from runners.config.engines import MEGATRON, ZERO

VOCABULARIES = {"bert": 28_996, "gpt": 50_257}
"""Vocabulary sizes of bert-large-cased and GPT-2 before padding; Megatron reads them from a vocabulary file."""
PADDING = 128
MAX_LENGTH = 20_000
_CLIP = 1.0
"""Megatron's default of --clip-grad."""
_READ = (
    "num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings", "micro_batch_size",
    "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "train_iters", "log_interval",
    "lr", "clip_grad", "loss_scale", "optimizer", "seed", "fp16", "bf16", "sequence_parallel", "model", "vocab_size",
    "checkpoint_activations", "recompute_activations", "recompute_granularity", "zero_stage", "world_size",
    "nproc_per_node", "nnodes", "num_gpus", "num_nodes", "make_vocab_size_divisible_by", "weight_decay",
    "num_layers_per_virtual_pipeline_stage",
)  # fmt: skip


DEEPSPEED = frozenset({"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"})
"""Settings by which DeepSpeed's JSON is recognised; it states one of the batch sizes at least."""
_READ_SECTIONS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization", "fp16",
    "bf16", "optimizer",
)  # fmt: skip


class Flags(NamedTuple):
    """The flags of a command line as configuration fields."""

    data: dict[str, dict[str, Any]]
    """Sections of a RunConfig, with specified fields only."""
    unread: list[str]
    """Flags without a corresponding configuration field."""


MOST_ITERATIONS = 1_000
"""Iterations of a command that are taken over."""


def config_of_command(text: str) -> Flags:
    """Convert a command line. Raises ValueError if it does not specify the model size."""
    # A backslash at the end of a line continues the command.
    arguments = command_arguments(text[:MAX_LENGTH].replace("\\\n", " "))
    sizes, derived = normalise(arguments)
    resolved = resolved_of(Launch(**sizes, derived=derived, arguments=arguments))
    if not {"num_layers", "hidden_size"} <= resolved["model"].keys():
        raise ValueError("--num-layers and --hidden-size are required; paste the whole command with its flags")
    model, train, parallel = resolved["model"], resolved["train"], resolved["parallel"]
    is_bert = "bert" in text.lower() and arguments.get("model") != "gpt"
    model |= {"kind": "bert" if is_bert else "gpt", "attention_mask": "bidirectional" if is_bert else "causal"}
    tensor = int(parallel.get("tensor_parallel_size", 1))
    multiple = int(_positive(arguments, "make_vocab_size_divisible_by") or PADDING) * tensor
    entries = int(_positive(arguments, "vocab_size") or VOCABULARIES[model["kind"]])
    model["vocab_size"] = -(-entries // multiple) * multiple
    stage = sizes["zero_stage"]
    parallel |= {"engine": (ZERO if stage else MEGATRON).name, "zero_stage": stage or 0}
    if arguments.get("sequence_parallel") is True:
        parallel["sequence_parallel"] = True
    if not stage:
        _as_megatron(arguments, model, train, parallel)
    _fill_processes(resolved["cluster"], parallel)
    if interval := _positive(arguments, "log_interval"):
        train["log_interval"] = int(interval)
    unread = sorted(name for name in arguments if name not in _READ)
    # The command of a full training is measured over fewer iterations, which the user chooses.
    if train.get("iterations", 0) > MOST_ITERATIONS:
        unread.append(f"train_iters ({train.pop('iterations'):,} is a full training; set the iterations yourself)")
    return Flags(_without_empty(resolved), unread)


def config_of_deepspeed(content: Mapping[str, Any]) -> Flags:
    """Convert DeepSpeed's JSON, which states neither the model nor the number of processes."""
    arguments = dict(flatten(content))
    arguments["lr"] = arguments.get("optimizer.params.lr")
    sizes, derived = normalise(arguments)
    resolved = resolved_of(Launch(**sizes, derived=derived, arguments=arguments))
    parallel = resolved["parallel"]
    parallel |= {"engine": ZERO.name, "zero_stage": sizes["zero_stage"] or 0, "zero_offload": _offload(arguments)}
    batch, micro, steps = (
        sizes[name] for name in ("global_batch_size", "micro_batch_size", "gradient_accumulation_steps")
    )
    if isinstance(batch, int) and isinstance(micro, int) and micro:
        processes, rest = divmod(batch, micro * int(steps or 1))
        if steps and processes and not rest:
            parallel["data_parallel_size"] = processes
    return Flags(_without_empty(resolved), sorted(name for name in content if name not in _READ_SECTIONS))


def _offload(arguments: Mapping[str, Any]) -> str:
    for part, name in (("param", "all"), ("optimizer", "optimizer")):
        if arguments.get(f"zero_optimization.offload_{part}.device") not in (None, "none"):
            return name
    return "none"


def _as_megatron(
    arguments: Mapping[str, Any], model: Mapping[str, Any], train: dict[str, Any], parallel: dict[str, Any]
) -> None:
    """Fill the fields that only Megatron-LM has flags for, with its defaults."""
    clip, scale = arguments.get("clip_grad"), _positive(arguments, "loss_scale")
    train["gradient_clipping"] = 0.0 if clip == 0 else float(_positive(arguments, "clip_grad") or _CLIP)
    # Megatron's Adam uses decoupled weight decay (AdamW), unless the weight decay is 0.
    adam = "adam" if arguments.get("weight_decay") == 0 else "adamw"
    train["optimizer"] = "sgd" if arguments.get("optimizer") == "sgd" else adam
    if scale and train.get("precision") == "fp16":
        train["loss_scale"] = scale
    if layers := _positive(arguments, "num_layers_per_virtual_pipeline_stage"):
        chunks = int(model["num_layers"] // (layers * parallel.get("pipeline_parallel_size", 1)))
        parallel |= {"schedule": "interleaved-1f1b", "virtual_stages": max(chunks, 1)}


def _fill_processes(cluster: Mapping[str, Any], parallel: dict[str, Any]) -> None:
    """Use the remaining processes for data parallelism, as both trainers do."""
    model_size = parallel.get("tensor_parallel_size", 1) * parallel.get("pipeline_parallel_size", 1)
    processes = cluster.get("nodes", 1) * cluster.get("gpus_per_node", 0)
    if processes and processes % model_size == 0:
        parallel.setdefault("data_parallel_size", processes // model_size)


def _positive(arguments: Mapping[str, Any], name: str) -> float | None:
    value = arguments.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _without_empty(resolved: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {section: dict(fields) for section, fields in resolved.items() if fields}
