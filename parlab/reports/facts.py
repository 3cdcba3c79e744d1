"""What one run was told, set to and measured, as tables: a row per fact. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from parlab.charts.format import SPACE, exact_quantity, field_value
from parlab.charts.points import is_number

from .blocks import TableBlock, Text
from .pivot import Record, number_text
from .units import shown_unit, title_of, unit_of

# What a run's own summary measures, in the order in which people ask for it.
_MEASURED = {
    "step_time_s": "Step time",
    "step_time_p10_s": "Step time, 10th percentile",
    "step_time_p90_s": "Step time, 90th percentile",
    "samples_per_s": "Throughput",
    "tokens_per_s": "Tokens",
    "ms_per_sample": "Time per sample",
    "memory_max_bytes": "Most memory",
    "memory_min_bytes": "Least memory",
    "memory_total_bytes": "Memory of a GPU",
    "gpu_util_pct": "GPU utilisation",
    "mfu_pct": "MFU",
    "hfu_pct": "HFU",
    "tflops_per_gpu": "FLOP rate of a GPU",
}
HEADLINES = ("step_time_s", "samples_per_s", "tokens_per_s", "ms_per_sample", "memory_max_bytes", "mfu_pct")
"""The numbers that a slide has room for."""
_NOT_SET = ("argument", "figure", "timer")
"""First words of dotted names that are no part of a configuration."""

Number = Callable[[Any], int]
"""Gives a doubt its number in the report."""


class Fact(NamedTuple):
    """One row: what it is, its words, its value in SI units, and the field that doubts are about."""

    name: str
    text: str
    value: Any
    field: str = ""


def numbers_of(record: Record) -> list[Fact]:
    """List what was measured of a run, then the further numbers that its file states; nothing twice."""
    wanted = _MEASURED | {name: title_of(name) for name in record if name.startswith("figure.")}
    facts: list[Fact] = []
    said: set[tuple[Any, str]] = set()
    for name, title in wanted.items():
        value: Any = record.get(name)
        if not is_number(value) or not unit_of(name):
            continue
        unit = shown_unit(name, [value])
        text = f"{number_text(value / unit.factor, None, is_count=False)}{SPACE}{unit.name}"
        if name in _MEASURED or (value, unit.base) not in said:
            facts.append(Fact(title, text, value, name))
        said.add((value, unit.base))
    return facts


def timers_of(record: Record) -> list[Fact]:
    """List the timers of a run in ms."""
    found = {name: value for name, value in record.items() if name.startswith("timer.")}
    return [
        Fact(name.removeprefix("timer."), number_text(value * 1e3, 2, is_count=False), value, name)
        for name, value in found.items()
    ]


def _arguments(record: Record) -> list[Fact]:
    found = {name: value for name, value in record.items() if name.startswith("argument.")}
    return [Fact(name.removeprefix("argument."), str(value), value) for name, value in found.items()]


def _configuration(record: Record) -> list[Fact]:
    found = {name: value for name, value in record.items() if "." in name and name.partition(".")[0] not in _NOT_SET}
    return [Fact(name, field_value(value), value) for name, value in found.items()]


_KINDS: dict[str, tuple[Callable[[Record], list[Fact]], tuple[str, str]]] = {
    "numbers": (numbers_of, ("Number", "Value")),
    "timers": (timers_of, ("Timer", "ms")),
    "arguments": (_arguments, ("Argument", "Value")),
    "configuration": (_configuration, ("Field", "Value")),
}


def run_block(record: Record, options: Mapping[str, str], doubt: Number) -> TableBlock:
    """Make `table run what=numbers|timers|arguments|configuration` of one run: a row per fact. Raises ValueError."""
    what = options.get("what", "numbers")
    if what not in _KINDS:
        raise ValueError(f"what={what!r} is unknown; use {', '.join(_KINDS)}")
    made, header = _KINDS[what]
    facts = made(record)
    if not facts:
        raise ValueError(f"run {record.get('run')} has no {what}")
    is_numbers = what in ("timers", "numbers")
    doubts: Mapping[str, Any] = record.get("doubts") or {}
    return TableBlock(
        title=options.get("title", ""),
        header=[Text(text=header[0]), Text(text=header[1], is_number=is_numbers)],
        rows=[
            [
                Text(text=fact.name, state="name"),
                Text(
                    text=fact.text,
                    is_number=is_numbers,
                    doubts=[doubt(one) for one in doubts.get(fact.field, ())],
                    exact=exact_quantity(fact.value, unit_of(fact.field)).strip() if is_numbers else "",
                ),
            ]
            for fact in facts
        ],
        numbers=[list(header), *([fact.name, fact.value] for fact in facts)],
    )
