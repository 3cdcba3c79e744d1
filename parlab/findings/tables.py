"""Rows of result tables: the same rules, on columns that are known by their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from statistics import median
from typing import NamedTuple

from parlab.findings import compute, neighbours, sizes
from parlab.findings.doubts import Amount, Doubt, agree, looks_like, printed, ratio_of, shown
from parlab.findings.facts import Sizes
from parlab.formats.schema import Cell, Document, Table

WORK = 0.03
"""Rows of one table count the same FLOPs per parameter, token and sequence. Their authors round time and size on the
way, which has been seen to add up to 2 %."""

UNIT = 0.05
"""Aggregates printed in another unit are off by 1,000 within their few digits."""

MAX_ROWS = 2_000

# Meaning -> names of columns, in small letters without signs. What is not here is not judged.
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
# Columns that say what work a row did; rows are compared along their GPUs only where these agree.
_SETTING = re.compile(
    r"(?i)seq|layer|hidden|zero|vocab|precision|dtype|heads|schedule|recompute|checkpoint|mode|network"
)
_WORK = ("flops_per_gpu", "time", "gpus", "global_batch", "size")
_TIME_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "min": 60.0}
_SIZE_UNITS = {"B": 1e9, "M": 1e6, "T": 1e12, "K": 1e3}


class Row(NamedTuple):
    """The known cells of one row, by meaning."""

    table: int
    number: int
    line: int
    cells: dict[str, Amount]

    def place(self, doubt: Doubt, column: int | None) -> Doubt:
        return doubt.at(self.line, table=self.table, row=self.number, column=column)


class Known(NamedTuple):
    """A table whose columns are known by meaning."""

    table: int
    columns: dict[str, int]
    rows: list[Row]


def read(index: int, table: Table, needed: Collection[str], also: Collection[str] = ()) -> Known | None:
    """Find the columns that are known and read the cells of those asked for; None if a needed column is missing."""
    columns: dict[str, int] = {}
    for number, name in enumerate(table.columns):
        meaning = _meaning(name, table, number)
        if meaning and meaning not in columns:
            columns[meaning] = number
    if not columns.keys() >= set(needed):
        return None
    wanted = {meaning: column for meaning, column in columns.items() if meaning in needed or meaning in also}
    time_unit = _unit_of_column(table, columns.get("time"))
    rows = []
    for number, cells in enumerate(table.rows[:MAX_ROWS]):
        found = {
            meaning: amount
            for meaning, column in wanted.items()
            if column < len(cells) and (amount := _amount(meaning, cells[column], time_unit)) is not None
        }
        rows.append(Row(index, number, line_of(table, number), found))
    return Known(index, columns, rows)


def line_of(table: Table, row: int) -> int:
    """Line of a row in a pipe table, whose `line` is the one above the dashes; of any other table, where it begins."""
    return table.line + 2 + row if table.align else table.line


def _meaning(name: str, table: Table, number: int) -> str | None:
    words = re.sub(r"[^a-z0-9]+", " ", name[:100].lower()).strip()
    is_share = "%" in name or any(row[number].unit == "%" for row in table.rows[:20] if number < len(row))
    for meaning, names in _COLUMNS.items():
        if words in names and is_share == (meaning in ("share", "efficiency")):
            return meaning
    return None


def _unit_of_column(table: Table, column: int | None) -> float | None:
    """Seconds per unit of the time column; None where no cell says, because then a speed may be anything."""
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


def _tables(document: Document, needed: Collection[str], also: Collection[str] = ()) -> Iterator[Known]:
    for index, table in enumerate(document.tables):
        if known := read(index, table, needed, also):
            yield known


def layouts(document: Document) -> Iterator[Doubt]:
    """GPUs of a row against TP x PP x DP, or MP x DP."""
    for known in _tables(document, ("gpus", "data"), ("tensor", "pipeline", "context", "model_parallel")):
        for row in known.rows:
            doubt = sizes.layout(_sizes(row)) or _model_parallel(row)
            if doubt:
                yield row.place(doubt, known.columns["gpus"])


def _model_parallel(row: Row) -> Doubt | None:
    found = [row.cells.get(name) for name in ("gpus", "model_parallel", "data")]
    if None in found:
        return None
    gpus, model, data = (int(amount.value) for amount in found if amount)
    if gpus == model * data:
        return None
    return Doubt(
        f"{shown(gpus)} GPUs are stated, but MP {shown(model)} x DP {shown(data)} are {shown(model * data)}.",
        {"gpus": float(gpus), "expected_gpus": float(model * data)},
    )


def batches(document: Document) -> Iterator[Doubt]:
    """Global batch of a row against micro batch x accumulation x DP."""
    for known in _tables(document, ("global_batch", "micro_batch", "data"), ("accumulation",)):
        for row in known.rows:
            doubt = sizes.batch(_sizes(row))
            if doubt:
                yield row.place(doubt, known.columns["global_batch"])


def aggregates(document: Document) -> Iterator[Doubt]:
    """Aggregate FLOP/s against GPUs x FLOP/s per GPU; one doubt for a column that is in another unit throughout."""
    for known in _tables(document, ("aggregate", "gpus", "flops_per_gpu")):
        index, column = known.table, known.columns["aggregate"]
        name = document.tables[index].columns[column]
        unit, factor = ("PFLOP/s", 1e3) if "pf" in name.lower() else ("TFLOP/s", 1.0)
        wrong: list[tuple[Row, Doubt]] = []
        thousandths: list[Row] = []
        judged = 0
        for row in known.rows:
            told, gpus, each = (row.cells.get(part) for part in ("aggregate", "gpus", "flops_per_gpu"))
            if told is None or gpus is None or each is None or told.value <= 0:
                continue
            judged += 1
            in_unit = each.scaled(1 / factor)
            if doubt := compute.total(told, gpus.value, in_unit, unit):
                wrong.append((row, doubt))
                if agree(told.scaled(1e3), in_unit.times(gpus), UNIT):
                    thousandths.append(row)
        if judged and len(thousandths) == judged and unit == "TFLOP/s":
            row, doubt = wrong[0]
            yield Doubt(
                f"The column {name} says {shown(row.cells['aggregate'].value)} where {shown(doubt.numbers['gpus'])}"
                f" GPUs x {shown(doubt.numbers['per_gpu'])} TFLOP/s are"
                f" {shown(doubt.numbers['expected_aggregate'])} TFLOP/s: 1,000 times as"
                f" much, in all {judged} rows; the column is in PFLOP/s.",
                doubt.numbers,
            ).at(document.tables[index].line, row.line, table=index, column=column)
            continue
        for row, doubt in wrong:
            yield row.place(doubt, column)


def work(document: Document) -> Iterator[Doubt]:
    """FLOP/s x time x GPUs over batch and model size: the same in all rows of a table that counts in one way."""
    for known in _tables(document, _WORK):
        column = known.columns["flops_per_gpu"]
        judged = [(row, amount) for row in known.rows if (amount := _work_per_parameter(row)) is not None]
        if len(judged) < 3:
            continue
        usual = median(amount.value for _, amount in judged)
        for row, amount in judged:
            if agree(amount, Amount(usual), WORK):
                continue
            told = row.cells["flops_per_gpu"].value
            expected = told * usual / amount.value
            yield row.place(
                Doubt(
                    f"{shown(told)} TFLOP/s per GPU are stated, but size, batch, GPUs and the time of"
                    f" {shown(row.cells['time'].value)} s give {shown(expected)} TFLOP/s by the formula of the other"
                    f" {len(judged) - 1} rows{looks_like(ratio_of(told, expected))}.",
                    {"tflops_per_gpu": told, "expected_tflops_per_gpu": expected},
                ),
                column,
            )


def _work_per_parameter(row: Row) -> Amount | None:
    found = [row.cells.get(name) for name in _WORK]
    if any(amount is None or amount.value <= 0 for amount in found):
        return None
    flops, time, gpus, batch, size = (amount for amount in found if amount)
    return flops.times(time).times(gpus).over(batch).over(size)


def shares(document: Document) -> Iterator[Doubt]:
    """Shares of a peak above 100 %."""
    for known in _tables(document, ("share",)):
        for row in known.rows:
            told = row.cells.get("share")
            if told and (doubt := compute.above_peak(told, "A share of the peak")):
                yield row.place(doubt, known.columns["share"])


def efficiencies(document: Document) -> Iterator[Doubt]:
    """Scaling efficiencies above 100 %, by more than neighbours.ABOVE_ONE."""
    for known in _tables(document, ("efficiency",)):
        for row in known.rows:
            told = row.cells.get("efficiency")
            if told and told.value - told.slack > 100 * (1 + neighbours.ABOVE_ONE):
                words = f"An efficiency of {shown(told.value)} % is stated: more than 100 % of the share of its GPUs."
                yield row.place(Doubt(words, {"efficiency_pct": told.value}), known.columns["efficiency"])


def _scaling(document: Document) -> Iterator[tuple[Known, str, list[neighbours.Point]]]:
    """Yield groups of rows of the same work with GPUs and throughput; a point's owner is the row's number."""
    for known in _tables(document, ("gpus", "throughput")):
        table = document.tables[known.table]
        groups: dict[tuple[str, ...], list[neighbours.Point]] = {}
        for row in known.rows:
            gpus, rate = row.cells.get("gpus"), row.cells.get("throughput")
            if gpus and rate and rate.value > 0:
                key = _work_of(table, row.number, known.columns)
                groups.setdefault(key, []).append(neighbours.Point(row.number, gpus.value, rate.value))
        unit = table.columns[known.columns["throughput"]]
        yield from ((known, unit, points) for points in groups.values())


def _work_of(table: Table, row: int, columns: dict[str, int]) -> tuple[str, ...]:
    """What a row says of its work: its words (models, methods), model size and settings; not its results."""
    known = {column for meaning, column in columns.items() if meaning != "size"}
    return tuple(
        cell.text
        for column, cell in enumerate(table.rows[row])
        if column not in known
        and (
            column == columns.get("size")
            or cell.kind == "text"
            or (column < len(table.columns) and _SETTING.search(table.columns[column][:100]))
        )
    )


def off_neighbours(document: Document) -> Iterator[Doubt]:
    """Throughputs of rows far off those of their neighbours along the number of GPUs."""
    for known, unit, points in _scaling(document):
        for found in neighbours.off_neighbours(points):
            row = known.rows[found.point.owner]
            yield row.place(neighbours.off(found, "GPUs", unit=unit), known.columns["throughput"])


def above_smallest(document: Document) -> Iterator[Doubt]:
    """Throughputs per GPU above that of the row with the fewest GPUs."""
    for known, unit, points in _scaling(document):
        ordered = sorted(points, key=lambda point: point.x)
        if len(ordered) < 2 or ordered[0].x == ordered[1].x:
            continue
        for point in ordered[1:]:
            if doubt := neighbours.efficiency(ordered[0], point, unit):
                yield known.rows[point.owner].place(doubt, known.columns["throughput"])
