"""Records of DeepSpeed's numbers: cells `Key=1.5GB`, cells of a breakdown in ms, and figures that share a unit."""

from __future__ import annotations

import re
from collections.abc import Iterable

from parlab.formats import schema
from parlab.formats.grammar.cells import split_cells
from parlab.formats.grammar.records import Field, Kind, Record, unread
from parlab.formats.grammar.units import NUMBER, normal, slug, to_float, unit_of

_BREAKDOWN = re.compile(r"(?:rank=(\d{1,7}) )?time \(ms\) \|")
_NAMES = {
    "CurrSamplesPerSec": "samples_per_s",
    "RunningAvgSamplesPerSec": "running_avg_samples_per_s",
    "SamplesPerSec": "running_avg_samples_per_s",
    "CurSamplesPerSec": "samples_per_s",
    "AvgSamplesPerSec": "running_avg_samples_per_s",
    "MemAllocated": "allocated_bytes",
    "MaxMemAllocated": "max_allocated_bytes",
    "E2E latency": "step_time_s",
    "Generate time": "generate",
    "Training time": "training",
    "Gather latency": "gather",
    "Others": "others",
}

_KINDS: dict[str, schema.Kind] = {
    # The engine's timer leaves out what happens between its steps.
    "CurrSamplesPerSec": "part",
    "CurSamplesPerSec": "part",
    "RunningAvgSamplesPerSec": "average",
    "SamplesPerSec": "average",
    "AvgSamplesPerSec": "average",
}


def pairs(line: int, text: str) -> tuple[dict[str, float], list[Field], list[str], list[Record]]:
    """Read `Key=1.5GB, Key=2s (65.04%)` cells."""
    values: dict[str, float] = {}
    fields: list[Field] = []
    raw: list[str] = []
    bad: list[Record] = []
    for piece in text.split(", ")[:100]:
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not key:
            continue
        number = NUMBER.match(value)
        amount = to_float(number[0]) if number else None
        if not equals or number is None or amount is None:
            bad.append(unread(line, "not a number: the line is truncated or damaged", piece))
            continue
        unit = value[number.end() :].partition("(")[0].strip()
        base = unit_of(unit) if unit else None
        name = _NAMES.get(key) or slug(key)
        field = Field(name, key, unit, base[1] if base else 1.0, _KINDS.get(key, "printed"))
        values[name] = normal(amount, field.scale)
        fields.append(field)
        raw.append(number[0])
    return values, fields, raw, bad


def breakdown(line: int, rank: int | None, body: str, iteration: int | None) -> list[Record]:
    """Read `rank=0 time (ms) | fwd_microstep: 1.00 | ...`; the last cell of a truncated line is ignored."""
    match = _BREAKDOWN.search(body)
    if match is None:
        return []
    cells = split_cells(body[match.end() :])
    unreadable = [
        unread(line, "not a number: the line is truncated or damaged", c.key) for c in cells if c.value is None
    ]
    texts = [(cell.key, cell.text) for cell in cells if cell.value is not None]
    speaker = int(match[1]) if match[1] else rank
    return figures("timers", line, iteration, speaker, None, texts, "ms", 1e-3) + unreadable


def figures(
    kind: Kind,
    line: int,
    iteration: int | None,
    rank: int | None,
    time: str | None,
    texts: Iterable[tuple[str, str]],
    unit: str = "",
    scale: float = 1.0,
) -> list[Record]:
    """Return a record of (name, text) pairs that share a unit; other texts are unread."""
    values: dict[str, float] = {}
    fields: list[Field] = []
    raw: list[str] = []
    bad: list[Record] = []
    for name, text in texts:
        value = to_float(text)
        if value is None:
            bad.append(unread(line, "not a finite number", f"{name}: {text}"))
            continue
        values[name] = normal(value, scale)
        fields.append(Field(name, name, unit, scale))
        raw.append(text)
    if not values:
        return bad
    return [
        Record(kind, line, values, iteration=iteration, rank=rank, time=time, fields=tuple(fields), raw=tuple(raw)),
        *bad,
    ]
