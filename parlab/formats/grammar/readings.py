"""Conversion of the cells of a line to one record, as most step lines need it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from parlab.formats.grammar.cells import Cell
from parlab.formats.grammar.records import Field, Kind, Record, unread
from parlab.formats.grammar.units import normal, slug, to_float, unit_of

_AMOUNT = re.compile(r"\s*([+-]?(?:\d[\d,_]{0,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][+-]?\d{1,9})?)\s*(.{0,40}?)\s*")


def reading(
    kind: Kind,
    line: int,
    cells: Iterable[Cell],
    field_of: Callable[[str], Field],
    *,
    iteration: int | None = None,
    rank: int | None = None,
    time: str | None = None,
) -> list[Record]:
    """Return one record of all cells with a number, and an unread record for each other cell."""
    fields: list[Field] = []
    raw: list[str] = []
    values: dict[str, float] = {}
    unread_records: list[Record] = []
    for cell in cells:
        if cell.value is None:
            unread_records.append(unread(line, "not a finite number", f"{cell.key}: {cell.text}"))
            continue
        field = field_of(cell.key)
        fields.append(field)
        raw.append(cell.text)
        values[field.name] = normal(cell.value, field.scale)
    if not values:
        return unread_records
    record = Record(kind, line, values, iteration=iteration, rank=rank, time=time, fields=tuple(fields), raw=tuple(raw))
    return [record, *unread_records]


def amount(text: str) -> tuple[float, str] | None:
    """Split `66.91GiB` into number and unit; return None without a finite number."""
    match = _AMOUNT.fullmatch(text[:128])
    value = to_float(match[1]) if match else None
    return None if match is None or value is None else (value, match[2])


@lru_cache(maxsize=4096)
def united(key: str, unit: str) -> Field:
    """Return the field of a key whose unit follows the value: `Forward`, `ms` -> forward_s."""
    normal_unit = unit_of(unit)
    if normal_unit is None:
        return Field(slug(f"{key} {unit}") if unit else slug(key), key, unit)
    suffix, scale = normal_unit
    name = slug(key)
    return Field(name if name.endswith(f"_{suffix}") else f"{name}_{suffix}", key, unit, scale)
