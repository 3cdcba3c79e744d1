"""Records of DeepSpeed's numbers: cells `Key=1.5GB`, cells of a breakdown in ms, and figures that share a unit."""

from __future__ import annotations

import re
from collections.abc import Iterable

from parlab.formats.grammar.cells import split_cells
from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.quantities import known_to
from parlab.formats.grammar.records import Field, Kind, Record, unread
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import NUMBER, normal, slug, to_float, unit_of

_BREAKDOWN = re.compile(r"(?:rank=(\d{1,7}) )?time \(ms\) \|")
# Parts of a step of RLHF.
_TIMERS = {"Generate time": "generate", "Training time": "training", "Gather latency": "gather", "Others": "others"}


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
        known = known_to("deepspeed").get(key)
        field = known.field(key) if known is not None else Field(_TIMERS.get(key) or slug(key), key)
        field = field._replace(unit=unit, scale=base[1] if base else 1.0)
        values[field.name] = normal(amount, field.scale)
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
    cells = [(Pair(name, text, unit, to_float(text)), Field(name, name, unit, scale)) for name, text in texts]
    return record_of(kind, line, rank, iteration, cells, time)
