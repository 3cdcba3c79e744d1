"""Arguments of a launch under one set of names, for all tools."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from parlab.formats.grammar.processes import STATED
from parlab.formats.grammar.units import to_float, to_int

MAX_ARGUMENTS = 2_000
MAX_VALUE = 2_000

# Normal name -> printed names, in order of preference.
SIZES: dict[str, tuple[str, ...]] = {
    "world_size": ("world_size", "num_gpus", "n_gpus", "ranks", STATED),
    "data_parallel_size": (
        "data_parallel_size", "dp", "dp_degree", "data_parallel_degree", "data_parallel_replicate_degree",
    ),
    "tensor_parallel_size": (
        "tensor_model_parallel_size", "tensor_parallel_size", "model_parallel_size", "tp", "tp_degree",
        "tensor_parallel_degree", "tp_size",
    ),
    "pipeline_parallel_size": (
        "pipeline_model_parallel_size", "pipeline_parallel_size", "pp", "pp_degree", "pipeline_parallel_degree",
        "pp_size", "pipe_parallel_size", "stage_cnt",
    ),
    "micro_batch_size": (
        "micro_batch_size", "train_micro_batch_size_per_gpu", "per_device_train_batch_size", "train_micro_batch_size",
    ),
    "global_batch_size": ("global_batch_size", "train_batch_size", "total_train_batch_size", "global_train_batch_size"),
    "gradient_accumulation_steps": (
        "gradient_accumulation_steps", "num_micro_batches", "accumulation_steps", "accum_degree", "gas",
        "batch_accumulation_per_replica",
    ),
    "sequence_length": (
        "seq_length", "sequence_length", "seq_len", "encoder_seq_length", "max_seq_len", "max_seq_length",
        "max_sequence_length", "block_size", "seqlen", "sequence_len",
    ),
    "num_layers": (
        "num_layers", "n_layers", "n_layer", "num_hidden_layers", "encoder_num_layers",
        "number_of_layers", "number_of_layer",
    ),
    "hidden_size": ("hidden_size", "n_embd", "dim", "d_model", "embedding_dim", "model_dim"),
    "num_attention_heads": (
        "num_attention_heads", "n_heads", "n_head", "num_heads", "number_of_heads", "number_of_head",
    ),
    "zero_stage": ("zero_stage", "zero_optimization_stage"),
}  # fmt: skip

SETTINGS = "settings"
"""Key of sizes that a line of its own states, `sequence_len: 4096`: they fill what the reader has not read."""
_OWN_LINE = re.compile(r"[\"']?([A-Za-z][\w-]{3,40})[\"']?\s?[:=]\s?(\d{1,9}),?\s*$")


def size_of_line(text: str) -> dict[str, int] | None:
    """Return the size of a launch that a line states and nothing else, under its printed name; None for any other."""
    match = _OWN_LINE.match(text[:120])
    if match is None:
        return None
    name = normal_name(match[1])
    return {name: int(match[2])} if name in _SIZE_NAMES else None


CONTEXT = ("context_parallel_size", "context_parallel_degree", "cp_size", "cp")
"""Printed names of the number of ranks that share a sequence."""

_SIZE_NAMES = frozenset(name for field, names in SIZES.items() if field != "world_size" for name in names)
_TRUE = {"true", "yes", "1"}


def normal_name(name: str) -> str:
    """Convert an argument's name to an identifier: `--seq-length` -> seq_length."""
    return name.strip().lstrip("-").replace("-", "_").replace(" ", "_")


def typed(text: str) -> Any:
    """Convert an argument's value to int, float, bool or None; return other texts unchanged."""
    text = text.strip()[:MAX_VALUE]
    if text in ("True", "true"):
        return True
    if text in ("False", "false"):
        return False
    if text in ("None", "null", ""):
        return None
    whole = to_int(text) if "," not in text else None
    if whole is not None:
        return whole
    number = to_float(text) if "," not in text and "_" not in text else None
    return text if number is None else number


def flatten(data: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested settings as (dotted name, value); lists are leaves."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < 8:
            yield from flatten(value, f"{name}.", depth + 1)
        else:
            yield name, value


def _flag(arguments: Mapping[str, Any], name: str) -> bool:
    value = arguments.get(name)
    return value is True or (isinstance(value, str) and value.lower() in _TRUE)


def precision(arguments: Mapping[str, Any]) -> str | None:
    """Return fp32, fp16, bf16 or fp8 from switches or a printed dtype; None if neither is printed."""
    for name, value in (("fp8", "fp8"), ("bf16", "bf16"), ("fp16", "fp16"), ("half", "fp16")):
        if _flag(arguments, name) or _flag(arguments, f"{name}.enabled") or _flag(arguments, f"{name}_enabled"):
            return value
        if name == "fp8" and isinstance(arguments.get("fp8"), str):
            return "fp8"
    for name in ("params_dtype", "precision", "dtype", "torch_dtype", "mixed_precision_param"):
        text = str(arguments.get(name, "")).lower()
        for mark, value in (("bf16", "bf16"), ("bfloat16", "bf16"), ("float16", "fp16"), ("fp16", "fp16"),
                            ("16", "fp16"), ("float32", "fp32"), ("fp32", "fp32"), ("32", "fp32")):  # fmt: skip
            if mark in text:
                return value
    if {"fp16", "bf16"} & arguments.keys():
        return "fp32"
    return None


def _first_int(arguments: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str):
            value = to_int(value)
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 <= value < 2**53
            and value == int(value)
        ):
            return int(value)
    return None


def normalise(arguments: Mapping[str, Any]) -> tuple[dict[str, int | str | None], dict[str, str]]:
    """Return (values by normal name, explanations of the derived values) for the arguments of a launch.

    Megatron-LM 1.x prints `batch_size` (per data parallel rank, no accumulation) and `model_parallel_size`.
    """
    values: dict[str, int | str | None] = {name: _first_int(arguments, names) for name, names in SIZES.items()}
    if values["zero_stage"] is None:
        values["zero_stage"] = _first_int(arguments, ("zero_optimization.stage", "zero_config.stage"))
    values["precision"] = precision(arguments)
    derived: dict[str, str] = {}
    _derive_replicas(values, derived, arguments)
    if values["micro_batch_size"] is None and "model_parallel_size" in arguments:
        values["micro_batch_size"] = _first_int(arguments, ("batch_size",))
    _derive(values, derived, _first_int(arguments, CONTEXT) or 1)
    return values, derived


def _derive_replicas(
    values: dict[str, int | str | None], derived: dict[str, str], arguments: Mapping[str, Any]
) -> None:
    """Derive the number of GPUs from the batch sizes of the Trainer of Hugging Face, which has one replica on each."""
    names = ("total_train_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
    total, each, steps = (_first_int(arguments, (name,)) for name in names)
    is_split = any(values[f"{side}_parallel_size"] not in (None, 1) for side in ("tensor", "pipeline"))
    if values["world_size"] is None and total and each and steps and total % (each * steps) == 0 and not is_split:
        values["world_size"] = total // (each * steps)
        derived["world_size"] = " / ".join((names[0], f"({names[1]} * {names[2]})"))


def _derive(values: dict[str, int | str | None], derived: dict[str, str], context: int) -> None:
    """Derive missing values: DP = GPUs / (TP * PP * CP), and accumulation = global / (micro * DP) or its inverse."""

    def get(name: str) -> int | None:
        value = values.get(name)
        return value if isinstance(value, int) and value > 0 else None

    world, tensor, pipeline = get("world_size"), get("tensor_parallel_size"), get("pipeline_parallel_size")
    share = (tensor or 1) * (pipeline or 1) * context
    if get("data_parallel_size") is None and world and tensor and world % share == 0:
        values["data_parallel_size"] = world // share
        by_context = " * context_parallel_size" if context > 1 else ""
        derived["data_parallel_size"] = f"world_size / (tensor_parallel_size * pipeline_parallel_size{by_context})"
    if world is None and (data := get("data_parallel_size")):
        values["world_size"] = data * share
        derived["world_size"] = "data_parallel_size * tensor_parallel_size * pipeline_parallel_size"
    data, micro, batch = get("data_parallel_size"), get("micro_batch_size"), get("global_batch_size")
    steps = get("gradient_accumulation_steps")
    if steps is None and data and micro and batch and batch % (micro * data) == 0:
        values["gradient_accumulation_steps"] = batch // (micro * data)
        derived["gradient_accumulation_steps"] = "global_batch_size / (micro_batch_size * data_parallel_size)"
    elif batch is None and steps and data and micro:
        values["global_batch_size"] = micro * steps * data
        derived["global_batch_size"] = "micro_batch_size * gradient_accumulation_steps * data_parallel_size"


_COMMAND = re.compile(
    r"(?:^|[\s=])(?:\S*python[\d.]*|torchrun|deepspeed|srun|mpirun|mpiexec|accelerate|horovodrun)(?=\s)|\.(?:py|sh)\s+-"
)


# Options with a single value, after which the started command may follow.
_SINGLE = {
    "np",
    "n",
    "ntasks",
    "nproc_per_node",
    "ntasks_per_node",
    "gpus_per_node",
    "nnodes",
    "nodes",
    "num_gpus",
    "num_nodes",
    "num_machines",
    "num_processes",
    "node_rank",
    "master_port",
}


# `BS=8 DP=8 python3 train.py`: settings in the environment of a command.
_ENVIRONMENT = re.compile(
    r"\W{0,3}(?:[A-Z][A-Z0-9_]{0,60}=\S{0,400}\s{1,4}){2,100}(?:\S*python[\d.]*|torchrun|deepspeed)\s"
)


def is_command(text: str) -> bool:
    """Return whether a line is a command that starts a program with options, or with settings in its environment."""
    if len(text) >= 100_000:
        return False
    return (" --" in text and _COMMAND.search(text) is not None) or (
        "=" in text[:80] and _ENVIRONMENT.match(text) is not None
    )


_SIZE_NAMES = frozenset(name for names in SIZES.values() for name in names)
_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]{0,60})=(.{0,400})")


def command_arguments(text: str) -> dict[str, Any]:
    """Parse the options of a command line: `--world-size 3 --fp16` -> {"world_size": 3, "fp16": True}."""
    try:
        tokens = shlex.split(text, comments=False)
    except ValueError:
        tokens = text.split()
    arguments: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    name: str | None = None
    values: list[str] = []

    def close() -> None:
        if name and len(arguments) < MAX_ARGUMENTS:
            arguments.setdefault(name, typed(" ".join(values)) if values else True)

    for word in tokens:
        if name is None and (variable := _VARIABLE.fullmatch(word)):
            if variable[1].lower() in _SIZE_NAMES:
                environment.setdefault(variable[1].lower(), typed(variable[2]))
        elif word.startswith("--") and len(word) > 2 and not word[2].isdigit():
            close()
            head, equals, value = word.partition("=")
            name, values = normal_name(head), [value] if equals else []
        elif word in ("-np", "-n") and not arguments:
            close()
            name, values = word.lstrip("-"), []
        elif word.startswith("-") and len(word) > 1 and not (word[1].isdigit() or word[1] == "."):
            close()
            name, values = None, []
        elif name and (len(values) < 1 or name not in _SINGLE):
            values.append(word)
    close()
    return _with_world(text, {**environment, **arguments})


def _with_world(text: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Add the number of processes from a launcher's options."""

    def size(*names: str) -> int | None:
        return _first_int(arguments, names)

    each = size("nproc_per_node", "ntasks_per_node", "num_gpus")
    nodes = size("nnodes", "nodes", "num_nodes") or 1
    started = size("np", "n", "ntasks") if _SPAWNED.search(text) else size("num_processes")
    world = each * nodes if each else started
    if world and "world_size" not in arguments:
        arguments["world_size"] = world
    for name in ("np", "n"):
        arguments.pop(name, None)
    return arguments


_SPAWNED = re.compile(r"(?:^|[\s;&|$])(?:mpirun|mpiexec|srun)\b")

_NAMESPACE = re.compile(r"\bNamespace\((.{1,60000})\)\s*$")
_ITEM = re.compile(r"(\w{1,80})=('[^']{0,2000}'|\"[^\"]{0,2000}\"|\[[^\]]{0,2000}\]|[^,()]{0,200})")


def namespace_arguments(text: str) -> dict[str, Any]:
    """Parse the output of argparse: `Namespace(fp16=True, mode='gpipe')`; return {} for any other line."""
    match = _NAMESPACE.search(text) if "Namespace(" in text else None
    if match is None:
        return {}
    items = list(_ITEM.finditer(match[1]))[:MAX_ARGUMENTS]
    return {item[1]: typed(item[2].strip("'\"")) for item in items}
