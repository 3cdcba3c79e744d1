"""The rules applied to rows of result tables, whose columns are recognised by their headings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from statistics import median
from typing import NamedTuple

from parlab.findings import compute, sizes, sweep_points
from parlab.findings.contradictions import Amount, Contradiction, agree, looks_like, printed, ratio_of, shown
from parlab.findings.facts import Sizes
from parlab.formats.schema import Cell, Document, Table

WORK = 0.03
"""Rows of one table count the same FLOPs per parameter, token and sequence. Authors round times and sizes, which adds
up to 2 % in published tables."""

UNIT = 0.05
"""Aggregates in the wrong unit differ by a factor of 1,000, up to the rounding of their few digits."""

MAX_ROWS = 2_000

# Meaning -> headings in lower case without punctuation. Other columns are not checked.
_COLUMNS: dict[str, frozenset[str]] = {
    "gpus": frozenset({"gpus", "gpu", "number of gpus", "num gpus", "n gpus", "world size", "accelerators"}),
    "tensor": frozenset({"tp", "tp size", "tensor parallel", "tensor parallel size", "tensor model parallel size"}),
    "pipeline": frozenset({"pp", "pp size", "pipeline parallel", "pipeline parallel size",
                           "pipeline model parallel size"}),
    "context": frozenset({"cp", "cp size", "context parallel", "context parallel size"}),
    "data": frozenset({"dp", "dp size", "data parallel", "data parallel size"}),
    "model_parallel": frozenset({"mp", "mp size", "model parallel size"}),
    "micro_batch": frozenset({"mbs", "micro bs", "mic bs", "micro batch", "micro batch size"}),
    "global_batch": frozenset({"gbs", "global bs", "glob bs", "global batch", "global batch size"}),
    "accumulation": frozenset({"gas", "pp chunks", "gradient accumulation steps", "accumulation steps",
                               "micro batches"}),
    "size": frozenset({"size", "model size", "msize", "parameters", "params"}),
    "time": frozenset({"speed", "time", "step time", "iteration time", "time per iteration", "sec iter", "time iter"}),
    "flops_per_gpu": frozenset({"tflops", "tflops gpu", "tflop s", "tflop s gpu", "tflop s per gpu", "tflops per gpu",
                                "achieved teraflop s per gpu"}),
    "aggregate": frozenset({"tflops aggreg", "tflops aggregate", "aggregate tflops", "total tflops", "tflop s total",
                            "aggregate tflop s", "pflops aggreg", "pflops aggregate", "aggregate pflops",
                            "total pflops", "pflop s total", "aggregate pflop s"}),
    "share": frozenset({"tflops", "mfu", "hfu", "of peak", "of theoretical peak", "percentage of peak"}),
    "throughput": frozenset({"samples s", "samples sec", "samples per s", "samples per second", "sequences s",
                             "images s", "images sec", "tokens s", "tokens sec", "tokens per second", "tok s",
                             "throughput samples s",
                             "throughput tokens s"}),
    "efficiency": frozenset({"efficiency", "scaling efficiency", "parallel efficiency"}),
}  # fmt: skip
_COUNTS = (
    "gpus",
    "tensor",
    "pipeline",
    "context",
    "data",
    "model_parallel",
    "micro_batch",
    "global_batch",
    "accumulation",
)
# Columns that describe the work of a row; rows are compared along their GPUs only if these are equal.
_SETTING = re.compile(
    r"(?i)seq|layer|hidden|zero|vocab|precision|dtype|heads|schedule|recompute|checkpoint|mode|network"
)
_WORK = ("flops_per_gpu", "time", "gpus", "global_batch", "size")
_TIME_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "min": 60.0}
_SIZE_UNITS = {"B": 1e9, "M": 1e6, "T": 1e12, "K": 1e3}


class Row(NamedTuple):
    """The recognised cells of one row, by meaning."""

    table: int
    number: int
    line: int
    cells: dict[str, Amount]

    def place(self, contradiction: Contradiction, column: int | None) -> Contradiction:
        return contradiction.at(self.line, table=self.table, row=self.number, column=column)


class ResultTable(NamedTuple):
    """A table with the meanings of its columns."""

    table: int
    columns: dict[str, int]
    rows: list[Row]


def read(index: int, table: Table, required: Collection[str], optional: Collection[str] = ()) -> ResultTable | None:
    """Read the cells of the required and optional columns; None if a required column is missing."""
    columns: dict[str, int] = {}
    for number, name in enumerate(table.columns):
        meaning = _meaning(name, table, number)
        if meaning and meaning not in columns:
            columns[meaning] = number
    if not columns.keys() >= set(required):
        return None
    selected = {meaning: column for meaning, column in columns.items() if meaning in required or meaning in optional}
    time_unit = _unit_of_column(table, columns.get("time"))
    rows = []
    for number, cells in enumerate(table.rows[:MAX_ROWS]):
        amounts = {
            meaning: amount
            for meaning, column in selected.items()
            if column < len(cells) and (amount := _amount(meaning, cells[column], time_unit)) is not None
        }
        rows.append(Row(index, number, line_of(table, number), amounts))
    return ResultTable(index, columns, rows)


def line_of(table: Table, row: int) -> int:
    """Return the line of a row of a pipe table, whose `line` is the last of its header; else the table's first line."""
    return table.line + 2 + row if table.align else table.line


def _meaning(name: str, table: Table, number: int) -> str | None:
    heading = re.sub(r"[^a-z0-9]+", " ", name[:100].lower()).strip()
    is_share = "%" in name or any(row[number].unit == "%" for row in table.rows[:20] if number < len(row))
    for meaning, names in _COLUMNS.items():
        if heading in names and is_share == (meaning in ("share", "efficiency")):
            return meaning
    return None


def _unit_of_column(table: Table, column: int | None) -> float | None:
    """Return the seconds per unit of the time column; None if no cell has a unit, because "speed" is ambiguous."""
    if column is None:
        return None
    units = {row[column].unit for row in table.rows if column < len(row) and row[column].kind == "number"} - {""}
    named = re.search(r"[(\[](m?s|sec|min)[)\]]", table.columns[column])
    if named:
        units.add(named[1])
    return _TIME_UNITS.get(units.pop()) if len(units) == 1 else None


def _amount(meaning: str, cell: Cell, time_unit: float | None) -> Amount | None:
    if cell.kind != "number" or cell.value is None:
        return None
    if meaning in _COUNTS:
        return Amount(cell.value) if cell.value > 0 and cell.value == int(cell.value) else None
    amount = printed(cell.text) or Amount(cell.value)
    if meaning == "time":
        return amount.scaled(time_unit) if time_unit else None
    if meaning == "size":
        return amount.scaled(_SIZE_UNITS[cell.unit]) if cell.unit in _SIZE_UNITS else None
    return amount


def _sizes(row: Row) -> Sizes:
    def get(name: str) -> int | None:
        return int(row.cells[name].value) if name in row.cells else None

    return Sizes(
        gpus=get("gpus"),
        tensor=get("tensor"),
        pipeline=get("pipeline"),
        data=get("data"),
        context=get("context"),
        micro_batch=get("micro_batch"),
        global_batch=get("global_batch"),
        accumulation=get("accumulation"),
    )


def _tables(document: Document, required: Collection[str], optional: Collection[str] = ()) -> Iterator[ResultTable]:
    for index, table in enumerate(document.tables):
        if result_table := read(index, table, required, optional):
            yield result_table


def layouts(document: Document) -> Iterator[Contradiction]:
    """GPUs of a row against TP x PP x DP, or MP x DP."""
    for result_table in _tables(document, ("gpus", "data"), ("tensor", "pipeline", "context", "model_parallel")):
        for row in result_table.rows:
            contradiction = sizes.layout(_sizes(row)) or _model_parallel(row)
            if contradiction:
                yield row.place(contradiction, result_table.columns["gpus"])


def _model_parallel(row: Row) -> Contradiction | None:
    cells = [row.cells.get(name) for name in ("gpus", "model_parallel", "data")]
    if None in cells:
        return None
    gpus, model, data = (int(amount.value) for amount in cells if amount)
    if gpus == model * data:
        return None
    return Contradiction(
        f"{shown(gpus)} GPUs are stated, but MP {shown(model)} x DP {shown(data)} = {shown(model * data)}.",
        {"gpus": float(gpus), "expected_gpus": float(model * data)},
    )


def batches(document: Document) -> Iterator[Contradiction]:
    """Compare the global batch size of a row with micro batch x accumulation x DP."""
    for result_table in _tables(document, ("global_batch", "micro_batch", "data"), ("accumulation",)):
        for row in result_table.rows:
            contradiction = sizes.batch(_sizes(row))
            if contradiction:
                yield row.place(contradiction, result_table.columns["global_batch"])


def aggregates(document: Document) -> Iterator[Contradiction]:
    """Compare aggregate FLOP/s with GPUs x FLOP/s per GPU; report a column in the wrong unit once."""
    for result_table in _tables(document, ("aggregate", "gpus", "flops_per_gpu")):
        index, column = result_table.table, result_table.columns["aggregate"]
        name = document.tables[index].columns[column]
        unit, factor = ("PFLOP/s", 1e3) if "pf" in name.lower() else ("TFLOP/s", 1.0)
        wrong: list[tuple[Row, Contradiction]] = []
        thousandths: list[Row] = []
        checked = 0
        for row in result_table.rows:
            stated, gpus, each = (row.cells.get(part) for part in ("aggregate", "gpus", "flops_per_gpu"))
            if stated is None or gpus is None or each is None or stated.value <= 0:
                continue
            checked += 1
            in_unit = each.scaled(1 / factor)
            if contradiction := compute.total(stated, gpus.value, in_unit, unit):
                wrong.append((row, contradiction))
                if agree(stated.scaled(1e3), in_unit.times(gpus), UNIT):
                    thousandths.append(row)
        if checked and len(thousandths) == checked and unit == "TFLOP/s":
            row, contradiction = wrong[0]
            yield Contradiction(
                f"The column {name} states {shown(row.cells['aggregate'].value)} where"
                f" {shown(contradiction.numbers['gpus'])} GPUs x {shown(contradiction.numbers['per_gpu'])} TFLOP/s ="
                f" {shown(contradiction.numbers['expected_aggregate'])} TFLOP/s, 1,000 times as much, in all"
                f" {checked} rows; the column is in PFLOP/s.",
                contradiction.numbers,
            ).at(document.tables[index].line, row.line, table=index, column=column)
            continue
        for row, contradiction in wrong:
            yield row.place(contradiction, column)


def work(document: Document) -> Iterator[Contradiction]:
    """Compare FLOP/s x time x GPUs / (batch x model size), which is the same in all rows that use one formula."""
    for result_table in _tables(document, _WORK):
        column = result_table.columns["flops_per_gpu"]
        checked = [(row, amount) for row in result_table.rows if (amount := _work_per_parameter(row)) is not None]
        if len(checked) < 3:
            continue
        usual = median(amount.value for _, amount in checked)
        for row, amount in checked:
            if agree(amount, Amount(usual), WORK):
                continue
            stated = row.cells["flops_per_gpu"].value
            expected = stated * usual / amount.value
            yield row.place(
                Contradiction(
                    f"{shown(stated)} TFLOP/s per GPU are stated, but model size, batch size, GPUs and the time of"
                    f" {shown(row.cells['time'].value)} s give {shown(expected)} TFLOP/s by the formula of the other"
                    f" {len(checked) - 1} rows{looks_like(ratio_of(stated, expected))}.",
                    {"tflops_per_gpu": stated, "expected_tflops_per_gpu": expected},
                ),
                column,
            )


def _work_per_parameter(row: Row) -> Amount | None:
    amounts = [row.cells.get(name) for name in _WORK]
    if any(amount is None or amount.value <= 0 for amount in amounts):
        return None
    flops, time, gpus, batch, size = (amount for amount in amounts if amount)
    return flops.times(time).times(gpus).over(batch).over(size)


def shares(document: Document) -> Iterator[Contradiction]:
    """Check shares of a peak against 100 %."""
    for result_table in _tables(document, ("share",)):
        for row in result_table.rows:
            share = row.cells.get("share")
            if share and (contradiction := compute.above_peak(share, "A share of the peak")):
                yield row.place(contradiction, result_table.columns["share"])


def efficiencies(document: Document) -> Iterator[Contradiction]:
    """Check scaling efficiencies against 100 % + neighbours.ABOVE_ONE."""
    for result_table in _tables(document, ("efficiency",)):
        for row in result_table.rows:
            stated = row.cells.get("efficiency")
            if stated and stated.value - stated.slack > 100 * (1 + sweep_points.ABOVE_ONE):
                message = f"A scaling efficiency of {shown(stated.value)} % is stated, which is more than 100 %."
                yield row.place(
                    Contradiction(message, {"efficiency_pct": stated.value}), result_table.columns["efficiency"]
                )


def _scaling(document: Document) -> Iterator[tuple[ResultTable, str, list[sweep_points.Point]]]:
    """Yield groups of rows of the same work with GPUs and throughput; a point's owner is the row's number."""
    for result_table in _tables(document, ("gpus", "throughput")):
        table = document.tables[result_table.table]
        groups: dict[tuple[str, ...], list[sweep_points.Point]] = {}
        for row in result_table.rows:
            gpus, rate = row.cells.get("gpus"), row.cells.get("throughput")
            if gpus and rate and rate.value > 0:
                key = _work_of(table, row.number, result_table.columns)
                groups.setdefault(key, []).append(sweep_points.Point(row.number, gpus.value, rate.value))
        unit = table.columns[result_table.columns["throughput"]]
        yield from ((result_table, unit, points) for points in groups.values())


def _work_of(table: Table, row: int, columns: dict[str, int]) -> tuple[str, ...]:
    """Return the cells that describe the work of a row: texts (models, methods), model size and settings."""
    recognised = {column for meaning, column in columns.items() if meaning != "size"}
    return tuple(
        cell.text
        for column, cell in enumerate(table.rows[row])
        if column not in recognised
        and (
            column == columns.get("size")
            or cell.kind == "text"
            or (column < len(table.columns) and _SETTING.search(table.columns[column][:100]))
        )
    )


def off_neighbours(document: Document) -> Iterator[Contradiction]:
    """Check the throughputs of rows against those of their neighbours along the number of GPUs."""
    for result_table, unit, points in _scaling(document):
        for outlier in sweep_points.off_neighbours(points):
            row = result_table.rows[outlier.point.owner]
            yield row.place(sweep_points.off(outlier, "GPUs", unit=unit), result_table.columns["throughput"])


def above_smallest(document: Document) -> Iterator[Contradiction]:
    """Compare the throughput per GPU of rows with that of the row with the fewest GPUs."""
    for result_table, unit, points in _scaling(document):
        ordered = sorted(points, key=lambda point: point.x)
        if len(ordered) < 2 or ordered[0].x == ordered[1].x:
            continue
        for point in ordered[1:]:
            if contradiction := sweep_points.efficiency(ordered[0], point, unit):
                yield result_table.rows[point.owner].place(contradiction, result_table.columns["throughput"])
