"""Records -> the tables of a report: pivot tables and lists of runs. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import DASH, SPACE, Unit, exact_quantity, field_value, for_column, in_column
from parlab.charts.points import is_number
from parlab.charts.repeats import APPROXIMATELY

from .blocks import TableBlock, Text
from .directives import listed, number, select_records
from .pivot import (
    AGGREGATES,
    FINISHED,
    OOM,
    PRINTED,
    Cell,
    Record,
    Table,
    doubts_of,
    field_named,
    fields_of,
    kind_of,
    kinds_of,
    number_text,
    pivot,
    with_best,
)
from .units import PLAIN, shown_unit, title_of, unit_of

Number = Callable[[Any], int]
"""Returns the number of a finding in the report."""
MAX_ROWS = 500
_BEST = ("row", "column", "table", "none")
_FIELD = re.compile(r"\{([^{}]+)\}")
_DECIMALS = re.compile(r"(.+?)\s+\.(\d{1,2})$")
DEFAULT_COLUMNS = ("run", "label", "state", "step_time_s", "samples_per_s", "tokens_per_s", "memory_max_bytes")


def pivot_block(records: Sequence[Record], options: Mapping[str, str], doubt: Number) -> TableBlock:
    """Return `table pivot`.

    `unit` is one of the units of the value, or "cells" to write the unit into each cell; `decimals` is the number of
    decimal places; `details` is a text in brackets after each number, such as `gas = {gradient_accumulation_steps}`.
    With `decimals=printed`, cells of imported tables are shown as printed in their file. Raises ValueError.
    """
    fields = fields_of(records)
    records = _filtered(records, options, fields)
    best = options.get("best", "row")
    if best not in _BEST:
        raise ValueError(f"unknown best={best!r}; use one of {', '.join(_BEST)}")
    is_printed = options.get("decimals") == "printed"
    in_cells = options.get("unit") == "cells"
    table = pivot(
        records,
        listed(options.get("rows", "")),
        listed(options.get("columns", "")),
        options["value"],
        options.get("aggregate", "median"),
        unit="" if in_cells else options.get("unit", ""),
        decimals=None if is_printed else number(options, "decimals", most=12),
    )
    if best != "none":
        table = with_best(table, per=best)

    def text(cell: Cell) -> Text:
        cell_text = cell.text
        only = records[cell.records[0]] if len(cell.records) == 1 else {}
        printed = (only.get("printed") or {}).get(table.value) if is_printed else None
        if printed:
            cell_text = str(printed)
        elif is_number(cell.value):
            cell_text += f"{SPACE}{table.unit.name}" if in_cells and table.unit.name else ""
            details = _details(options.get("details", ""), only, fields)
            cell_text += f" ({details})" if details else ""
        exact = exact_quantity(cell.value, table.unit.base).strip() if is_number(cell.value) else ""
        kinds = kinds_of(cell, records, table.value)
        hover = "; ".join(part for part in (exact, cell.note, kinds) if part)
        doubts = [doubt(finding) for finding in cell.doubts]
        return Text(text=cell_text, doubts=doubts, state=cell.state, is_number=True, is_best=cell.is_best, exact=hover)

    names = [Text(text=title) for title in table.row_titles]
    values = [Text(text=heading or title_of(table.value), is_number=True) for heading in table.column_texts]
    rows = [
        [Text(text=name, state="name") for name in texts] + [text(cell) for cell in cells]
        for texts, cells in zip(table.row_texts, table.cells, strict=True)
    ]
    return TableBlock(
        title=options.get("title", ""),
        header=names + values,
        spanning=table.column_title,
        names=len(names),
        rows=rows,
        caption=_table_caption(table, in_cells or is_printed) + _caption_of(_pivot_kinds(table, records)),
        numbers=_numbers(table, records),
    )


def _filtered(records: Sequence[Record], options: Mapping[str, str], fields: Sequence[str]) -> list[Record]:
    where = options.get("where", "")
    selected = select_records(records, where, fields)
    if not selected:
        raise ValueError(f"no run matches where={where!r}; change the conditions" if where else "there are no runs yet")
    return selected


def _details(template: str, record: Record, fields: Sequence[str]) -> str:
    """Fill a template; omit the comma-separated parts whose fields the record lacks."""
    parts = []
    for part in template.split(","):
        values = [record.get(field_named(name, fields)) for name in _FIELD.findall(part)]
        if part.strip() and all(value is not None for value in values):
            parts.append(filled(part.strip(), record, fields))
    return ", ".join(parts)


def filled(template: str, record: Record, fields: Sequence[str]) -> str:
    """Replace `{field}` in a template by the values of a record. Raises ValueError for a field that no record has."""

    def value(match: re.Match[str]) -> str:
        content = record.get(field_named(match[1], fields))
        return DASH if content is None else plain_value(content)

    return _FIELD.sub(value, template)


def plain_value(value: object) -> str:
    """Return a value as text: whole numbers in full, others with all digits."""
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    return str(value)


def _table_caption(table: Table, has_units: bool) -> str:
    unit = table.unit.name
    caption = f"{title_of(table.value)}{f' in {unit}' if unit and not has_units else ''}."
    caption += f" {table.emulation.capitalize()}." if table.emulation else ""
    several = sum(cell.low is not None and not cell.repeats for row in table.cells for cell in row)
    if several:
        caption += f" {several} {'cell aggregates' if several == 1 else 'cells aggregate'} several runs."
    if any(cell.repeats for row in table.cells for cell in row):
        caption += " Repeats are given with ± their standard deviation."
    if any(cell.text.startswith(APPROXIMATELY) for row in table.cells for cell in row):
        caption += f" {APPROXIMATELY} marks values that differ from the best by less than the noise of the repeats."
    if table.left_out:
        runs = "1 run lacks" if len(table.left_out) == 1 else f"{len(table.left_out)} runs lack"
        caption += f" {runs} one of the row or column fields."
    return caption


def _numbers(table: Table, records: Sequence[Record]) -> list[list[Any]]:
    across = [" ".join(field_value(value) for value in heading) for heading in table.column_headings]
    heads = [f"{table.value} at {text}" if text else table.value for text in across]
    numbers = [
        [*table.rows, *heads],
        *(
            [*heading, *(cell.value if cell.value is not None else cell.state for cell in cells)]
            for heading, cells in zip(table.row_headings, table.cells, strict=True)
        ),
    ]
    return _with_kinds(numbers, heads, _pivot_kinds(table, records))


def _pivot_kinds(table: Table, records: Sequence[Record]) -> list[list[str]]:
    return [[kinds_of(cell, records, table.value) for cell in cells] for cells in table.cells]


def _with_kinds(numbers: list[list[Any]], names: Sequence[str], kinds: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Add a column with the kinds of each column of imported numbers; rows without kinds are left as they are."""
    places = [place for place in range(len(names)) if any(row[place] for row in kinds)]
    added = [[f"kind of {names[place]}" for place in places], *([row[place] for place in places] for row in kinds)]
    return [[*row, *more] for row, more in zip(numbers, added, strict=False)] + numbers[len(added) :]


def _caption_of(kinds: Sequence[Sequence[str]]) -> str:
    """Say how many numbers of a table are not printed as such."""
    counts = Counter(kind for row in kinds for cell in row for kind in cell.split(", ") if kind not in ("", "printed"))
    parts = [f"{count} {kind}" for kind, count in sorted(counts.items())]
    return f" Not printed as such: {', '.join(parts)}." if parts else ""


class _Column(NamedTuple):
    title: str
    field: str
    """Empty for a template."""
    template: str
    decimals: int | None
    unit: str
    factor: float
    shown: Unit | None = None
    """Unit with the decimal places of the column; None for a number of places that the author chose."""

    def text(self, value: float, *, is_count: bool) -> str:
        """Write a number of this column."""
        if self.shown is not None:
            return in_column(value, self.shown)
        return number_text(value / self.factor, self.decimals, is_count=is_count)


def runs_block(records: Sequence[Record], options: Mapping[str, str], doubt: Number) -> TableBlock:
    """Return `table runs`: a row per run, columns as `Title=field`, `Title=field unit .2` or `Title=a{field}_b{field}`.

    `sort=field` or `sort=-field` sorts the rows. `total="all, sum, max, at max"` adds a row with a text or an aggregate
    for each column; "at max" is the text in the row with the maximum of the nearest column to the left that has "max".
    Raises ValueError.
    """
    fields = fields_of(records)
    runs = _sorted(_filtered(records, options, fields), options.get("sort", ""), fields)[:MAX_ROWS]
    column_texts = listed(options.get("columns", "")) or [name for name in DEFAULT_COLUMNS if name in fields]
    columns = [_column(text, runs, fields, number(options, "decimals", most=12)) for text in column_texts]
    has_run = any(column.field == "run" for column in columns)
    rows = [[_run_cell(record, column, fields, doubt, has_run=has_run) for column in columns] for record in runs]
    kinds = [[kind_of(record, column.field) for column in columns] for record in runs]
    numbers = _with_kinds(_cells(runs, columns, rows), [column.field for column in columns], kinds)
    if options.get("total"):
        rows.append(_total([part.strip() for part in options["total"].split(",")], runs, columns, rows))
        numbers.append([text.text for text in rows[-1]])
    header = [
        Text(text=c.title + (f" ({c.unit})" if c.unit else ""), is_number=bool(c.field) and _is_numeric(runs, c.field))
        for c in columns
    ]
    omitted = len(records) - len(runs) if not options.get("where") else 0
    caption = f"The first {MAX_ROWS} runs; {omitted} more are not shown." if omitted else ""
    caption = (caption + _caption_of(kinds)).strip()
    return TableBlock(title=options.get("title", ""), header=header, rows=rows, caption=caption, numbers=numbers)


def _cells(records: Sequence[Record], columns: Sequence[_Column], rows: Sequence[Sequence[Text]]) -> list[list[Any]]:
    return [
        [column.field or column.title for column in columns],
        *(
            [record.get(column.field, cell.text) for column, cell in zip(columns, row, strict=True)]
            for record, row in zip(records, rows, strict=True)
        ),
    ]


def _is_numeric(records: Sequence[Record], field: str) -> bool:
    return any(is_number(record.get(field)) for record in records)


def _sorted(records: list[Record], sort: str, fields: Sequence[str]) -> list[Record]:
    if not sort:
        return records
    field = field_named(sort.removeprefix("-"), fields)

    def key(record: Record) -> tuple[bool, float, str]:
        value = record.get(field)
        size = float(value) if isinstance(value, int | float) else 0.0
        return is_number(value), size, "" if is_number(value) else str(value)

    measured = sorted((r for r in records if r.get(field) is not None), key=key, reverse=sort.startswith("-"))
    return measured + [r for r in records if r.get(field) is None]


def _column(text: str, records: Sequence[Record], fields: Sequence[str], decimals: int | None) -> _Column:
    title, has_title, rest = text.partition("=")
    rest = rest.strip() if has_title else title.strip()
    if "{" in rest:
        filled(rest, {}, fields)  # raises ValueError for an unknown field
        return _Column(title.strip(), "", rest, None, "", 1.0)
    match = _DECIMALS.match(rest)
    if match:
        rest, decimals = match[1], int(match[2])
    field, unit = _with_unit(rest, fields)
    base = unit_of(field)
    values = [r.get(field) for r in records if is_number(r.get(field))]
    display_unit = shown_unit(field, values, unit)
    name = title.strip() if has_title else title_of(field)
    # A title chosen by the author may contain the unit already.
    unit_name = display_unit.name if base != PLAIN and (unit or not has_title) else ""
    factor = display_unit.factor if unit or not has_title else 1.0
    shown = None
    if decimals is None and base != PLAIN:
        origins = ((r[field], r.get("origin") in PRINTED) for r in records if is_number(r.get(field)))
        shown = for_column(Unit(factor, unit_name, base), origins)
    return _Column(name, field, "", decimals, unit_name, factor, shown)


def _with_unit(text: str, fields: Sequence[str]) -> tuple[str, str]:
    """Split `memory_max_bytes MiB` into field and unit; the name of a field may contain spaces."""
    try:
        return field_named(text, fields), ""
    except ValueError:
        head, _, unit = text.rpartition(" ")
        if not head:
            raise
        try:
            return field_named(head, fields), unit
        except ValueError:
            pass
        raise


def _run_cell(record: Record, column: _Column, fields: Sequence[str], doubt: Number, *, has_run: bool) -> Text:
    if column.template:
        return Text(text=filled(column.template, record, fields))
    value = record.get(column.field)
    doubts = [doubt(finding) for finding in _doubts(record, column.field, has_run=has_run)]
    if value is None:
        state = str(record.get("state", FINISHED))
        text = "OOM" if state == OOM and unit_of(column.field) else DASH
        return Text(text=text, state=state if text == "OOM" else "missing", is_number=True, doubts=doubts)
    if not is_number(value):
        text = "OOM" if column.field == "state" and value == OOM else plain_value(value)
        return Text(text=text, doubts=doubts, state="name" if column.field == "run" else "value")
    is_count = not unit_of(column.field)
    text = column.text(value, is_count=is_count)
    if is_count and column.decimals is None:
        text = plain_value(value)
    exact = exact_quantity(value, unit_of(column.field)).strip()
    hover = "; ".join(part for part in (exact, kind_of(record, column.field)) if part)
    return Text(text=text, doubts=doubts, is_number=True, exact=hover)


def _doubts(record: Record, field: str, *, has_run: bool) -> Sequence[Any]:
    """Return the findings of a cell; findings about the whole run mark its number if shown, else all its results."""
    doubts: Mapping[str, Sequence[Any]] = record.get("doubts") or {}
    if has_run or not (unit_of(field) or field.startswith("figure.")):
        return doubts.get(field, ())
    return doubts_of(record, field)


def _total(
    parts: Sequence[str], records: Sequence[Record], columns: Sequence[_Column], rows: Sequence[Sequence[Text]]
) -> list[Text]:
    if len(parts) != len(columns):
        raise ValueError(
            f"total has {len(parts)} parts for {len(columns)} columns; write one part per column, - for an empty cell"
        )
    total: list[Text] = []
    at = 0
    for place, (part, column) in enumerate(zip(parts, columns, strict=True)):
        values = [(float(r[column.field]), n) for n, r in enumerate(records) if is_number(r.get(column.field))]
        if part == "at max":
            total.append(rows[at][place].model_copy(update={"is_best": False}))
        elif part in AGGREGATES:
            if not values:
                raise ValueError(f"total: {part} of {column.title!r} requires numbers; write - for this column")
            at = max(values)[1] if part == "max" else at
            aggregate = AGGREGATES[part]([value for value, _ in values])
            text = column.text(aggregate, is_count=not unit_of(column.field))
            whole = not unit_of(column.field) and column.decimals is None
            total.append(Text(text=plain_value(aggregate) if whole else text, is_number=True))
        else:
            total.append(Text(text=DASH if part == "-" else part, state="value" if place else "name"))
    return total
