"""Records -> a table: some fields along the rows, some across, one value in the cells. Pure.

A record is a run as plain data: field -> value, with `state` and, by field, the `doubts` about its numbers
(`lab.selectors.run_records` makes them). Numbers are in SI units; the table chooses one unit for all its cells.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import DASH, Unit, field_title, field_value, significant
from parlab.charts.points import emulated_share, in_order, is_number

from .units import least_is_best, shown_unit

Record = Mapping[str, Any]

VALUE, SEVERAL, MISSING, ABSENT = "value", "several", "missing", "absent"
FINISHED, OOM = "finished", "oom"
RUN_DOUBTS = "run"
"""Under this name a record keeps the doubts about all of it."""
HIDDEN = ("doubts", "printed")
"""What a record says about its fields; no fields themselves."""
MAX_CELLS = 20_000

AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "min": min,
    "max": max,
    "sum": math.fsum,
    "first": lambda values: values[0],
}


class Cell(NamedTuple):
    """One place of a table: a number, several made one, or the word that says why there is none."""

    state: str
    """"value", "several" (aggregated), "missing" (finished without this number), "absent" (no record), or the state
    of the record: "oom", "failed", "lost", "running", ..."""
    text: str
    """What to show: three digits in the unit of the table, OOM, a state, a dash."""
    value: Any = None
    low: float | None = None
    """Smallest of several; None for one value."""
    high: float | None = None
    records: tuple[int, ...] = ()
    """Which records it was made of, by their place in what was given."""
    doubts: tuple[Any, ...] = ()
    is_best: bool = False
    note: str = ""
    """More for a hover: of how many it was made, or the reason of a failure."""


class Table(NamedTuple):
    """A pivot: headings of rows and columns as tuples of axis values, and a list of cells per row."""

    rows: Sequence[str]
    columns: Sequence[str]
    value: str
    row_headings: Sequence[tuple[Any, ...]]
    column_headings: Sequence[tuple[Any, ...]]
    cells: Sequence[Sequence[Cell]]
    unit: Unit
    left_out: tuple[int, ...] = ()
    """Records that lack one of the axes."""
    emulation: str = ""
    """Whether its numbers are of runs that only waited: emulated, partly emulated, or nothing."""

    @property
    def row_titles(self) -> list[str]:
        return [field_title(axis) for axis in self.rows]

    @property
    def column_title(self) -> str:
        return ", ".join(field_title(axis) for axis in self.columns)

    @property
    def column_texts(self) -> list[str]:
        return [", ".join(field_value(value) for value in heading) for heading in self.column_headings]

    @property
    def row_texts(self) -> list[list[str]]:
        return [[field_value(value) for value in heading] for heading in self.row_headings]


def pivot(
    records: Sequence[Record],
    rows: Sequence[str],
    columns: Sequence[str],
    value: str,
    aggregate: str = "median",
    *,
    unit: str = "",
    decimals: int | None = None,
) -> Table:
    """Shape records into a table.

    Fields may be named by their last part where that is clear (`micro_batch_size`). Cells show three significant
    digits, or `decimals` places where given. Raises ValueError, with what there is, for a field that no record has,
    an axis that is named twice, an unknown aggregate or unit, and a table of more than 20 000 cells.
    """
    if aggregate not in AGGREGATES:
        raise ValueError(f"aggregate {aggregate!r} is unknown; use {', '.join(AGGREGATES)}")
    names = fields_of(records)
    rows = [field_named(name, names) for name in rows]
    columns = [field_named(name, names) for name in columns]
    value = field_named(value, names)
    axes = [*rows, *columns]
    twice = next((axis for axis in axes if axes.count(axis) > 1), None)
    if twice is not None:
        raise ValueError(f"field {twice!r} is named twice; give each axis its own field")
    used = [n for n, record in enumerate(records) if all(axis in record for axis in axes)]
    row_headings = _headings([records[n] for n in used], rows)
    column_headings = _headings([records[n] for n in used], columns)
    if len(row_headings) * len(column_headings) > MAX_CELLS:
        raise ValueError(
            f"{len(row_headings)} rows and {len(column_headings)} columns are more than {MAX_CELLS} cells;"
            " choose fields with fewer values, or show fewer runs"
        )
    by_place: dict[tuple[str, str], list[int]] = {}
    for n in used:
        place = _key(_values(records[n], rows)), _key(_values(records[n], columns))
        by_place.setdefault(place, []).append(n)
    chosen = shown_unit(value, (r.get(value) for r in records if is_number(r.get(value))), unit)
    cells = [
        [
            _cell(records, by_place.get((_key(row), _key(column)), []), value, aggregate, chosen, decimals)
            for column in column_headings
        ]
        for row in row_headings
    ]
    left_out = tuple(sorted(set(range(len(records))) - set(used)))
    marks = [bool(records[n].get("emulated")) for n in used if value in records[n]]
    emulation = emulated_share(marks)
    return Table(rows, columns, value, row_headings, column_headings, cells, chosen, left_out, emulation)


def fields_of(records: Sequence[Record]) -> list[str]:
    """List the fields that at least one record has, in the order in which they come."""
    return list(dict.fromkeys(name for record in records for name in record if name not in HIDDEN))


def field_named(name: str, fields: Sequence[str]) -> str:
    """Find the field that a person means: its name, or the end of it where only one ends so.

    Raises ValueError with the fields that there are.
    """
    if name in fields:
        return name
    plain = _plain(name)
    ending = [field for field in fields if _plain(field) == plain] or [
        field for field in fields if _plain(field.rpartition(".")[2]) == plain
    ]
    if len(ending) > 1:
        # What a program was told says the same as the configuration that was read from it.
        ending = [field for field in ending if not field.startswith("argument.")] or ending
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise ValueError(f"field {name!r} may mean {' or '.join(ending)}; write one of them in full")
    there = ", ".join(fields[:30]) or "none, for there are no runs"
    raise ValueError(f"no run has a field {name!r}; there are {there}{' and more' if len(fields) > 30 else ''}")


def with_best(table: Table, *, per: str = "row") -> Table:
    """Mark the best finished number of each row ("row"), column ("column") or of the whole table ("table"), once.

    Nothing is marked where the field does not say whether more is better, or where there is nothing to choose from.
    """
    least = least_is_best(table.value)
    if least is None:
        return table
    marked = [list(row) for row in table.cells]
    places = [(r, c) for r, row in enumerate(marked) for c in range(len(row))]
    for _, group in itertools.groupby(sorted(places, key=lambda at: _group(at, per)), key=lambda at: _group(at, per)):
        measured = [(marked[r][c].value, r, c) for r, c in group if marked[r][c].state in (VALUE, SEVERAL)]
        measured = [found for found in measured if is_number(found[0])]
        if len(measured) > 1:
            _, r, c = min(measured, key=lambda found: found[0] if least else -found[0])
            marked[r][c] = marked[r][c]._replace(is_best=True)
    return table._replace(cells=marked)


def _group(place: tuple[int, int], per: str) -> int:
    return {"row": place[0], "column": place[1]}.get(per, 0)


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _values(record: Record, axes: Sequence[str]) -> tuple[Any, ...]:
    return tuple(record[axis] for axis in axes)


def _key(values: tuple[Any, ...]) -> str:
    # 1 and 1.0 are one value of an axis, True is not.
    return json.dumps([float(v) if is_number(v) else v for v in values], default=str)


def _headings(records: Sequence[Record], axes: Sequence[str]) -> list[tuple[Any, ...]]:
    """List the combinations of axis values that occur, sorted axis by axis."""
    found = {_key(_values(record, axes)): _values(record, axes) for record in records}
    order = [
        {_key((value,)): place for place, value in enumerate(in_order(record[axis] for record in records))}
        for axis in axes
    ]
    return sorted(
        found.values(),
        key=lambda heading: [place.get(_key((v,)), 0) for v, place in zip(heading, order, strict=True)],
    )


def _cell(
    records: Sequence[Record], places: Sequence[int], value: str, aggregate: str, unit: Unit, decimals: int | None
) -> Cell:
    if not places:
        return Cell(ABSENT, DASH, note="Not part of these runs")
    doubts = tuple(dict.fromkeys(doubt for n in places for doubt in doubts_of(records[n], value)))
    ended = [n for n in places if records[n].get("state", FINISHED) == FINISHED]
    found = [(n, records[n][value]) for n in ended if records[n].get(value) is not None]
    if not found:
        return _empty(records, places, ended)._replace(doubts=doubts)
    said = _apart(records, places, len(found))
    numbers = [float(v) for _, v in found if is_number(v)]
    if len(numbers) < len(found):
        texts = list(dict.fromkeys(field_value(v) for _, v in found))
        state = VALUE if len(texts) == 1 else SEVERAL
        return Cell(state, ", ".join(texts), texts[0], None, None, tuple(places), doubts, False, said)
    number = found[0][1] if len(found) == 1 else AGGREGATES[aggregate](numbers)
    text = number_text(number / unit.factor, decimals, is_count=not unit.name)
    if len(found) == 1:
        return Cell(VALUE, text, number, None, None, tuple(places), doubts, False, said)
    said = f"{aggregate} of {len(found)}{'; ' if said else ''}{said}"
    return Cell(SEVERAL, text, number, min(numbers), max(numbers), tuple(places), doubts, False, said)


def number_text(number: float, decimals: int | None, *, is_count: bool) -> str:
    """Write a number for a cell: three significant digits, so many decimals where wanted, and counts in full."""
    if decimals is not None:
        return f"{number:.{decimals}f}"
    if is_count and number == int(number) and abs(number) < 1e9:
        return str(int(number))
    return significant(number)


def doubts_of(record: Record, value: str) -> Sequence[Any]:
    """List what doubts a number of a record: findings about this field, and about the whole run."""
    known: Mapping[str, Sequence[Any]] = record.get("doubts") or {}
    return [*known.get(value, ()), *known.get(RUN_DOUBTS, ())]


def _empty(records: Sequence[Record], places: Sequence[int], ended: Sequence[int]) -> Cell:
    if ended:
        return Cell(MISSING, DASH, records=tuple(places), note="Not measured")
    states = [str(records[n].get("state")) for n in places]
    state = OOM if OOM in states else states[0]
    reason = str(records[places[states.index(state)]].get("reason") or "")
    return Cell(state, "OOM" if state == OOM else state, records=tuple(places), note=reason)


def _apart(records: Sequence[Record], places: Sequence[int], measured: int) -> str:
    """Say which records of a cell its number leaves out."""
    if measured == len(places):
        return ""
    others = [str(records[n].get("state", FINISHED)) for n in places]
    words = [f"{others.count(state)} {state}" for state in dict.fromkeys(others) if state != FINISHED]
    return f"without {', '.join(words)}" if words else f"{len(places) - measured} without this number"
