"""Arguments of a launch under one set of names, for all tools."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from parlab.formats.grammar.names import SETTINGS as FIELDS
from parlab.formats.grammar.names import first_whole, is_size, precision, sizes_in
from parlab.formats.grammar.units import to_float, to_int

MAX_ARGUMENTS = 2_000
MAX_VALUE = 2_000

SETTINGS = "settings"
"""Key of sizes that a line of its own states, `sequence_len: 4096`: they fill what the reader has not read."""
_OWN_LINE = re.compile(r"[\"']?([A-Za-z][\w-]{3,40})[\"']?\s?[:=]\s?(\d{1,9}),?\s*$")


# A line of nothing but settings: `train_batch_tokens:524288 train_seq_len:1024 iterations:20000`.
_SETTINGS_LINE = re.compile(r"\s*(?:[A-Za-z][\w-]{2,40}[:=]\s?[\w./+-]{1,60}[,;|\s]{1,4}){2,40}")
_PAIR = re.compile(r"([A-Za-z][\w-]{2,40})[:=]\s?(\d{1,12})(?![\w.])")
# How many completions of each example a step of GRPO has.
_GENERATIONS = re.compile(r"\bnum_generations\b['\"]?(?: to | ?[:=] ?| of )(\d{1,3})\b")
# Options that a sentence names: `results for -batch_size 4096:`.
_OPTION = re.compile(r"(?<![\w-])--?([A-Za-z][\w-]{3,40})[ =](\d{1,9})(?![\w.%])")
_BY_TOKENS = re.compile(r"-batch[_-]type[ =]tokens")


def sizes_of_line(text: str) -> dict[str, int]:
    """Return the size of a launch that a line states and nothing else, or those of several settings, or of options.

    They have their printed names; of a command its own reader reads them.
    """
    text = text[:1_000]
    if (match := _OWN_LINE.match(text[:120])) is not None:
        name = normal_name(match[1])
        return {name: int(match[2])} if is_size(name) else {}
    if "_" in text and _SETTINGS_LINE.fullmatch(text.rstrip() + " "):
        pairs = {normal_name(pair[1]): int(pair[2]) for pair in _PAIR.finditer(text)}
        return pairs if any(map(is_size, pairs)) else {}
    if "num_gen" in text and (generations := _GENERATIONS.search(text)) is not None:
        return {"num_generations": int(generations[1])}
    if "-" not in text or is_command(text):
        return {}
    options = {normal_name(option[1]): int(option[2]) for option in _OPTION.finditer(text)}
    samples = () if _BY_TOKENS.search(text) else ("batch_size",)
    return {name: size for name, size in options.items() if is_size(name) or name in samples}


CONTEXT = ("context_parallel_size", "context_parallel_degree", "cp_size", "cp")
"""Printed names of the number of ranks that share a sequence."""


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


def flatten(data: Mapping[str, Any], prefix: str = "", depth: int = 0, *, mark: str = ".") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested objects as (name with dots or other marks, value); lists are leaves."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < 8:
            yield from flatten(value, f"{name}{mark}", depth + 1, mark=mark)
        else:
            yield name, value


def normalise(arguments: Mapping[str, Any]) -> tuple[dict[str, int | str | None], dict[str, str]]:
    """Return (values by normal name, explanations of the derived values) for the arguments of a launch.

    Megatron-LM 1.x prints `batch_size` (per data parallel rank, no accumulation) and `model_parallel_size`.
    """
    values: dict[str, int | str | None] = dict.fromkeys(FIELDS) | sizes_in(arguments)
    values["precision"] = precision(arguments)
    derived: dict[str, str] = {}
    _derive_replicas(values, derived, arguments)
    if values["micro_batch_size"] is None and "model_parallel_size" in arguments:
        values["micro_batch_size"] = first_whole(arguments, "batch_size")
    _derive(values, derived, first_whole(arguments, *CONTEXT) or 1)
    return values, derived


def _derive_replicas(
    values: dict[str, int | str | None], derived: dict[str, str], arguments: Mapping[str, Any]
) -> None:
    """Derive the number of GPUs from the batch sizes of the Trainer of Hugging Face, which has one replica on each."""
    names = ("total_train_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
    total, each, steps = (first_whole(arguments, name) for name in names)
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
    r"(?:^|[\s=`])(?:[^\s`]*python[\d.]*|torchrun|deepspeed|srun|mpirun|mpiexec|accelerate|horovodrun)(?=\s)|\.(?:py|sh)\s+-"
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


# A command within a sentence, in the marks of Markdown.
_QUOTED = re.compile(r"`([^`]{10,20000})`")
_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]{0,60})=(.{0,400})")


def command_arguments(text: str) -> dict[str, Any]:
    """Parse the options of a command line: `--world-size 3 --fp16` -> {"world_size": 3, "fp16": True}."""
    if (quoted := _QUOTED.search(text)) is not None and is_command(quoted[1]):
        text = quoted[1]
    arguments: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    name: str | None = None
    values: list[str] = []

    def close() -> None:
        if name and len(arguments) < MAX_ARGUMENTS:
            value = typed(" ".join(values)) if values else True
            arguments.setdefault(name, value)
            if is_size(last := name.rpartition(".")[2]):
                arguments.setdefault(last, value)

    for word in _words(text):
        if name is None and (variable := _VARIABLE.fullmatch(word)):
            if is_size(variable[1].lower()):
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


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=False)
    except ValueError:
        return command.split()


def _with_world(text: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Add the number of processes from a launcher's options."""

    each = first_whole(arguments, "nproc_per_node", "ntasks_per_node", "num_gpus")
    nodes = first_whole(arguments, "nnodes", "nodes", "num_nodes") or 1
    started = first_whole(arguments, *(("np", "n", "ntasks") if _SPAWNED.search(text) else ("num_processes",)))
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
