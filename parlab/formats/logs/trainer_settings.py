"""Settings that the Trainer of Hugging Face, and scripts written after it, print when the training starts."""

from __future__ import annotations

import re

from parlab.formats.grammar.units import to_int

_SETTING = re.compile(
    r"\s{0,4}(?:\[INFO\|[\w.]{1,40}:\d{1,6}\]\s?[\d\-: ,]{0,24}>>|- INFO - [\w.]{1,60} -|\[ {0,4}INFO\] - |>>)?"
    r"\s{1,4}([A-Z][\w (),.&]{2,80}?) = (\S{1,40})\s*$"
)
# `  num epochs / epoch数: 10`.
_TRANSLATED = re.compile(r"\s{0,4}([a-z][a-z *]{3,40}) / [^:=]{0,60}[^\x00-\x7f:=](?: =|:) (\d{1,12})\s*$")
_ARGUMENTS = {
    "Instantaneous batch size per device": "per_device_train_batch_size",
    "Total train batch size": "total_train_batch_size",
    "Gradient Accumulation steps": "gradient_accumulation_steps",
    "Total optimization steps": "max_steps",
    "Num examples": "num_examples",
    "Num Epochs": "num_train_epochs",
    "Number of trainable parameters": "trainable_parameters",
    # sd-scripts of kohya, in two languages.
    "num train images * repeats": "num_examples",
    "num epochs": "num_train_epochs",
    "batch size per device": "per_device_train_batch_size",
    "gradient accumulation steps": "gradient_accumulation_steps",
    "total optimization steps": "max_steps",
    # Unsloth's banner.
    "Batch size per device": "per_device_train_batch_size",
    "Total batch size": "total_train_batch_size",
    "Total steps": "max_steps",
}
_ON_BANNER = re.compile(r"([A-Z][A-Za-z ]{2,60}?) = ([\d,]{1,20})(?=\s|$)")


def banner_settings(text: str) -> dict[str, int] | None:
    """Return the arguments of a line of Unsloth's banner, `Total batch size = 16 | Total steps = 312`, or None."""
    found = {_ARGUMENTS.get(match[1].strip()): to_int(match[2]) for match in _ON_BANNER.finditer(text)}
    return {name: value for name, value in found.items() if name and value is not None} or None


def trainer_setting(text: str) -> dict[str, int] | None:
    """Return the argument that a line sets, empty for one that is not kept; None for any other line."""
    match = _SETTING.match(text) or _TRANSLATED.match(text)
    if match is None:
        return None
    name = _ARGUMENTS.get(match[1].partition(" (")[0])
    value = to_int(match[2])
    return {name: value} if name and value is not None else {}
