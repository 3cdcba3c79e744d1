"""Records of Megatron-LM's lines: names of cells, timers and memory figures, and fast reading of known layouts."""

from __future__ import annotations

import re

from parlab.formats.grammar.cells import SIZE, Layout
from parlab.formats.grammar.pairs import AVERAGE, Pair
from parlab.formats.grammar.quantities import known_to
from parlab.formats.grammar.records import Field, Record
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import GIB, MIB, field_for, slug

_FAST_RANGE = re.compile(r" {2,8}([\w/-]{1,80}) \.{2,80}: \(([\d.]{1,20}), ([\d.]{1,20})\)\s*\Z")
MAX_TIMERS = 1_000


def cell_field(key: str) -> Field:
    """Return the field of a cell of the iteration line."""
    base = key.removesuffix(AVERAGE)
    if key.endswith(SIZE):
        return Field(f"{slug(key.removesuffix(SIZE))}_bytes", key.removesuffix(SIZE), "GB", GIB)
    if (known := known_to("megatron").get(base)) is not None:
        field = known.field(key)
        return field if base == key else field._replace(name=f"average_{field.name}", kind="average")
    if base.startswith("elapsed time per iteration"):
        field = field_for(base)
        if base == key:
            return field._replace(key=key, name="step_time_s")
        return field._replace(key=key, name="average_step_time_s", kind="average")
    return field_for(key)


def timer_field(key: str) -> Field:
    """Return the field of a timer; Megatron-LM prints timers in ms."""
    return Field(key.replace(" ", "-"), key, "ms", 1e-3)


def memory_field(key: str) -> Field:
    """Return the field of a figure of the memory line."""
    return Field(slug(key.removeprefix("mem-").removesuffix("-bytes")) + "_bytes", key, "MB", MIB)


def validation_field(key: str) -> Field:
    """Return the field of a validation figure: `lm loss value` -> lm_loss, `lm loss PPL` -> lm_loss_ppl."""
    return Field(slug(key.removesuffix(" value")), key)


def step_record(line: int, rank: int | None, time: str | None, iteration: int, total: int, cells: list[Pair]) -> Record:
    """Return a step of the cells that have numbers."""
    good = [(cell, cell_field(cell.key)) for cell in cells if cell.value is not None]
    (record,) = record_of("step", line, rank, iteration, good, time) or [
        Record("step", line, {}, iteration, rank, time)
    ]
    record.values["total_iterations"] = float(total)
    return record


def timer_record(
    line: int, rank: int | None, time: str | None, iteration: int | None, cells: list[Pair]
) -> list[Record]:
    """Return a record of timers, or [] without cells."""
    return record_of("timers", line, rank, iteration, [(cell, timer_field(cell.key)) for cell in cells], time)


def fast_step(line: int, rank: int | None, time: str | None, layout: Layout, match: re.Match[str]) -> Record | None:
    """Return the step of an iteration line with a known layout; None if a cell is not a number."""
    texts = match.groups()
    read = layout.columns.read(texts)
    if read is None:
        return None
    values, raw = read
    values["total_iterations"] = float(texts[1])
    return Record("step", line, values, int(texts[0]), rank, time, layout.columns.fields, raw)


def fast_timers(
    line: int, rank: int | None, time: str | None, iteration: int | None, layout: Layout, match: re.Match[str]
) -> Record | None:
    """Return the timers of a line with a known layout; None if one is not a number."""
    read = layout.columns.read(match.groups())
    if read is None:
        return None
    return Record("timers", line, read[0], iteration, rank, time, layout.columns.fields, read[1])


def fast_range(block: Record, text: str) -> bool:
    """Add a line `    name ....: (min, max)` to its block; return False for any other line."""
    match = _FAST_RANGE.match(text)
    if match is None or block.low is None or len(block.values) >= MAX_TIMERS:
        return False
    name, low, high = match.groups()
    try:
        block.low[name], block.values[name] = float(low) / 1000.0, float(high) / 1000.0
    except ValueError:
        return False
    return True
