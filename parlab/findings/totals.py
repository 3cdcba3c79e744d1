"""Summaries: totals that do not add up, best rows that are not the best, improvements, the tuner's metric."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parlab.findings.doubts import Amount, Doubt, agree, percent, printed, shown, times
from parlab.findings.facts import figure_amount
from parlab.findings.tables import line_of
from parlab.formats.schema import Cell, Document, Figure, Table

TUNER = 0.10
"""The tuner leaves out what is not forward, backward or step: 4 to 8 % in healthy published pairs."""

_TOTAL = re.compile(r"(?i)^\W*(?:global|total|sum|all|overall)\W*$")
_BEST = re.compile(r"(?i)^best[ _-](?:\w+[ _-])?(?:metric|val|value|result|throughput)")
# Counts that add up; numbers of GPUs or layers do not.
_COUNT = re.compile(
    r"(?i)^(?:(?:num|number|count|n)[ _-](?:of[ _-])?)?(experiments|runs|trials|jobs|samples|tokens|failures)$"
)
_BASE, _TUNED = re.compile(r"(?i)\bbaseline\b"), re.compile(r"(?i)\bauto-?tun")
_BY_HAND = re.compile(r"(?i)\bhand-? ?tuned\b")
_TUNED_METRIC = "best_metric_val"


def total(told: float, parts: list[float], what: str) -> Doubt | None:
    """Compare a stated total with the sum of its rows."""
    expected = sum(parts)
    if agree(Amount(told), Amount(expected)):
        return None
    return Doubt(
        f"{shown(told)} {what} are stated in all, but the {len(parts)} rows add up to {shown(expected)}.",
        {"stated_total": told, "sum_of_rows": expected},
    )


def best(told: Amount, row: str, rows: dict[str, Amount]) -> Doubt | None:
    """Compare the value that a summary calls the best with the best of its rows."""
    name = max(rows, key=lambda name: rows[name].value, default=None)
    if name is None or agree(told, rows[name]):
        return None
    if told.value > rows[name].value:
        text = f"{row} says {shown(told.value)} is the best, but no row has it; the best of the rows is"
    else:
        text = f"{row} says {shown(told.value)} is the best, but a row is better:"
    return Doubt(
        f"{text} {shown(rows[name].value)} ({name}).",
        {"stated_best": told.value, "best_of_rows": rows[name].value},
    )


def improvement(told: Amount, before: Amount, after: Amount) -> Doubt | None:
    """Compare a stated improvement (a factor) with the ratio of its two numbers."""
    if before.value <= 0 or after.value <= 0:
        return None
    expected = after.over(before)
    # Authors cut digits off as often as they round.
    if agree(Amount(told.value, 2 * told.slack), expected):
        return None
    return Doubt(
        f"An improvement of {times(told.value)} is stated, but {shown(after.value)} over {shown(before.value)} is"
        f" {times(expected.value)}.",
        {"stated_improvement": told.value, "before": before.value, "after": after.value,
         "expected_improvement": expected.value},
    )  # fmt: skip


def tuner(metric: Amount, measured: Amount) -> Doubt | None:
    """Compare the tuner's own metric with the throughput measured end to end, both in samples/s."""
    if measured.value <= 0 or metric.value <= 0:
        return None
    if agree(metric, measured, TUNER):
        return None
    off = metric.value / measured.value - 1
    return Doubt(
        f"The tuner's metric of {shown(metric.value)} samples/s is {percent(abs(off))}"
        f" {'above' if off > 0 else 'below'} the {shown(measured.value)} samples/s measured end to end; it leaves out"
        " part of the step, so compare runs by the second one.",
        {"tuner_samples_per_s": metric.value, "measured_samples_per_s": measured.value},
    )


def _total_row(table: Table) -> int | None:
    """Index of the only row whose first cell says that it sums up the others; None without one."""
    rows = [number for number, row in enumerate(table.rows) if row and _TOTAL.match(row[0].text[:40])]
    return rows[0] if len(rows) == 1 and len(table.rows) > 2 else None


def _numbers(table: Table, column: int, but: int | None) -> list[float] | None:
    """Return the numbers of a column; None where a cell is neither a number nor blank."""
    found = []
    for number, row in enumerate(table.rows):
        cell = row[column] if column < len(row) else None
        if number == but or cell is None or cell.kind == "blank":
            continue
        if cell.value is None:
            return None
        found.append(cell.value)
    return found


def totals_in_document(document: Document) -> Iterator[Doubt]:
    """Total rows of count columns, and the number of experiments that a footer or prose states beside them."""
    for index, table in enumerate(document.tables):
        row = _total_row(table)
        for column, name in enumerate(table.columns):
            counted = _COUNT.match(name[:80])
            parts = _numbers(table, column, row) if counted else None
            if not counted or not parts:
                continue
            what = counted[1].lower()
            told = table.rows[row][column].value if row is not None and column < len(table.rows[row]) else None
            if row is not None and told is not None and (doubt := total(told, parts, what)):
                yield doubt.at(line_of(table, row), table=index, row=row, column=column)
            if what == "experiments":
                yield from _stated_experiments(document, index, column, parts)


def _stated_experiments(document: Document, index: int, column: int, parts: list[float]) -> Iterator[Doubt]:
    table = document.tables[index]
    for name in ("tuning_experiments", "number_of_experiments"):
        figures = [figure for figure in document.figures.get(name, []) if figure.section == table.section]
        if (
            len(figures) == 1
            and figures[0].value is not None
            and (doubt := total(figures[0].value, parts, "experiments"))
        ):
            yield doubt.at(figures[0].line, table.line, table=index, column=column, figure=name)


def best_in_document(document: Document) -> Iterator[Doubt]:
    """The total row of a summary names the best value of a column: it must be the best of the rows."""
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
                other[0].text[:80]: found
                for number, other in enumerate(table.rows)
                if number != row
                and column < len(other)
                and other[column].value
                and (found := printed(other[column].text))
            }
            doubt = best(amount, table.rows[row][0].text[:80], rows) or _best_name(table, row, column, rows)
            if doubt:
                yield doubt.at(line_of(table, row), table=index, row=row, column=column)


def _best_name(table: Table, row: int, column: int, rows: dict[str, Amount]) -> Doubt | None:
    """The experiment that the total row names must be the one of the best row."""
    names = [
        number for number, name in enumerate(table.columns) if re.match(r"(?i)best[ _-](?:\w+[ _-])?name", name[:80])
    ]
    if len(names) != 1 or not rows:
        return None
    told, best_value = _at(table, row, names[0]), max(amount.value for amount in rows.values())
    of_best = [
        other[names[0]].text
        for number, other in enumerate(table.rows)
        if number != row and max(names[0], column) < len(other) and other[column].value == best_value
    ]
    if told is None or told.kind == "blank" or not of_best or told.text in of_best:
        return None
    return Doubt(
        f"The summary names {told.text[:80]} as the best, but the row with the best value {shown(best_value)} is"
        f" {of_best[0][:80]}.",
        {"best_of_rows": best_value},
    )


def _at(table: Table, row: int, column: int) -> Cell | None:
    return table.rows[row][column] if column < len(table.rows[row]) else None


def _comparisons(document: Document) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Yield rows that compare a baseline with a tuned result: (table, row, {"baseline", "hand", "tuned": column})."""
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
    """Read a cell with the precision of the number in it: `Zero1 (27.497, gas = 1)` is 27.497."""
    cell = _at(table, row, column) if column is not None else None
    if cell is None or cell.value is None:
        return None
    amounts = [printed(word) for word in re.findall(r"\d[\d.,]*", cell.text[:200])]
    return next((amount for amount in amounts if amount and amount.value == cell.value), Amount(cell.value))


def improvements_in_document(document: Document) -> Iterator[Doubt]:
    """A stated improvement over a baseline against the table of baseline and tuned results; where there is one each."""
    figures = _improvements(document)
    rows = list(_comparisons(document))
    if len(figures) != 1 or len(rows) != 1:
        return
    name, figure = figures[0]
    index, row, columns = rows[0]
    before = _cell_amount(document.tables[index], row, columns.get("baseline"))
    after = _cell_amount(document.tables[index], row, columns["tuned"])
    if before and after and (doubt := improvement(figure_amount(figure), before, after)):
        line = line_of(document.tables[index], row)
        yield doubt.at(figure.line, line, table=index, row=row, column=columns["tuned"], figure=name)


def _improvements(document: Document) -> list[tuple[str, Figure]]:
    return [
        (name, figure)
        for name, figures in document.figures.items()
        if "improvement" in name and "baseline" in name
        for figure in figures
        if figure.value is not None and figure.unit in ("x", "")
    ]


def tuner_in_document(document: Document) -> Iterator[Doubt]:
    """The best metric of the tuner's summary against the tuned result measured end to end."""
    rows = list(_comparisons(document))
    if len(rows) != 1:
        return
    index, row, columns = rows[0]
    measured = _cell_amount(document.tables[index], row, columns["tuned"])
    for number, table in enumerate(document.tables):
        at = _total_row(table)
        if measured is None or at is None or _TUNED_METRIC not in table.columns:
            continue
        column = table.columns.index(_TUNED_METRIC)
        metric = _cell_amount(table, at, column)
        if metric and (doubt := tuner(metric, measured)):
            lines = (line_of(table, at), line_of(document.tables[index], row))
            yield doubt.at(*lines, table=number, row=at, column=column)
