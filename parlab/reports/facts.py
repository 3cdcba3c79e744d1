"""Arguments, configuration and results of one run as tables with a row per fact. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import DIGITS, SPACE, exact_quantity, field_value, printed_digits, significant
from parlab.charts.points import is_number

from .blocks import TableBlock, Text
from .pivot import PRINTED, Record, kind_of, number_text
from .units import shown_unit, title_of, unit_of

# Results of a run, in order of interest.
MEASURED = {
    "step_time_s": "Step time",
    "step_time_p10_s": "Step time, 10th percentile",
    "step_time_p90_s": "Step time, 90th percentile",
    "samples_per_s": "Throughput",
    "tokens_per_s": "Token throughput",
    "ms_per_sample": "Time per sample",
    "memory_max_bytes": "Peak memory",
    "memory_min_bytes": "Minimum memory",
    "memory_total_bytes": "Memory per GPU",
    "gpu_util_pct": "GPU utilisation",
    "mfu_pct": "MFU",
    "hfu_pct": "HFU",
    "tflops_per_gpu": "FLOP/s per GPU",
}
HEADLINES = ("step_time_s", "samples_per_s", "tokens_per_s", "ms_per_sample", "memory_max_bytes", "mfu_pct")
"""Numbers shown as headlines."""
_NOT_SET = ("argument", "figure", "timer")
"""Prefixes of dotted names that are not part of a configuration."""

Number = Callable[[Any], int]
"""Returns the number of a finding in the report."""


class Fact(NamedTuple):
    """One row: name, formatted text, value in SI units, and the field that findings refer to."""

    name: str
    text: str
    value: Any
    field: str = ""
    kind: str = ""
    """How an imported number came about: printed, average, derived or smoothed."""


def numbers_of(record: Record) -> list[Fact]:
    """Return the results of a run, then further numbers stated in its file, without duplicates."""
    titles = MEASURED | {name: title_of(name) for name in record if name.startswith("figure.")}
    facts: list[Fact] = []
    seen_values: set[tuple[Any, str]] = set()
    for name, title in titles.items():
        value: Any = record.get(name)
        if not is_number(value) or not unit_of(name):
            continue
        unit = shown_unit(name, [value])
        digits = printed_digits(value, unit.base) if record.get("origin") in PRINTED else DIGITS
        kind = kind_of(record, name)
        note = f", {kind}" if kind not in ("", "printed") else ""
        text = f"{significant(value / unit.factor, digits)}{SPACE}{unit.name}{note}"
        if name in MEASURED or (value, unit.base) not in seen_values:
            facts.append(Fact(title, text, value, name, kind))
        seen_values.add((value, unit.base))
    return facts


def timers_of(record: Record) -> list[Fact]:
    """Return the timers of a run in ms."""
    timers = {name: value for name, value in record.items() if name.startswith("timer.")}
    return [
        Fact(name.removeprefix("timer."), number_text(value * 1e3, 2, is_count=False), value, name)
        for name, value in timers.items()
    ]


def _arguments(record: Record) -> list[Fact]:
    arguments = {name: value for name, value in record.items() if name.startswith("argument.")}
    return [Fact(name.removeprefix("argument."), str(value), value) for name, value in arguments.items()]


def _configuration(record: Record) -> list[Fact]:
    fields = {name: value for name, value in record.items() if "." in name and name.partition(".")[0] not in _NOT_SET}
    return [Fact(name, field_value(value), value) for name, value in fields.items()]


_KINDS: dict[str, tuple[Callable[[Record], list[Fact]], tuple[str, str]]] = {
    "numbers": (numbers_of, ("Number", "Value")),
    "timers": (timers_of, ("Timer", "ms")),
    "arguments": (_arguments, ("Argument", "Value")),
    "configuration": (_configuration, ("Field", "Value")),
}


def run_block(record: Record, options: Mapping[str, str], doubt: Number) -> TableBlock:
    """Return `table run what=numbers|timers|arguments|configuration` with a row per fact. Raises ValueError."""
    what = options.get("what", "numbers")
    if what not in _KINDS:
        raise ValueError(f"unknown what={what!r}; use one of {', '.join(_KINDS)}")
    facts_of, header = _KINDS[what]
    facts = facts_of(record)
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
                    doubts=[doubt(finding) for finding in doubts.get(fact.field, ())],
                    exact=exact_quantity(fact.value, unit_of(fact.field)).strip() if is_numbers else "",
                ),
            ]
            for fact in facts
        ],
        numbers=_numbers(header, facts),
    )


def _numbers(header: Sequence[str], facts: Sequence[Fact]) -> list[list[Any]]:
    if not any(fact.kind for fact in facts):
        return [list(header), *([fact.name, fact.value] for fact in facts)]
    return [[*header, "Kind"], *([fact.name, fact.value, fact.kind] for fact in facts)]
