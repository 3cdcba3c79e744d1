"""Figures that files state, as text; the unit follows from the normalised name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from parlab.charts.format import (
    SPACE,
    duration,
    exact,
    exact_quantity,
    field_title,
    printed_digits,
    quantity,
    significant,
)

# Suffix of a name -> unit of its value; the longest first.
_UNITS = (
    ("tokens_per_s_per_gpu", "tokens/s"), ("tflops_per_gpu", ""), ("tflops", ""), ("flops_per_gpu", "FLOP/s"),
    ("flops", "FLOP/s"), ("_per_s", "/s"),
    ("_bytes", "B"), ("_pct", "%"), ("_s", "s"),
)  # fmt: skip
# Figures that every run shows among its main numbers; "value" is the only number of a cell.
_HEADLINES = ("value", "ms_per_sample", "gpu_mem_bytes", "samples_per_s", "tokens_per_s", "step_time_s")
# Suffixes for units, which the value already has.
_UNIT_SUFFIXES = ("_bits_per_s", "_bytes_per_s", "_bytes", "_pct", "_s")
# Seconds beyond this are written in minutes and hours.
_LONG = 120.0
_SPELLINGS = {
    "Ms": "ms",
    "Mfu": "MFU",
    "mfu": "MFU",
    "Hfu": "HFU",
    "hfu": "HFU",
    "Gpu": "GPU",
    "gpu": "GPU",
    "mem": "memory",
    "Flops": "FLOP/s",
    "flops": "FLOP/s",
    "Tflops": "TFLOP/s",
}


_TITLES = {
    "num_gpus": "GPUs",
    "num_nodes": "Nodes",
    "num_layers": "Layers",
    "num_attention_heads": "Attention heads",
    "num_experiments": "Experiments",
    "avg_step_fps": "Throughput (avg_step_fps)",
    "mfu": "MFU",
    "hfu": "HFU",
    "samples_per_s": "Throughput",
    "tokens_per_s": "Token throughput",
}

KINDS = {
    "derived": "derived from other numbers",
    "average": "average since the start",
    "smoothed": "smoothed by a progress bar",
    "cumulative": "since the start",
    "part": "a part of the step only",
}
"""How a number of an import came about where it is not printed as such."""


def figure_title(name: str) -> str:
    """Return a figure as a heading: `gpu_mem_bytes` becomes `GPU memory`, `samples_per_s` `Throughput`."""
    if " " in name:
        return name
    if name in _TITLES:
        return _TITLES[name]
    for rate, quantity_name in (("tokens_per_s", "token throughput"), ("samples_per_s", "throughput")):
        for of_one in ("", "_per_gpu"):
            if name.endswith(rate + of_one):
                name = name.removesuffix(rate + of_one) + quantity_name + of_one
    if not name.endswith("_per_s") or name.endswith(("_bits_per_s", "_bytes_per_s")):
        name = name.removesuffix(next((ending for ending in _UNIT_SUFFIXES if name.endswith(ending)), ""))
    parts = field_title(name.replace(".", " ")).split()
    title = " ".join(_SPELLINGS.get(part, part) for part in parts)
    return f"{title.removesuffix(' per s')}/s" if title.endswith(" per s") else title


def figure_value(name: str, figure: Mapping[str, Any]) -> str:
    """Write a figure: a value or a range, with the total if there is one; a dash if it has no number."""
    low, high, total, value = (figure.get(part) for part in ("low", "high", "total", "value"))
    if low is not None and high is not None:
        first, last = _with_unit(name, low), _with_unit(name, high)
        number, _, unit = first.partition(SPACE)
        # A range in one unit states it once: 1.2 to 1.5 s.
        text = f"{number if unit and last.endswith(SPACE + unit) else first} to {last}"
    else:
        text = significant(None) if value is None else _with_unit(name, value)
    return f"{text} of {_with_unit(name, total)}" if total is not None else text


def stated(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures that a file states of a run besides the main numbers, by name."""
    return {
        name: _stated_text(name, figure)
        for name, figure in (summary.get("figures") or {}).items()
        if name not in _HEADLINES and isinstance(figure, Mapping)
    }


_SPEED = re.compile(r"(?i)(?:^|[ _])(?:fps|[tp]?flops?(?:/s)?)(?![a-z])(?!.*(?:%|aggr|total))|_per_s$")


def is_speed(name: str) -> bool:
    """Return whether a figure that a file states is a speed of the whole run or of one GPU."""
    return _SPEED.search(name) is not None


def _stated_text(name: str, figure: Mapping[str, Any]) -> str:
    text = str(figure.get("text", ""))
    is_cell = figure.get("value") is None or text[:1].isdigit() or text.startswith(tuple("+-.~<>"))
    return text[:60] if is_cell else figure_value(name, figure)


def figure_digits(name: str, figure: Mapping[str, Any]) -> str:
    """Write all digits of a figure with its normalised unit."""
    value = figure.get("value")
    return "" if value is None else exact_quantity(value, _unit(name)).strip()


def _unit(name: str) -> str:
    ending, unit = next(((ending, unit) for ending, unit in _UNITS if name.endswith(ending)), ("", ""))
    return f"{name.removesuffix(ending).rpartition('_')[2]}/s" if unit == "/s" else unit


def _with_unit(name: str, value: float) -> str:
    unit = _unit(name)
    if unit == "%":
        return f"{significant(value, printed_digits(value))} %"
    digits = printed_digits(value, unit)
    if unit == "s" and abs(value) >= _LONG:
        return duration(value)
    if unit:
        return quantity(value, unit, digits)
    # Counts in full: 12 layers, not 12.0.
    return exact(value) if value == int(value) and abs(value) < 1e6 else significant(value, digits)
