"""Settings and differences in words: `1F1B with micro batch 2`, `2.0 ×`, `10 % behind`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.charts.axes import GPUS, SIZE_AXES
from parlab.charts.fields import SCHEDULES, value_label
from parlab.charts.format import SPACE, field_value, significant

_PHRASES = {
    "train.micro_batch_size": "micro batch {}",
    "train.global_batch_size": "batch {}",
    "parallel.zero_stage": "stage {}",
    "parallel.tensor_parallel_size": "tensor {}",
    "parallel.pipeline_parallel_size": "pipeline {}",
    "parallel.data_parallel_size": "data {}",
    "sharding.sharding_dim": "dimension {}",
    "cluster.nodes": "{} nodes",
    "configuration": "version {}",
    "commit": "commit {}",
    GPUS: "{} GPUs",
}
_RECOMPUTE = {"none": "no recomputation", "full": "full recomputation", "selective": "selective recomputation"}
MEASURABLE = 0.005
"""Shares below are no measurable difference where they are within noise."""
TWICE = 1.5
"""Ratios from here on are told as such: `1.9 ×`; smaller ones as a percentage."""


def named(field: str, value: Any) -> str:
    """Return a setting in words: `1F1B`, `micro batch 2`, `no recomputation`."""
    text = field_value(value)
    if field == GPUS and value == 1:
        return "1 GPU"
    if field == "train.recompute":
        return _RECOMPUTE.get(text, text)
    if isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:,}"
    if form := _PHRASES.get(field):
        return form.format(text)
    if isinstance(value, str) and len(value) > 1:
        return SCHEDULES.get(text.lower(), text)
    return value_label(field, value)


def phrase(values: Mapping[str, Any]) -> str:
    """Return settings in words, the first one leading: `1F1B with micro batch 2`; empty without any."""
    sizes = {field: value for field, value in values.items() if field in SIZE_AXES}
    split = {field: value for field, value in sizes.items() if value != 1}
    told = {field: value for field, value in values.items() if field not in sizes or len(sizes) == 1} | split
    parts = [named(field, value) for field, value in told.items()]
    if sizes and not parts:
        return "one process"
    if len(parts) < 2 or len(told) == len(split):
        return ", ".join(parts)
    return f"{parts[0]} with {' and '.join(parts[1:3])}"


def times(ratio: float) -> str:
    """Return a ratio of at least 1: `2.0 ×`, `12 ×`."""
    return f"{significant(ratio, 2)}{SPACE}×"


def share(value: float, digits: int = 2) -> str:
    """Return a share as a percentage of two digits: `10 %`, `0.8 %`."""
    return f"{significant(100 * value, digits)}{SPACE}%"


def gap(value: float, *, is_unsure: bool = False) -> str:
    """Return how far something is behind: `10 % behind`, `as fast` if the difference is nothing or cannot be measured.

    Within noise a second digit would say nothing.
    """
    if abs(value) < (MEASURABLE if is_unsure else 5e-4):
        return "as fast"
    return f"{share(value, 1 if is_unsure else 2)} behind"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
