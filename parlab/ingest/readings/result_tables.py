"""Tables of documents -> results: one per row or cell, with its axes and measured quantities. Pure.

Three kinds of tables contain results. A **list** has a row per result: columns are settings or quantities. A **grid**
has a cell per result: its columns are values of one setting (`Micro batch size: 1`) or compared variants. A **sheet**
is a transposed list: its rows are settings and quantities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.findings.tables import line_of
from parlab.formats.launch import typed
from parlab.formats.schema import Cell, Table
from parlab.ingest.readings.columns import (
    AXIS_NAMES,
    Column,
    column_of,
    compact,
    heading_pair,
    quantity_in_context,
    quantity_of,
    setting_of,
)
from runners.wire.protocol import RunState

_TOTALS = frozenset({"global", "total", "sum", "all", "overall", "average", "mean", "avg"})
_MEMORY = re.compile(r"(?i)\boom\b|out[ -]of[ -]|d?ram\b|memory|fit\b")
MAX_RESULTS = 5_000


class TableResult(NamedTuple):
    """One result: its place, the values of its axes, its settings, and its measurements."""

    row: int
    column: int | None
    """None if the whole row is the result."""
    line: int
    axes: dict[str, Any]
    settings: dict[str, Any]
    """Dotted fields of a RunConfig, or normal names of a launch."""
    measured: dict[str, float]
    """Parts of a summary, in its units."""
    figures: dict[str, dict[str, Any]]
    """Heading -> value, unit and text as printed."""
    state: str
    reason: str


TUNING_COLUMNS = frozenset({"best_metric_val", "num_experiments", "best_exp_name"})


def is_tuning_summary(titles: Sequence[str]) -> bool:
    """Return whether the rows of a table with these columns are spaces that a tuner has searched, not runs."""
    columns = [title.strip().lower() for title in titles]
    return columns[:1] == ["tuning_space"] and bool(TUNING_COLUMNS & set(columns))


def results_of(table: Table, context: str) -> list[TableResult]:
    """Return the results of a table, empty if it is about something else; `context` is the text above it."""
    columns = [column_of(title, [row[n] for row in table.rows]) for n, title in enumerate(table.columns)]
    across = _setting_columns(table) or _compared_columns(table, columns)
    if across:
        return _grid(table, columns, across, context)[:MAX_RESULTS]
    if any(column.role == "metric" for column in columns):
        return _list(table, columns)[:MAX_RESULTS]
    transposed = _transposed(table)
    return [] if transposed is None else _from_sheet(transposed)[:MAX_RESULTS]


def _setting_columns(table: Table) -> dict[int, tuple[str, Any]]:
    """Return the columns whose headings name values of one setting: index -> (axis, value)."""
    pairs = {n: pair for n, title in enumerate(table.columns) if n and (pair := heading_pair(title))}
    names = {compact(name) for name, _ in pairs.values()}
    if len(pairs) < 2 or len(names) != 1 or len({value for _, value in pairs.values()}) < len(pairs):
        return {}
    name = next(iter(pairs.values()))[0]
    field = setting_of(name)
    axis = AXIS_NAMES.get(field, field) if field else name.lower()
    return {n: (axis, int(value) if value == int(value) else value) for n, (_, value) in pairs.items()}


def _compared_columns(table: Table, columns: Sequence[Column]) -> dict[int, tuple[str, Any]]:
    """Return the columns that hold one quantity for several variants: index -> ("variant", heading).

    Nothing else is measured in such a table, and its first column labels the rows.
    """
    if not columns or columns[0].role not in ("axis", "setting"):
        return {}
    measured = [n for n, column in enumerate(columns) if n and column.role in ("metric", "figure")]
    variants = [n for n in measured if all(_is_measured(row[n]) for row in table.rows)]
    if len(variants) < 2 or not _is_one_quantity(table, [columns[n] for n in measured], variants):
        return {}
    # The rows of a sheet are quantities, so its columns are not variants of a single quantity.
    labels = [column_of(row[0].text, row[1:]) for row in table.rows]
    if any(label.role == "metric" and label.is_named for label in labels):
        return {}
    return {n: ("variant", columns[n].title) for n in variants}


def _is_one_quantity(table: Table, measured: Sequence[Column], variants: Sequence[int]) -> bool:
    """Return whether measured columns may hold the same quantity: neither names nor units differ."""
    quantities = {column.name for column in measured}
    units = {row[n].unit for row in table.rows for n in variants if row[n].kind == "number" and row[n].unit}
    is_unknown_quantity = quantities == {""} and any(column.is_named for column in measured)
    return len(units) <= 1 and len(quantities) <= 1 and not is_unknown_quantity


def _is_measured(cell: Cell) -> bool:
    return cell.kind in ("number", "failure", "blank")


def _grid(
    table: Table, columns: Sequence[Column], across: Mapping[int, tuple[str, Any]], context: str
) -> list[TableResult]:
    """Return one result per cell of the columns in `across`; the other columns describe the row."""
    results = []
    for number, row in enumerate(table.rows):
        if not any(row[n].kind != "blank" for n in across) or _is_total(row, table):
            continue
        labels = {n: cell for n, cell in enumerate(row) if n not in across and cell.kind != "blank"}
        for n, (axis, value) in across.items():
            axes = {_axis(columns[m]): _value(cell) for m, cell in labels.items()} | {axis: value}
            settings = {columns[m].name: _value(cell) for m, cell in labels.items() if columns[m].role == "setting"}
            if axis in AXIS_NAMES.values() or "." in axis:
                settings[_field(axis)] = value
            settings |= _details(row[n])
            measured: dict[str, float] = {}
            figures: dict[str, dict[str, Any]] = {}
            quantity = quantity_of(columns[n].title, row[n].unit) or quantity_in_context(context, row[n].unit)
            if (cell_value := row[n].value) is not None:
                figures["value"] = _figure(row[n])
                if quantity:
                    measured[quantity[0]] = cell_value * quantity[1]
            state, reason = _outcome([row[n]])
            results.append(
                TableResult(number, n, line_of(table, number), axes, settings, measured, figures, state, reason)
            )
    return results


def _list(table: Table, columns: Sequence[Column]) -> list[TableResult]:
    """Return one result per row."""
    results = []
    for number, row in enumerate(table.rows):
        if all(cell.kind == "blank" for cell in row) or _is_total(row, table):
            continue
        results.append(_row_result(number, line_of(table, number), row, columns))
    return results


def _row_result(number: int, line: int, row: Sequence[Cell], columns: Sequence[Column]) -> TableResult:
    axes: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    measured: dict[str, float] = {}
    figures: dict[str, dict[str, Any]] = {}
    for column, cell in zip(columns, row, strict=True):
        if cell.kind == "blank":
            continue
        settings |= _details(cell)
        if column.role == "setting":
            axes[_axis(column)] = settings[column.name] = _value(cell)
        elif column.role == "axis":
            # The name of an experiment repeats its settings.
            axes |= {} if cell.details else {_axis(column): _value(cell)}
        if column.role in ("metric", "figure") and cell.kind == "number" and cell.value is not None:
            if column.name and column.name not in measured:
                measured[column.name] = cell.value * column.scale
            figures[column.title] = _figure(cell)
    state, reason = _outcome([cell for column, cell in zip(columns, row, strict=True) if column.role == "metric"])
    return TableResult(number, None, line, axes, settings, measured, figures, state, reason)


def _transposed(table: Table) -> Table | None:
    """Transpose a sheet into a list: its first column names quantities and settings, its headings the results."""
    labels = [row[0].text for row in table.rows if row and row[0].text]
    if len(labels) < 2 or len(table.columns) < 3:
        return None
    roles = [column_of(row[0].text, row[1:]).role for row in table.rows]
    recognised = sum(role in ("setting", "metric") for role in roles)
    if "metric" not in roles or recognised * 2 < len(labels):
        return None
    rows = [
        [Cell(text=title, kind="text"), *(row[n] for row in table.rows)] for n, title in enumerate(table.columns) if n
    ]
    first = table.columns[0] or "variant"
    return table.model_copy(update={"columns": [first, *(row[0].text for row in table.rows)], "rows": rows})


def _from_sheet(transposed: Table) -> list[TableResult]:
    """Return the results of a transposed sheet; their place is the column of the sheet."""
    columns = [column_of(title, [row[n] for row in transposed.rows]) for n, title in enumerate(transposed.columns)]
    columns[0] = Column(transposed.columns[0], "axis", transposed.columns[0])
    results = []
    for number, row in enumerate(transposed.rows):
        if all(cell.kind == "blank" for cell in row[1:]):
            continue
        result = _row_result(0, transposed.line, row, columns)
        results.append(result._replace(column=number + 1))
    return results


def _is_total(row: Sequence[Cell], table: Table) -> bool:
    """Return whether a row sums up the others and is not a result."""
    return len(table.rows) > 2 and bool(row) and compact(row[0].text) in _TOTALS


def _outcome(cells: Sequence[Cell]) -> tuple[str, str]:
    """Return the state and reason of a result by its measured cells: a failure as worded in the table, or missing."""
    failed = next((cell for cell in cells if cell.kind == "failure"), None)
    if any(cell.kind == "number" for cell in cells):
        return RunState.FINISHED, ""
    if failed is not None:
        state = RunState.OOM if _MEMORY.search(failed.text) else RunState.FAILED
        reason = failed.text if any(map(str.isalpha, failed.text)) else f"The table marks a failure: {failed.text}"
        return state, reason
    dash = next((cell.text for cell in cells if cell.text), "")
    # It is unknown whether it ever ran, so it counts as lost.
    return RunState.LOST, f"Missing: the table contains no value here{f' ({dash})' if dash else ''}."


def _axis(column: Column) -> str:
    if column.role == "setting":
        return AXIS_NAMES.get(column.name, column.name)
    return " ".join(column.title.split()).lower()[:80] or "row"


def _field(axis: str) -> str:
    return next((field for field, name in AXIS_NAMES.items() if name == axis), axis)


def _value(cell: Cell) -> Any:
    """Return the number of a plain cell, otherwise its text: `1.7B` is a label, not a number."""
    if cell.kind == "number" and cell.value is not None and not cell.unit and not cell.details:
        return int(cell.value) if cell.value == int(cell.value) else cell.value
    return typed(cell.text) if cell.kind == "number" else cell.text[:200]


def _details(cell: Cell) -> dict[str, Any]:
    """Return the settings in parentheses after a number."""
    return {name: value for name, value in cell.details.items() if name not in ("note", "label")}


def _figure(cell: Cell) -> dict[str, Any]:
    return {"value": cell.value, "unit": cell.unit, "text": cell.text}
