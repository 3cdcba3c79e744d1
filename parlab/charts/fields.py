"""Fields of a configuration in the words of pages and figures: labels, units and values."""

from __future__ import annotations

from .format import SPACE, field_title, field_value

UNITS = {
    "model.sequence_length": "tokens",
    "model.prefix_length": "tokens",
    "train.global_batch_size": "sequences",
    "train.micro_batch_size": "sequences",
    "train.iterations": "steps",
    "train.warmup_steps": "steps",
    "train.log_interval": "steps",
    "parallel.data_parallel_size": "ranks",
    "parallel.tensor_parallel_size": "ranks",
    "parallel.pipeline_parallel_size": "ranks",
}
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "interleaved 1F1B",
    "zb-h1": "ZB-H1",
    "zb-h2": "ZB-H2",
    "zb-v": "ZB-V",
    "dualpipe": "DualPipe",
    "dualpipe-v": "DualPipe-V",
}
"""Pipeline schedules in words."""
ENDINGS = {
    "_gbps": "Gbit/s",
    "_bytes": "B",
    "_mib": "MiB",
    "_pct": "%",
    "_ms": "ms",
    "_s": "s",
}
"""Ending of a field name -> unit."""
_LABEL_PARTS = {
    "gpus": "GPUs",
    "cnt": "count",
    "dim": "dimension",
    "argv": "Arguments",
    "vocab": "Vocabulary",
    "num": "Number of",
}


def unit_of(field: str) -> str:
    """Return the unit of a dotted field; empty for counts and strings."""
    return UNITS.get(field) or ENDINGS.get(_ending(field), "")


def _ending(field: str) -> str:
    # Of a rate, "_s" is part of the name: tokens_per_s.
    if field.endswith("_per_s"):
        return ""
    return next((ending for ending in ENDINGS if field.endswith(ending)), "")


def label_of(field: str) -> str:
    """Return the label of a dotted field, without the unit, which is displayed separately."""
    parts = field_title(field.removesuffix(_ending(field))).split()
    return " ".join(_LABEL_PARTS.get(part.lower(), part) for part in parts)


def value_label(field: str, value: object) -> str:
    """Return a field with its value for the middle of a sentence: `micro batch size 2`, `delay 5 ms`."""
    name = label_of(field)
    if not (name[:2].isupper() or name.startswith("ZeRO")):
        name = name[:1].lower() + name[1:]
    # Of counts the name says what is counted.
    unit = "" if value is None or field in UNITS else unit_of(field)
    text = "unset" if value is None else field_value(value)
    return f"{name} {text}{SPACE}{unit}" if unit else f"{name} {text}"


def field_heading(field: str) -> str:
    """Return a field or axis as the title of an axis, a menu or a column: `Delay (ms)`, `Micro batch size`."""
    # Of counts the name says what is counted.
    unit = "" if field in UNITS else unit_of(field)
    return f"{label_of(field)} ({unit})" if unit else label_of(field)
