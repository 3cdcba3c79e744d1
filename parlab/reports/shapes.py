"""Records -> the tables of a report: pivots and lists of runs, in the shape of a paper. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import DASH, SPACE, exact_quantity, field_value
from parlab.charts.points import is_number

from .blocks import TableBlock, Text
from .directives import chosen, listed, number
from .pivot import (
    AGGREGATES,
    FINISHED,
    OOM,
    Cell,
    Record,
    Table,
    doubts_of,
    field_named,
    fields_of,
    number_text,
    pivot,
    with_best,
)
from .units import PLAIN, shown_unit, title_of, unit_of

Number = Callable[[Any], int]
"""Gives a doubt its number in the report."""
MAX_ROWS = 500
_BEST = ("row", "column", "table", "none")
_FIELD = re.compile(r"\{([^{}]+)\}")
_DECIMALS = re.compile(r"(.+?)\s+\.(\d{1,2})$")
DEFAULT_COLUMNS = ("run", "label", "state", "step_time_s", "samples_per_s", "tokens_per_s", "memory_max_bytes")


def pivot_block(records: Sequence[Record], options: Mapping[str, str], doubt: Number) -> TableBlock:
    """Make `table pivot`: rows, columns, value, and how its cells are written.

    `unit` is one of the value's units, or "cells" (each cell says its own); `decimals` the places after the point;
    `details` a text in brackets behind each number, such as `gas = {gradient_accumulation_steps}`; with
    `decimals=printed` cells of imported tables stand as their file prints them. Raises ValueError.
    """
    fields = fields_of(records)
    records = _filtered(records, options, fields)
    best = options.get("best", "row")
    if best not in _BEST:
        raise ValueError(f"best={best!r} is unknown; use {', '.join(_BEST)}")
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
        written = cell.text
        only = records[cell.records[0]] if len(cell.records) == 1 else {}
        printed = (only.get("printed") or {}).get(table.value) if is_printed else None
        if printed:
            written = str(printed)
        elif is_number(cell.value):
            written += f"{SPACE}{table.unit.name}" if in_cells and table.unit.name else ""
            details = _details(options.get("details", ""), only, fields)
            written += f" ({details})" if details else ""
        exact = exact_quantity(cell.value, table.unit.base).strip() if is_number(cell.value) else ""
        hover = "; ".join(part for part in (exact, cell.note) if part)
        doubts = [doubt(one) for one in cell.doubts]
        return Text(text=written, doubts=doubts, state=cell.state, is_number=True, is_best=cell.is_best, exact=hover)

    names = [Text(text=title) for title in table.row_titles]
    values = [Text(text=said or title_of(table.value), is_number=True) for said in table.column_texts]
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
        caption=_caption(table, in_cells or is_printed),
        numbers=_numbers(table),
    )


def _filtered(records: Sequence[Record], options: Mapping[str, str], fields: Sequence[str]) -> list[Record]:
    where = options.get("where", "")
    kept = chosen(records, where, fields)
    if not kept:
        raise ValueError(
            f"no run fits where={where!r}; change the conditions" if where else "there are no runs to show yet"
        )
    return kept


def _details(template: str, record: Record, fields: Sequence[str]) -> str:
    """Fill a template, leaving out the parts (between commas) whose fields the record has not."""
    parts = []
    for part in template.split(","):
        values = [record.get(field_named(name, fields)) for name in _FIELD.findall(part)]
        if part.strip() and all(value is not None for value in values):
            parts.append(filled(part.strip(), record, fields))
    return ", ".join(parts)


def filled(template: str, record: Record, fields: Sequence[str]) -> str:
    """Put the values of a record for `{field}` in a template. Raises ValueError for a field that nobody has."""

    def value(match: re.Match[str]) -> str:
        found = record.get(field_named(match[1], fields))
        return DASH if found is None else plain_value(found)

    return _FIELD.sub(value, template)


def plain_value(value: object) -> str:
    """Write a value as a program prints it: whole numbers in full, others with all their digits."""
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    return str(value)


def _caption(table: Table, says_units: bool) -> str:
    unit = table.unit.name
    said = f"{title_of(table.value)}{f' in {unit}' if unit and not says_units else ''}."
    said += f" {table.emulation.capitalize()}." if table.emulation else ""
    several = sum(cell.low is not None for row in table.cells for cell in row)
    if several:
        said += f" {several} {'cell is' if several == 1 else 'cells are'} made of several runs."
    if table.left_out:
        said += f" {len(table.left_out)} {'run has' if len(table.left_out) == 1 else 'runs have'} other axes."
    return said


def _numbers(table: Table) -> list[list[Any]]:
    across = [" ".join(field_value(value) for value in heading) for heading in table.column_headings]
    heads = [f"{table.value} at {text}" if text else table.value for text in across]
    return [
        [*table.rows, *heads],
        *(
            [*heading, *(cell.value if cell.value is not None else cell.state for cell in cells)]
            for heading, cells in zip(table.row_headings, table.cells, strict=True)
        ),
    ]


class _Column(NamedTuple):
    title: str
    field: str
    """Empty for a template."""
    template: str
    decimals: int | None
    unit: str
    factor: float


def runs_block(records: Sequence[Record], options: Mapping[str, str], doubt: Number) -> TableBlock:
    """Make `table runs`: a row per run, columns as `Title=field`, `Title=field unit .2` or `Title=a{field}_b{field}`.

    `sort=field` or `sort=-field`; `total="all, sum, max, at max"` adds a row: a text, or how its column adds up;
    "at max" takes the text of the row that holds the maximum of the nearest column to the left. Raises ValueError.
    """
    fields = fields_of(records)
    kept = _sorted(_filtered(records, options, fields), options.get("sort", ""), fields)[:MAX_ROWS]
    wanted = listed(options.get("columns", "")) or [name for name in DEFAULT_COLUMNS if name in fields]
    columns = [_column(text, kept, fields, number(options, "decimals", most=12)) for text in wanted]
    has_run = any(column.field == "run" for column in columns)
    rows = [[_cell(record, column, fields, doubt, has_run=has_run) for column in columns] for record in kept]
    numbers = [[column.field or column.title for column in columns]]
    numbers += [[record.get(column.field, cell.text) for column, cell in zip(columns, row, strict=True)]
                for record, row in zip(kept, rows, strict=True)]  # fmt: skip
    if options.get("total"):
        rows.append(_total([part.strip() for part in options["total"].split(",")], kept, columns, rows))
        numbers.append([text.text for text in rows[-1]])
    header = [
        Text(text=c.title + (f" ({c.unit})" if c.unit else ""), is_number=bool(c.field) and _is_numeric(kept, c.field))
        for c in columns
    ]
    left = len(records) - len(kept) if not options.get("where") else 0
    caption = f"The first {MAX_ROWS} runs; {left} more are not shown." if left else ""
    return TableBlock(title=options.get("title", ""), header=header, rows=rows, caption=caption, numbers=numbers)


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

    having = sorted((r for r in records if r.get(field) is not None), key=key, reverse=sort.startswith("-"))
    return having + [r for r in records if r.get(field) is None]


def _column(text: str, records: Sequence[Record], fields: Sequence[str], decimals: int | None) -> _Column:
    title, has_title, rest = text.partition("=")
    rest = rest.strip() if has_title else title.strip()
    if "{" in rest:
        filled(rest, {}, fields)  # raises for a field that nobody has
        return _Column(title.strip(), "", rest, None, "", 1.0)
    match = _DECIMALS.match(rest)
    if match:
        rest, decimals = match[1], int(match[2])
    field, unit = _with_unit(rest, fields)
    base = unit_of(field)
    found = [r.get(field) for r in records if is_number(r.get(field))]
    shown = shown_unit(field, found, unit)
    name = title.strip() if has_title else title_of(field)
    # A heading of the author's own says its unit as it likes.
    said = shown.name if base != PLAIN and (unit or not has_title) else ""
    factor = shown.factor if unit or not has_title else 1.0
    return _Column(name, field, "", decimals, said, factor)


def _with_unit(text: str, fields: Sequence[str]) -> tuple[str, str]:
    """Take the unit from the end of `memory_max_bytes MiB`; a field may have blanks in its own name."""
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


def _cell(record: Record, column: _Column, fields: Sequence[str], doubt: Number, *, has_run: bool) -> Text:
    if column.template:
        return Text(text=filled(column.template, record, fields))
    value = record.get(column.field)
    doubts = [doubt(one) for one in _doubts(record, column.field, has_run=has_run)]
    if value is None:
        state = str(record.get("state", FINISHED))
        text = "OOM" if state == OOM and unit_of(column.field) else DASH
        return Text(text=text, state=state if text == "OOM" else "missing", is_number=True, doubts=doubts)
    if not is_number(value):
        text = "OOM" if column.field == "state" and value == OOM else plain_value(value)
        return Text(text=text, doubts=doubts, state="name" if column.field == "run" else "value")
    is_count = not unit_of(column.field)
    text = number_text(value / column.factor, column.decimals, is_count=is_count)
    if is_count and column.decimals is None:
        text = plain_value(value)
    exact = exact_quantity(value, unit_of(column.field)).strip()
    return Text(text=text, doubts=doubts, is_number=True, exact=exact)


def _doubts(record: Record, field: str, *, has_run: bool) -> Sequence[Any]:
    """List the doubts of a cell; those about the run as a whole stand at its number, else at all it measured."""
    known: Mapping[str, Sequence[Any]] = record.get("doubts") or {}
    if has_run or not (unit_of(field) or field.startswith("figure.")):
        return known.get(field, ())
    return doubts_of(record, field)


def _total(
    words: Sequence[str], records: Sequence[Record], columns: Sequence[_Column], rows: Sequence[Sequence[Text]]
) -> list[Text]:
    if len(words) != len(columns):
        raise ValueError(f"total has {len(words)} parts for {len(columns)} columns; give one for each, - for none")
    total: list[Text] = []
    at = 0
    for place, (word, column) in enumerate(zip(words, columns, strict=True)):
        values = [(float(r[column.field]), n) for n, r in enumerate(records) if is_number(r.get(column.field))]
        if word == "at max":
            total.append(rows[at][place].model_copy(update={"is_best": False}))
        elif word in AGGREGATES:
            if not values:
                raise ValueError(f"total: {word} of {column.title!r} needs numbers; write - there")
            at = max(values)[1] if word == "max" else at
            made = AGGREGATES[word]([value for value, _ in values])
            text = number_text(made / column.factor, column.decimals, is_count=not unit_of(column.field))
            whole = not unit_of(column.field) and column.decimals is None
            total.append(Text(text=plain_value(made) if whole else text, is_number=True))
        else:
            total.append(Text(text=DASH if word == "-" else word, state="value" if place else "name"))
    return total
