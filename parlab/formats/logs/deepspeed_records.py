"""Records of DeepSpeed's numbers: cells `Key=1.5GB`, cells of a breakdown in ms, and figures that share a unit."""

from __future__ import annotations

import re
from collections.abc import Iterable

from parlab.formats.grammar.cells import split_cells
from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.quantities import known_to
from parlab.formats.grammar.records import Field, Kind, Record
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import NUMBER, slug, to_float, unit_of

_BREAKDOWN = re.compile(r"(?:rank=(\d{1,7}) )?time \(ms\) \|")
# Parts of a step of RLHF.
TIMERS = {"Generate time": "generate", "Training time": "training", "Gather latency": "gather", "Others": "others"}


def cells(text: str) -> list[tuple[Pair, Field]]:
    """Read `Key=1.5GB, Key=2s (65.04%)` cells."""
    read: list[tuple[Pair, Field]] = []
    for piece in text.split(", ")[:100]:
        key, _, printed = (part.strip() for part in piece.partition("="))
        if not key:
            continue
        number = NUMBER.match(printed)
        unit = printed[number.end() :].partition("(")[0].strip() if number else ""
        base = unit_of(unit) if unit else None
        known = known_to("deepspeed").get(key)
        field = known.field(key) if known is not None else Field(TIMERS.get(key) or slug(key), key)
        field = field._replace(unit=unit, scale=base[1] if base else 1.0)
        value = number[0] if number else printed
        read.append((Pair(key, value, unit, to_float(value)), field))
    return read


def breakdown(line: int, rank: int | None, body: str, iteration: int | None) -> list[Record]:
    """Read `rank=0 time (ms) | fwd_microstep: 1.00 | ...`."""
    match = _BREAKDOWN.search(body)
    if match is None:
        return []
    timers = [(cell, Field(cell.key, cell.key, "ms", 1e-3)) for cell in split_cells(body[match.end() :])]
    return record_of("timers", line, int(match[1]) if match[1] else rank, iteration, timers)


def figures(
    kind: Kind, line: int, iteration: int | None, rank: int | None, time: str | None, texts: Iterable[tuple[str, str]],
    unit: str = "", scale: float = 1.0,
) -> list[Record]:  # fmt: skip
    """Return a record of (name, text) pairs that share a unit; other texts are unread."""
    named = [(Pair(name, text, unit, to_float(text)), Field(name, name, unit, scale)) for name, text in texts]
    return record_of(kind, line, rank, iteration, named, time)
