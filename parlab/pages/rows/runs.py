"""Runs as rows: the table of an experiment, and the headline of a run's own page."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.fields import field_heading
from parlab.charts.format import (
    DASH,
    DIGITS,
    Unit,
    exact_quantity,
    field_value,
    for_column,
    in_column,
    printed_digits,
    quantity,
    significant,
    unit_for,
)
from parlab.charts.points import Spread
from parlab.lab.models import Finding, Run
from parlab.lab.selectors import figures as figures_selectors
from parlab.lab.selectors import runs as runs_selectors
from parlab.lab.selectors.analysis.surroundings import Surroundings, differing
from parlab.lab.selectors.analysis.utilisation import compute, measured_pct
from parlab.lab.selectors.figures import KINDS, figure_title
from parlab.lab.selectors.findings import Doubts
from parlab.lab.selectors.lists import RunMarks, run_marks
from runners.wire.protocol import RunState

MAX_FIGURES = 8
"""Columns for figures that files state and that have no column of their own."""
PERCENT = Unit(1.0, "", "")


class RunRow(NamedTuple):
    """A run with the main numbers of its summary."""

    run: Run
    step_time: Spread | None
    step: int | None
    reason: str
    """Why the run failed or, while it is queued, what it waits for."""
    doubts: Doubts
    """Findings about its numbers: by name of METRICS, or "run" for those about no single number."""
    mfu_pct: float | None
    """As computed here; values that a file states are among the figures."""
    gpu_util_pct: float | None


class RunCell(NamedTuple):
    text: str = ""
    """Empty: not measured."""
    note: str = ""
    """All digits, as a tooltip."""
    doubts: Sequence[Finding] = ()
    drawing: str = ""
    """An SVG figure that is shown in place of the text."""


class RunColumn(NamedTuple):
    title: str
    cell: Callable[[RunRow], RunCell]
    css: str = "number"
    is_awaited: bool = True
    """Whether active runs are going to fill the column, so that it is shown before any run has a value."""
    name: str = ""
    """The number of MEASURES that the column shows; its heading sorts by it."""
    is_shown: bool = True
    """Whether a person sees it who has not chosen."""

    @property
    def key(self) -> str:
        """What a choice of columns calls it, in any unit."""
        return self.name or self.title.partition(" (")[0]


class TableRow(NamedTuple):
    row: RunRow
    cells: list[tuple[RunColumn, RunCell]]
    marks: RunMarks
    headline: str = ""
    """The main number of the run, which narrow screens show beside its name."""
    key: str = ""
    """The line and mark of the run, as its page draws them."""
    name: str = ""
    """What tells the run apart."""
    best: Collection[str] = ()
    """Titles of the columns in which this run has the best value."""


class RunTable(NamedTuple):
    """A table of runs; columns that no run has filled or will fill are omitted."""

    columns: list[RunColumn]
    rows: list[TableRow]
    has_reasons: bool
    offered: Sequence[tuple[RunColumn, bool]] = ()
    """All columns that have values, and whether they are shown."""

    @property
    def has_numbers(self) -> bool:
        """Whether the runs have a main number, now or later."""
        return any(column.is_awaited for column in self.columns)


def run_row(run: Run, *, step: int | None, waiting: str = "", doubts: Doubts | None = None) -> RunRow:
    return RunRow(
        run,
        runs_selectors.step_time(run.summary),
        step,
        waiting or run.reason,
        doubts or {},
        measured_pct(run.summary, "mfu"),
        measured_pct(run.summary, "gpu_util"),
    )


class Shown(NamedTuple):
    """How the page of an experiment shows a run: its name and mark, its range, and its loss as a line."""

    key: str = ""
    name: str = ""
    whisker: str = ""
    loss: str = ""


def run_table(
    runs: Iterable[Run],
    *,
    waiting: Mapping[int, str],
    doubts: Mapping[int, Doubts] | None = None,
    surroundings: Mapping[int, Surroundings] | None = None,
    shown: Mapping[int, Shown] | None = None,
    has_best: bool = True,
    decided: Mapping[str, bool] | None = None,
    stated: Collection[str] | None = None,
) -> RunTable:
    """Arrange runs (of `experiment_runs`) as a table.

    By run id, `waiting` is the reason why a run waits for or on a node, `doubts` the findings about its numbers,
    `surroundings` where it ran, and `shown` how its experiment draws it. `has_best`: the best values are certain.
    `decided` says by key which columns a person shows or hides, `stated` are the keys of an address, which alone count.
    """
    runs, doubts, shown = list(runs), doubts or {}, shown or {}
    marks = run_marks([run.pk for run in runs])
    rows = [
        run_row(
            run,
            step=getattr(run, "last_step", None),
            waiting=waiting.get(run.pk, ""),
            doubts=doubts.get(run.pk),
        )
        for run in runs
    ]
    is_open = not all(run.is_final for run in runs)
    offered = _offered(_all_columns(runs, rows, surroundings or {}, shown), rows, decided or {}, is_open=is_open)
    if stated is not None:
        offered = [(column, column.key in stated) for column, _is_shown in offered]
    columns = [column for column, is_shown in offered if is_shown]
    best = _best(rows, columns) if has_best and len(rows) > 1 else {}
    return RunTable(
        columns,
        [
            TableRow(
                row,
                [(column, column.cell(row)) for column in columns],
                marks.get(row.run.pk, RunMarks()),
                headline(row.run),
                shown.get(row.run.pk, Shown()).key,
                shown.get(row.run.pk, Shown()).name,
                best.get(row.run.pk, ()),
            )
            for row in rows
        ],
        has_reasons=is_open or any(row.reason for row in rows),
        offered=offered,
    )


def _offered(
    columns: Iterable[RunColumn], rows: Sequence[RunRow], decided: Mapping[str, bool], *, is_open: bool
) -> list[tuple[RunColumn, bool]]:
    """Return the columns that have values, now or later, and whether the person sees them."""
    filled = [
        column
        for column in columns
        if (is_open and column.is_awaited) or any(_is_filled(column.cell(row)) for row in rows)
    ]
    return [(column, decided.get(column.key, column.is_shown)) for column in filled]


def _is_filled(cell: RunCell) -> bool:
    return bool(cell.text or cell.drawing)


_COMPARED: Mapping[str, tuple[Callable[[Run], float | None], bool]] = {
    "step_time": (lambda run: run.step_time_s, True),
    "samples_per_s": (lambda run: run.samples_per_s, False),
    "tokens_per_s": (lambda run: run.tokens_per_s, False),
    "memory": (lambda run: run.memory_max_bytes, True),
}
"""Numbers of which a table marks the best: how to read it, and whether the least is the best."""


def _best(rows: Sequence[RunRow], columns: Sequence[RunColumn]) -> dict[int, list[str]]:
    """Return the columns in which each run has the best value; speeds of unequal GPU counts are not compared."""
    best: dict[int, list[str]] = {}
    is_alike = len({row.run.gpus for row in rows}) == 1
    for column in columns:
        read, is_least = _COMPARED.get(column.name, (None, False))
        if read is None or (not is_alike and column.name != "memory"):
            continue
        values = {row.run.pk: value for row in rows if (value := read(row.run)) is not None}
        if len(values) > 1:
            pk = (min if is_least else max)(values, key=lambda pk: values[pk])
            best.setdefault(pk, []).append(column.title)
    return best


def _all_columns(
    runs: Sequence[Run], rows: Sequence[RunRow], surroundings: Mapping[int, Surroundings], shown: Mapping[int, Shown]
) -> list[RunColumn]:
    speeds, others = _stated_columns(runs)
    return [
        *_measure_columns(rows, shown),
        *speeds,
        *_layout_columns(runs),
        *_axis_columns(runs),
        *others,
        *_place_columns(runs, surroundings),
    ]


def headline(run: Run) -> str:
    """Return the step time of a run, or what its file states instead; empty while nothing is measured."""
    if run.state == RunState.OOM:
        return "OOM"
    units = (("step_time_s", "s"), ("samples_per_s", "samples/s"), ("tokens_per_s", "tokens/s"))
    for field, unit in units:
        value: float | None = getattr(run, field)
        if value is not None:
            text = quantity(value, unit, printed_digits(value) if run.prints(field) else DIGITS)
            kind = run.kind_of(field)
            return f"{text}, {KINDS[kind]}" if kind in ("average", "part") else text
    return _stated_speed(run)


def _stated_speed(run: Run) -> str:
    """Return the speed that a file states of a run in another unit, under the name that the file gives it."""
    stated = figures_selectors.stated(run.summary)
    name = next((name for name in stated if figures_selectors.is_speed(name)), "")
    if name:
        return f"{name} {stated[name].rpartition('= ')[2]}"
    flops = compute(run.summary)
    return f"{quantity(flops, 'FLOP/s')} per GPU" if flops is not None else ""


def _measure_columns(rows: Sequence[RunRow], shown: Mapping[int, Shown]) -> list[RunColumn]:
    """Return the columns of the main numbers, each in the unit that suits its values."""

    def column(unit: str, value: Callable[[RunRow], float | None], field: str) -> Unit:
        return for_column(
            unit_for((value(row) for row in rows), unit), ((value(row), row.run.prints(field)) for row in rows)
        )

    def cell(row: RunRow, field: str, unit: Unit, doubts: str) -> RunCell:
        number = _number_cell(getattr(row.run, field), unit, row.doubts.get(doubts))
        kind = row.run.kind_of(field)
        return number._replace(note=f"{number.note}, {KINDS[kind]}") if kind in KINDS and number.text else number

    time = column("s", lambda row: row.step_time.median if row.step_time else None, "step_time_s")
    samples = column("samples/s", lambda row: row.run.samples_per_s, "samples_per_s")
    tokens = column("tokens/s", lambda row: row.run.tokens_per_s, "tokens_per_s")
    memory = column("B", lambda row: row.run.memory_max_bytes, "memory_max_bytes")
    mfu = for_column(PERCENT, ((row.mfu_pct, False) for row in rows))
    utilisation = for_column(PERCENT, ((row.gpu_util_pct, False) for row in rows))
    return [
        RunColumn(f"Step time ({time.name})", lambda row: _step_time_cell(row, time), name="step_time"),
        RunColumn(
            "p10\N{EN DASH}p90",
            lambda row: _spread_cell(row, time)._replace(drawing=shown.get(row.run.pk, Shown()).whisker),
            "mark",
        ),
        RunColumn(
            f"{samples.name[:1].upper()}{samples.name[1:]}",
            lambda row: cell(row, "samples_per_s", samples, "samples"),
            name="samples_per_s",
        ),
        RunColumn(
            f"{tokens.name[:1].upper()}{tokens.name[1:]}" if tokens.factor == 1 else tokens.name,
            lambda row: cell(row, "tokens_per_s", tokens, "tokens"),
            name="tokens_per_s",
        ),
        RunColumn(
            f"Memory ({memory.name})",
            lambda row: _number_cell(row.run.memory_max_bytes, memory, row.doubts.get("memory")),
            name="memory",
        ),
        RunColumn("Loss", lambda row: RunCell(drawing=shown.get(row.run.pk, Shown()).loss), "mark", is_awaited=False),
        RunColumn("Last loss", _loss_cell, is_awaited=False, name="loss"),
        RunColumn("MFU (%)", lambda row: _number_cell(row.mfu_pct, mfu, row.doubts.get("mfu")), is_awaited=False),
        RunColumn("GPU utilisation (%)", lambda row: _number_cell(row.gpu_util_pct, utilisation), is_awaited=False),
        RunColumn("Ranks", lambda row: RunCell(f"{row.run.gpus:,.0f}" if row.run.gpus else ""), is_awaited=False),
    ]


def _loss_cell(row: RunRow) -> RunCell:
    """Return the loss of the last step; one that is no number is a word."""
    value = (row.run.summary.get("loss") or {}).get("last")
    if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
        return RunCell("NaN", "the loss is no number")
    return RunCell(significant(value, 4), exact_quantity(value, "").strip()) if value is not None else RunCell()


_LAYOUT = {
    "TP": ("parallel", "tensor_parallel_size"),
    "PP": ("parallel", "pipeline_parallel_size"),
    "DP": ("parallel", "data_parallel_size"),
    "Global batch": ("train", "global_batch_size"),
    "Micro batch": ("train", "micro_batch_size"),
    "ZeRO stage": ("parallel", "zero_stage"),
}


def _size_text(size: Any) -> str:
    return "" if size is None else field_value(size)


def _layout_columns(runs: Sequence[Run]) -> list[RunColumn]:
    """Return the sizes in which runs differ beside their axes."""

    def column(title: str, section: str, name: str) -> RunColumn:
        return RunColumn(
            title,
            lambda row: RunCell(_size_text(row.run.resolved.get(section, {}).get(name))),
            is_awaited=False,
        )

    return [
        column(title, section, name)
        for title, (section, name) in _LAYOUT.items()
        if len({run.resolved.get(section, {}).get(name) for run in runs}) > 1
        and not any(f"{section}.{name}" in run.point for run in runs)
    ]


def _axis_columns(runs: Sequence[Run]) -> list[RunColumn]:
    """Return the swept fields, which the names of runs contain; a person can show them."""

    def column(axis: str) -> RunColumn:
        return RunColumn(
            field_heading(axis),
            lambda row: RunCell(_size_text(row.run.point.get(axis))),
            is_awaited=False,
            is_shown=False,
        )

    axes = list(dict.fromkeys(axis for run in runs for axis in run.point))[:MAX_FIGURES]
    return [column(axis) for axis in axes]


_PLACE_TITLES = {"nodes": "Node", "device": "Device", "software": "Software"}


def _place_columns(runs: Sequence[Run], surroundings: Mapping[int, Surroundings]) -> list[RunColumn]:
    """Return node, device and software as columns where the runs differ in them."""

    def column(part: str) -> RunColumn:
        return RunColumn(
            _PLACE_TITLES[part],
            lambda row: RunCell(str(getattr(surroundings.get(row.run.pk, Surroundings()), part))),
            "nowrap",
            is_awaited=False,
        )

    return [column(part) for part in differing(surroundings, [run.pk for run in runs])]


def _stated_columns(runs: Sequence[Run]) -> tuple[list[RunColumn], list[RunColumn]]:
    """Return one column per further figure that files state of these runs: speeds, and others."""
    stated = {run.pk: figures_selectors.stated(run.summary) for run in runs}
    names = list(dict.fromkeys(name for figures in stated.values() for name in figures))[:MAX_FIGURES]

    def column(name: str) -> RunColumn:
        return RunColumn(figure_title(name), lambda row: RunCell(stated[row.run.pk].get(name, "")), is_awaited=False)

    speeds = [name for name in names if figures_selectors.is_speed(name)]
    return [column(name) for name in speeds], [column(name) for name in names if name not in speeds]


def _step_time_cell(row: RunRow, unit: Unit) -> RunCell:
    doubts = row.doubts.get("step_time")
    if row.run.state == RunState.OOM:
        return RunCell("OOM", "out of memory", doubts or ())
    cell = _number_cell(row.step_time.median if row.step_time else None, unit, doubts)
    kind = row.run.kind_of("step_time_s")
    return cell._replace(note=f"{cell.note}, {KINDS[kind]}") if kind in KINDS and cell.text else cell


def _spread_cell(row: RunRow, unit: Unit) -> RunCell:
    spread = row.step_time
    if spread is None or not spread.p10 or not spread.p90:
        return RunCell()
    low, high = (in_column(value, unit) for value in (spread.p10, spread.p90))
    return RunCell(
        f"{low}{DASH}{high}", f"{exact_quantity(spread.p10, unit.base)} to {exact_quantity(spread.p90, unit.base)}"
    )


def _number_cell(value: float | None, unit: Unit, doubts: Sequence[Finding] | None = None) -> RunCell:
    text = in_column(value, unit)
    if text == DASH:
        return RunCell(doubts=doubts or ())
    return RunCell(text, exact_quantity(value, unit.base).strip(), doubts or ())
