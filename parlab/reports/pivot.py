"""Records -> a pivot table: fields along the rows, fields across the columns, one value in the cells. Pure.

A record is a run as plain data: field -> value, with its `state` and the `doubts` (findings) by field;
`lab.selectors.run_records` creates them. Numbers are in SI units; all cells of a table share one display unit.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.fields import field_heading
from parlab.charts.format import DASH, DIGITS, SPACE, Unit, field_value, for_column, in_column, significant
from parlab.charts.points import in_order, is_number, shared_marks
from parlab.charts.repeats import APPROXIMATELY, with_deviation
from parlab.findings.noise import Noise, is_within, noise

from .units import least_is_best, shown_unit, unit_of

Record = Mapping[str, Any]

VALUE, SEVERAL, MISSING, ABSENT = "value", "several", "missing", "absent"
FINISHED, OOM = "finished", "oom"
PRINTED = ("imported", "published")
"""The origins of runs whose numbers a file prints."""
RUN_DOUBTS = "run"
"""Key of the findings about the whole run in `doubts`."""
HIDDEN = ("doubts", "printed", "kinds", "repeats_of")
"""Keys of a record that are not fields."""
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
    """A cell of a table: a number, an aggregate of several, or the state that explains why there is none."""

    state: str
    """"value", "several" (aggregated), "missing" (finished without this number), "absent" (no record), or the state
    of the record: "oom", "failed", "lost", "running", ..."""
    text: str
    """Text to show: three significant digits in the unit of the table, OOM, a state or a dash."""
    value: Any = None
    low: float | None = None
    """Smallest of several values; None for a single value."""
    high: float | None = None
    records: tuple[int, ...] = ()
    """Indices of the records of this cell."""
    doubts: tuple[Any, ...] = ()
    is_best: bool = False
    note: str = ""
    """Text for the tooltip: the number of aggregated records, or the reason of a failure."""
    repeats: tuple[float, ...] = ()
    """The values, if all records are repeats of one point."""


class Table(NamedTuple):
    """A pivot table: row and column headings as tuples of axis values, and a list of cells per row."""

    rows: Sequence[str]
    columns: Sequence[str]
    value: str
    row_headings: Sequence[tuple[Any, ...]]
    column_headings: Sequence[tuple[Any, ...]]
    cells: Sequence[Sequence[Cell]]
    unit: Unit
    left_out: tuple[int, ...] = ()
    """Indices of records that lack one of the axes."""
    emulation: str = ""
    """"emulated" or "partly emulated" if runs waited instead of computing, else empty."""

    @property
    def row_titles(self) -> list[str]:
        return [field_heading(axis) for axis in self.rows]

    @property
    def column_title(self) -> str:
        return ", ".join(field_heading(axis) for axis in self.columns)

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
    """Return a pivot table of records.

    Fields may be abbreviated to their last part if that is unambiguous (`micro_batch_size`). Cells show three
    significant digits, or `decimals` decimal places. Raises ValueError, with the valid values, for an unknown field,
    a duplicate axis, an unknown aggregate or unit, and a table with more than 20,000 cells.
    """
    if aggregate not in AGGREGATES:
        raise ValueError(f"unknown aggregate {aggregate!r}; use one of {', '.join(AGGREGATES)}")
    names = fields_of(records)
    rows = [field_named(name, names) for name in rows]
    columns = [field_named(name, names) for name in columns]
    value = field_named(value, names)
    axes = _different([*rows, *columns])
    used = [n for n, record in enumerate(records) if all(axis in record for axis in axes)]
    row_headings = _headings([records[n] for n in used], rows)
    column_headings = _headings([records[n] for n in used], columns)
    if len(row_headings) * len(column_headings) > MAX_CELLS:
        raise ValueError(
            f"{len(row_headings)} rows and {len(column_headings)} columns exceed {MAX_CELLS} cells;"
            " use fields with fewer values, or select fewer runs"
        )
    by_place: dict[tuple[str, str], list[int]] = {}
    for n in used:
        place = _key(_values(records[n], rows)), _key(_values(records[n], columns))
        by_place.setdefault(place, []).append(n)
    unit_shown = shown_unit(value, (r.get(value) for r in records if is_number(r.get(value))), unit)
    if decimals is None and unit_shown.name:
        unit_shown = _with_printed_digits(unit_shown, [records[n] for n in used], value)
    cells = [
        [
            _pivot_cell(records, by_place.get((_key(row), _key(column)), []), value, aggregate, unit_shown, decimals)
            for column in column_headings
        ]
        for row in row_headings
    ]
    left_out = tuple(sorted(set(range(len(records))) - set(used)))
    emulation = shared_marks([records[n].get("marks", ()) for n in used if value in records[n]])
    return Table(rows, columns, value, row_headings, column_headings, cells, unit_shown, left_out, emulation)


def _different(axes: list[str]) -> list[str]:
    duplicate = next((axis for axis in axes if axes.count(axis) > 1), None)
    if duplicate is not None:
        raise ValueError(f"duplicate field {duplicate!r}; use a different field for each axis")
    return axes


def _with_printed_digits(unit: Unit, records: Sequence[Record], value: str) -> Unit:
    """Return a unit with the precision of a column: that of published numbers is what their source printed."""
    shown = (record for record in records if is_number(record.get(value)))
    return for_column(unit, ((record[value], record.get("origin") in PRINTED) for record in shown))


def fields_of(records: Sequence[Record]) -> list[str]:
    """Return the fields of all records, in order of first occurrence."""
    fields: dict[str, Any] = {}
    for record in records:
        fields |= dict.fromkeys(record)
    return [name for name in fields if name not in HIDDEN]


def field_named(name: str, fields: Sequence[str]) -> str:
    """Return the field with this name, or the only field whose last part has this name.

    Raises ValueError with the existing fields.
    """
    if name in fields:
        return name
    plain = _plain(name)
    matches = [field for field in fields if _plain(field) == plain] or [
        field for field in fields if _plain(field.rpartition(".")[2]) == plain
    ]
    if len(matches) > 1:
        # Launch arguments repeat the configuration that was read from them.
        matches = [field for field in matches if not field.startswith("argument.")] or matches
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ValueError(f"ambiguous field {name!r}; use {' or '.join(matches)}")
    if not fields:
        raise ValueError(f"unknown field {name!r}; there are no runs")
    names = ", ".join(fields[:30])
    raise ValueError(f"unknown field {name!r}; use one of {names}{' and more' if len(fields) > 30 else ''}")


def with_best(table: Table, *, per: str = "row") -> Table:
    """Mark the best number of each row ("row"), of each column ("column") or of the whole table ("table").

    Nothing is marked if the field does not imply whether larger is better, or if there is only one number.
    """
    least = least_is_best(table.value)
    if least is None:
        return table
    marked = [list(row) for row in table.cells]
    noisy = noise(cell.repeats for row in table.cells for cell in row)
    places = [(r, c) for r, row in enumerate(marked) for c in range(len(row))]
    for _, group in itertools.groupby(sorted(places, key=lambda at: _group(at, per)), key=lambda at: _group(at, per)):
        measured = [(marked[r][c].value, r, c) for r, c in group if marked[r][c].state in (VALUE, SEVERAL)]
        measured = [entry for entry in measured if is_number(entry[0])]
        if len(measured) > 1:
            _, r, c = min(measured, key=lambda entry: entry[0] if least else -entry[0])
            marked[r][c] = marked[r][c]._replace(is_best=True)
            for _, row, column in measured:
                if (row, column) != (r, c) and _is_close(marked[row][column], marked[r][c], noisy):
                    marked[row][column] = _marked_close(marked[row][column])
    return table._replace(cells=marked)


def _is_close(cell: Cell, best: Cell, noisy: Noise | None) -> bool:
    return is_within(cell.value, best.value, noisy, max(1, len(cell.repeats)), max(1, len(best.repeats)))


def _marked_close(cell: Cell) -> Cell:
    """Mark a value that the repeats cannot tell from the best."""
    note = f"{cell.note}; " if cell.note else ""
    return cell._replace(
        text=f"{APPROXIMATELY}{SPACE}{cell.text}",
        note=f"{note}differs from the best by less than the noise of the repeats",
    )


def _group(place: tuple[int, int], per: str) -> int:
    return {"row": place[0], "column": place[1]}.get(per, 0)


def kind_of(record: Record, field: str) -> str:
    """Return how a number of a file came about: printed, average, derived, smoothed; empty for any other value."""
    if not is_number(record.get(field)) or not (unit_of(field) or field.startswith("figure.")):
        return ""
    return (record.get("kinds") or {}).get(field) or ("printed" if record.get("origin") in PRINTED else "")


def kinds_of(cell: Cell, records: Sequence[Record], field: str) -> str:
    """Return the kinds of the numbers in a cell, each once."""
    return ", ".join(dict.fromkeys(kind for n in cell.records if (kind := kind_of(records[n], field))))


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _values(record: Record, axes: Sequence[str]) -> tuple[Any, ...]:
    return tuple(record[axis] for axis in axes)


def _key(values: tuple[Any, ...]) -> str:
    # 1 and 1.0 are the same value of an axis; True is a different one.
    return json.dumps([float(v) if is_number(v) else v for v in values], default=str)


def _headings(records: Sequence[Record], axes: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the existing combinations of axis values, sorted axis by axis."""
    headings = {_key(_values(record, axes)): _values(record, axes) for record in records}
    order = [
        {_key((value,)): place for place, value in enumerate(in_order(record[axis] for record in records))}
        for axis in axes
    ]
    return sorted(
        headings.values(),
        key=lambda heading: [place.get(_key((v,)), 0) for v, place in zip(heading, order, strict=True)],
    )


def _pivot_cell(
    records: Sequence[Record], places: Sequence[int], value: str, aggregate: str, unit: Unit, decimals: int | None
) -> Cell:
    if not places:
        return Cell(ABSENT, DASH, note="Not part of these runs")
    doubts = tuple(dict.fromkeys(doubt for n in places for doubt in doubts_of(records[n], value)))
    ended = [n for n in places if records[n].get("state", FINISHED) == FINISHED]
    measured = [(n, records[n][value]) for n in ended if records[n].get(value) is not None]
    if not measured:
        return _empty_cell(records, places, ended)._replace(doubts=doubts)
    note = _omitted_note(records, places, len(measured))
    numbers = [float(v) for _, v in measured if is_number(v)]
    if len(numbers) < len(measured):
        texts = list(dict.fromkeys(field_value(v) for _, v in measured))
        state = VALUE if len(texts) == 1 else SEVERAL
        return Cell(state, ", ".join(texts), texts[0], None, None, tuple(places), doubts, False, note)
    number = measured[0][1] if len(measured) == 1 else AGGREGATES[aggregate](numbers)
    is_column = decimals is None and unit.decimals is not None
    text = in_column(number, unit) if is_column else number_text(number / unit.factor, decimals, is_count=not unit.name)
    if len(measured) == 1:
        return Cell(VALUE, text, number, None, None, tuple(places), doubts, False, note)
    cell = Cell(SEVERAL, text, number, min(numbers), max(numbers), tuple(places), doubts)
    return _aggregated(cell, numbers, [records[n] for n, _ in measured], aggregate, note, unit)


def _aggregated(
    cell: Cell, numbers: Sequence[float], records: Sequence[Record], aggregate: str, note: str, unit: Unit
) -> Cell:
    """Add to the aggregate of several values what it is made of, and of repeats their standard deviation."""
    repeats = tuple(numbers) if _are_repeats(records) else ()
    parts = [f"{aggregate} of {len(numbers)}{' repeats ± standard deviation' if repeats else ''}", note]
    text = with_deviation(cell.text, repeats, unit.factor)
    return cell._replace(text=text, note="; ".join(filter(None, parts)), repeats=repeats)


def _are_repeats(records: Sequence[Record]) -> bool:
    """Whether all records are runs of the same point."""
    first = records[0].get("repeats_of")
    return first is not None and all(record.get("repeats_of") == first for record in records)


def number_text(number: float, decimals: int | None, *, is_count: bool, digits: int = DIGITS) -> str:
    """Format a number: `decimals` places if given, counts in full, else `digits` significant digits."""
    if decimals is not None:
        return f"{number:.{decimals}f}"
    if is_count and number == int(number) and abs(number) < 1e9:
        return str(int(number))
    return significant(number, digits)


def doubts_of(record: Record, value: str) -> Sequence[Any]:
    """Return the findings about a number of a record: those about its field and those about the whole run."""
    doubts: Mapping[str, Sequence[Any]] = record.get("doubts") or {}
    return [*doubts.get(value, ()), *doubts.get(RUN_DOUBTS, ())]


def _empty_cell(records: Sequence[Record], places: Sequence[int], ended: Sequence[int]) -> Cell:
    if ended:
        return Cell(MISSING, DASH, records=tuple(places), note="Not measured")
    states = [str(records[n].get("state")) for n in places]
    state = OOM if OOM in states else states[0]
    reason = str(records[places[states.index(state)]].get("reason") or "")
    return Cell(state, "OOM" if state == OOM else state, records=tuple(places), note=reason)


def _omitted_note(records: Sequence[Record], places: Sequence[int], measured: int) -> str:
    """Return a note about the records of a cell that its number omits."""
    if measured == len(places):
        return ""
    others = [str(records[n].get("state", FINISHED)) for n in places]
    counts = [f"{others.count(state)} {state}" for state in dict.fromkeys(others) if state != FINISHED]
    return f"without {', '.join(counts)}" if counts else f"{len(places) - measured} without this number"
