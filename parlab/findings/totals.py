"""Summaries: totals, best rows, stated improvements, and the metric of an autotuner."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parlab.findings.contradictions import Amount, Contradiction, agree, percent, printed, shown, times
from parlab.findings.facts import figure_amount
from parlab.findings.tables import line_of
from parlab.formats.schema import Cell, Document, Figure, Table

TUNER = 0.10
"""The autotuner times only forward, backward and step; the rest is 4 to 8 % in healthy published pairs."""

_TOTAL = re.compile(r"(?i)^\W*(?:global|total|sum|all|overall)\W*$")
_BEST = re.compile(r"(?i)^best[ _-](?:\w+[ _-])?(?:metric|val|value|result|throughput)")
# Counts that add up, unlike numbers of GPUs or layers.
_COUNT = re.compile(
    r"(?i)^(?:(?:num|number|count|n)[ _-](?:of[ _-])?)?(experiments|runs|trials|jobs|samples|tokens|failures)$"
)
_BASE, _TUNED = re.compile(r"(?i)\bbaseline\b"), re.compile(r"(?i)\bauto-?tun")
_BY_HAND = re.compile(r"(?i)\bhand-? ?tuned\b")
_TUNED_METRIC = "best_metric_val"


def total(stated_total: float, parts: list[float], what: str) -> Contradiction | None:
    """Compare a stated total with the sum of its rows."""
    expected = sum(parts)
    if agree(Amount(stated_total), Amount(expected)):
        return None
    return Contradiction(
        f"{shown(stated_total)} {what} are stated in total, but the {len(parts)} rows add up to {shown(expected)}.",
        {"stated_total": stated_total, "sum_of_rows": expected},
    )


def best(stated_best: Amount, row: str, rows: dict[str, Amount]) -> Contradiction | None:
    """Compare the stated best value of a summary with the best of its rows."""
    name = max(rows, key=lambda name: rows[name].value, default=None)
    if name is None or agree(stated_best, rows[name]):
        return None
    if stated_best.value > rows[name].value:
        text = f"{row} states {shown(stated_best.value)} as the best value, but no row contains it; the best row is"
    else:
        text = f"{row} states {shown(stated_best.value)} as the best value, but a row is better:"
    return Contradiction(
        f"{text} {shown(rows[name].value)} ({name}).",
        {"stated_best": stated_best.value, "best_of_rows": rows[name].value},
    )


def improvement(stated_factor: Amount, before: Amount, after: Amount) -> Contradiction | None:
    """Compare a stated improvement (a factor) with the ratio of its two numbers."""
    if before.value <= 0 or after.value <= 0:
        return None
    expected = after.over(before)
    # Authors truncate as often as they round.
    if agree(Amount(stated_factor.value, 2 * stated_factor.slack), expected):
        return None
    return Contradiction(
        f"An improvement of {times(stated_factor.value)} is stated, but {shown(after.value)} / {shown(before.value)} is"
        f" {times(expected.value)}.",
        {"stated_improvement": stated_factor.value, "before": before.value, "after": after.value,
         "expected_improvement": expected.value},
    )  # fmt: skip


def tuner(metric: Amount, measured: Amount) -> Contradiction | None:
    """Compare the metric of an autotuner with the throughput measured end to end, both in samples/s."""
    if measured.value <= 0 or metric.value <= 0:
        return None
    if agree(metric, measured, TUNER):
        return None
    off = metric.value / measured.value - 1
    return Contradiction(
        f"The autotuner's metric of {shown(metric.value)} samples/s is {percent(abs(off))}"
        f" {'above' if off > 0 else 'below'} the {shown(measured.value)} samples/s measured end to end; it omits part"
        " of the step, so compare runs by the end-to-end throughput.",
        {"tuner_samples_per_s": metric.value, "measured_samples_per_s": measured.value},
    )


def _total_row(table: Table) -> int | None:
    """Return the index of the only row whose first cell labels it as a total; None if there is none."""
    rows = [number for number, row in enumerate(table.rows) if row and _TOTAL.match(row[0].text[:40])]
    return rows[0] if len(rows) == 1 and len(table.rows) > 2 else None


def _numbers(table: Table, column: int, but: int | None) -> list[float] | None:
    """Return the numbers of a column without one row; None if a cell is neither a number nor blank."""
    values = []
    for number, row in enumerate(table.rows):
        cell = row[column] if column < len(row) else None
        if number == but or cell is None or cell.kind == "blank":
            continue
        if cell.value is None:
            return None
        values.append(cell.value)
    return values


def totals_in_document(document: Document) -> Iterator[Contradiction]:
    """Check the totals of count columns, and the number of experiments that a footer or prose states."""
    for index, table in enumerate(document.tables):
        row = _total_row(table)
        for column, name in enumerate(table.columns):
            counted = _COUNT.match(name[:80])
            parts = _numbers(table, column, row) if counted else None
            if not counted or not parts:
                continue
            what = counted[1].lower()
            stated_total = table.rows[row][column].value if row is not None and column < len(table.rows[row]) else None
            if row is not None and stated_total is not None and (contradiction := total(stated_total, parts, what)):
                yield contradiction.at(line_of(table, row), table=index, row=row, column=column)
            if what == "experiments" and _only_table_of_experiments(document, index):
                yield from _stated_experiments(document, index, column, parts)


def _only_table_of_experiments(document: Document, index: int) -> bool:
    """Return whether a number of experiments in this section can only refer to this table."""
    section = document.tables[index].section
    counting = [
        number
        for number, table in enumerate(document.tables)
        if table.section == section
        and any((counted := _COUNT.match(name[:80])) and counted[1].lower() == "experiments" for name in table.columns)
    ]
    return counting == [index]


def _stated_experiments(document: Document, index: int, column: int, parts: list[float]) -> Iterator[Contradiction]:
    table = document.tables[index]
    for name in ("tuning_experiments", "number_of_experiments"):
        figures = [figure for figure in document.figures.get(name, []) if figure.section == table.section]
        if (
            len(figures) == 1
            and figures[0].value is not None
            and (contradiction := total(figures[0].value, parts, "experiments"))
        ):
            yield contradiction.at(figures[0].line, table.line, table=index, column=column, figure=name)


def best_in_document(document: Document) -> Iterator[Contradiction]:
    """Check that the best value in the total row of a summary is the best of the rows."""
    for index, table in enumerate(document.tables):
        row = _total_row(table)
        if row is None:
            continue
        for column, name in enumerate(table.columns):
            cell = _at(table, row, column)
            amount = printed(cell.text) if cell and cell.value is not None else None
            if not _BEST.match(name[:80]) or amount is None:
                continue
            rows = {
                other[0].text[:80]: best_value
                for number, other in enumerate(table.rows)
                if number != row
                and column < len(other)
                and other[column].value
                and (best_value := printed(other[column].text))
            }
            contradiction = best(amount, table.rows[row][0].text[:80], rows) or _best_name(table, row, column, rows)
            if contradiction:
                yield contradiction.at(line_of(table, row), table=index, row=row, column=column)


def _best_name(table: Table, row: int, column: int, rows: dict[str, Amount]) -> Contradiction | None:
    """Check that the experiment in the total row is that of the best row."""
    names = [
        number for number, name in enumerate(table.columns) if re.match(r"(?i)best[ _-](?:\w+[ _-])?name", name[:80])
    ]
    if len(names) != 1 or not rows:
        return None
    stated_name, best_value = _at(table, row, names[0]), max(amount.value for amount in rows.values())
    of_best = [
        other[names[0]].text
        for number, other in enumerate(table.rows)
        if number != row and max(names[0], column) < len(other) and other[column].value == best_value
    ]
    if stated_name is None or stated_name.kind == "blank" or not of_best or stated_name.text in of_best:
        return None
    return Contradiction(
        f"The summary names {stated_name.text[:80]} as the best, but the row with the best value {shown(best_value)} is"
        f" {of_best[0][:80]}.",
        {"best_of_rows": best_value},
    )


def _at(table: Table, row: int, column: int) -> Cell | None:
    return table.rows[row][column] if column < len(table.rows[row]) else None


def _comparisons(document: Document) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Yield rows that compare a baseline with a tuned result: (table, row, {"baseline" | "hand" | "tuned": column})."""
    for index, table in enumerate(document.tables):
        columns: dict[str, int] = {}
        for column, name in enumerate(table.columns):
            for meaning, pattern in (("baseline", _BASE), ("hand", _BY_HAND), ("tuned", _TUNED)):
                if pattern.search(name[:120]):
                    columns.setdefault(meaning, column)
        if "tuned" in columns:
            for row in range(len(table.rows)):
                yield index, row, columns


def _cell_amount(table: Table, row: int, column: int | None) -> Amount | None:
    """Return the number of a cell with its precision: `Zero1 (27.497, gas = 1)` is 27.497."""
    cell = _at(table, row, column) if column is not None else None
    if cell is None or cell.value is None:
        return None
    amounts = [printed(word) for word in re.findall(r"\d[\d.,]*", cell.text[:200])]
    return next((amount for amount in amounts if amount and amount.value == cell.value), Amount(cell.value))


def improvements_in_document(document: Document) -> Iterator[Contradiction]:
    """Compare a stated improvement with the table of baseline and tuned results, if there is one of each."""
    figures = _improvements(document)
    rows = list(_comparisons(document))
    if len(figures) != 1 or len(rows) != 1:
        return
    name, figure = figures[0]
    index, row, columns = rows[0]
    before = _cell_amount(document.tables[index], row, columns.get("baseline"))
    after = _cell_amount(document.tables[index], row, columns["tuned"])
    if before and after and (contradiction := improvement(figure_amount(figure), before, after)):
        line = line_of(document.tables[index], row)
        yield contradiction.at(figure.line, line, table=index, row=row, column=columns["tuned"], figure=name)


def _improvements(document: Document) -> list[tuple[str, Figure]]:
    return [
        (name, figure)
        for name, figures in document.figures.items()
        if "improvement" in name and "baseline" in name
        for figure in figures
        if figure.value is not None and figure.unit in ("x", "")
    ]


def tuner_in_document(document: Document) -> Iterator[Contradiction]:
    """Compare the best metric of the autotuner's summary with the tuned result measured end to end."""
    rows = list(_comparisons(document))
    if len(rows) != 1:
        return
    index, row, columns = rows[0]
    measured = _cell_amount(document.tables[index], row, columns["tuned"])
    summaries = [
        (number, table, at)
        for number, table in enumerate(document.tables)
        if (at := _total_row(table)) is not None and _TUNED_METRIC in table.columns
    ]
    if len(summaries) > 1:  # of several studies, only one in the same section belongs to the measured result
        summaries = [item for item in summaries if item[1].section == document.tables[index].section]
    if measured is None or len(summaries) != 1:
        return
    for number, table, at in summaries:
        column = table.columns.index(_TUNED_METRIC)
        metric = _cell_amount(table, at, column)
        if metric and (contradiction := tuner(metric, measured)):
            lines = (line_of(table, at), line_of(document.tables[index], row))
            yield contradiction.at(*lines, table=number, row=at, column=column)
