"""A sweep as tables in the shape of a paper."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from parlab.charts.fields import field_heading, value_label
from parlab.charts.format import DASH, Unit, exact_quantity, field_value, for_column, in_column, unit_for
from parlab.charts.points import MAX_LISTED, in_order, shared_marks
from parlab.charts.repeats import APPROXIMATELY, percent, with_deviation
from parlab.findings.noise import Noise, is_within, noise
from parlab.lab.models import Finding, Run
from parlab.lab.selectors.analysis.repeats import repeat_groups
from parlab.lab.selectors.analysis.sweep import METRICS, VERSION_AXIS, Metric, SweepEntry, sweep_entries
from parlab.lab.selectors.findings import RUN, Doubts
from runners.config import Point
from runners.wire.protocol import RunState

COLUMN_AXIS = "train.micro_batch_size"
GROUP_AXIS = "parallel.schedule"
MAX_TABLES = 12
_SPARSE = 3
"""Tables with more cells per point than this are mostly empty: axes that vary together, such as GPUs and batch."""


class Cell(NamedTuple):
    """A point of a sweep: a number, or why there is none."""

    run: Run | None
    kind: str
    """"value", "missing" (measured without this number), "unlaunched", "invalid", or the state of the run."""
    text: str
    note: str
    """All digits, or the reason."""
    is_best: bool = False
    is_close: bool = False
    """The difference from the best value of the row is smaller than the noise of the repeats."""
    doubts: Sequence[Finding] = ()


class SweepTable(NamedTuple):
    """A table with one axis as rows and another as columns."""

    title: str
    row_axis: str
    column_axis: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]


class Sweep(NamedTuple):
    """All tables of an experiment in one metric and unit."""

    metric: str
    title: str
    unit: str
    tables: list[SweepTable]
    caption: str
    """Axes that do not vary, and how much repeats vary."""
    emulation: str = ""
    """"emulated", "partly emulated", or empty."""


class _Layout(NamedTuple):
    """Which axis is which, with the values of each in order."""

    row: str
    column: str
    groups: list[str]
    """Axes with one table per combination of values."""
    values: Mapping[str, list[Any]]


def sweep_tables(
    runs: Sequence[Run], points: Sequence[Point], metric_name: str, doubts: Mapping[int, Doubts] | None = None
) -> Sweep:
    """Arrange runs, and points without a run, as tables: one for two axes, one per value of every further axis.

    Micro batch size becomes the columns where it was swept; with three axes, the schedule names the tables. Runs with
    other axes than most are only in the table of runs.
    """
    entries = sweep_entries(runs, points)
    metric = METRICS[metric_name]
    values = {
        axis: in_order(entry.values[axis] for entry in entries) for axis in (entries[0].values if entries else [])
    }
    varied = [axis for axis in values if len(values[axis]) > 1]
    fixed = [value_label(axis, values[axis][0]) for axis in values if axis not in varied]
    repeat_noise = _noise(entries, metric)
    unit = _unit(entries, metric)
    scale = _Scale(metric, unit, repeat_noise)
    tables = _tables(entries, _layout(varied, values), scale) if len(varied) > 1 else []
    if doubts:
        tables = [_with_doubts(table, metric_name, doubts) for table in tables]
    caption = f"All with {', '.join(fixed)}." if fixed and tables else ""
    if repeat_noise is not None and tables:
        caption = f"{_noise_text(repeat_noise)} {caption}".strip()
    emulation = shared_marks([entry.run.marks for entry in entries if entry.run])
    return Sweep(metric_name, metric.title, unit.name, tables, caption, emulation)


def _layout(axes: Sequence[str], values: Mapping[str, list[Any]]) -> _Layout:
    """Choose the axes of the rows and columns; the others are groups."""
    rest = list(axes)
    column = COLUMN_AXIS if COLUMN_AXIS in rest else rest[-1]
    rest.remove(column)
    groups = [axis for axis in (VERSION_AXIS, GROUP_AXIS) if axis in rest][: len(rest) - 1]
    rest = [axis for axis in rest if axis not in groups]
    return _Layout(rest[-1], column, groups + rest[:-1], values)


class _Scale(NamedTuple):
    """How the cells of a table write a metric."""

    metric: Metric
    unit: Unit
    noise: Noise | None


def _unit(entries: Sequence[SweepEntry], metric: Metric) -> Unit:
    """Return the unit and the decimal places of the runs' values; those that were printed keep their digits."""
    shown = [entry.run for entry in entries if entry.run]
    unit = unit_for(map(metric.value, shown), metric.unit)
    return for_column(unit, ((metric.value(run), run.has_printed_numbers) for run in shown))


def _noise(entries: Sequence[SweepEntry], metric: Metric) -> Noise | None:
    """Return how much the repeats of the finished runs vary; None without repeats."""
    finished = [entry.run for entry in entries if entry.run and entry.run.state == RunState.FINISHED]
    return noise(_measured(group, metric) for group in repeat_groups(finished))


def _noise_text(noise: Noise) -> str:
    return (
        f"Points with repeats show mean ± standard deviation; {APPROXIMATELY} marks values that differ from the best of"
        f" the row by less than the noise of the repeats ({percent(noise.deviation)} per run)."
    )


def _measured(runs: Sequence[Run], metric: Metric) -> list[float]:
    values = (metric.value(run) for run in runs if run.state == RunState.FINISHED)
    return [value for value in values if value is not None]


def _tables(entries: Sequence[SweepEntry], layout: _Layout, scale: _Scale) -> list[SweepTable]:
    """Arrange one table per group that has entries; none where there would be too many, or mostly empty ones."""
    choices = [layout.values[axis] for axis in layout.groups]
    if math.prod(len(values) for values in choices) > MAX_TABLES:
        return []
    tables = []
    for combination in itertools.product(*choices):
        group = dict(zip(layout.groups, combination, strict=True))
        members = [entry for entry in entries if all(entry.values[axis] == value for axis, value in group.items())]
        if members:
            title = ", ".join(value_label(axis, value) for axis, value in group.items())
            tables.append(_sweep_table(title[:1].upper() + title[1:], members, layout, scale))
    cells = sum(len(row) for table in tables for _, row in table.rows)
    return tables if cells <= _SPARSE * len(entries) else []


def _sweep_table(title: str, members: Sequence[SweepEntry], layout: _Layout, scale: _Scale) -> SweepTable:
    by_place: dict[tuple[str, str], list[SweepEntry]] = {}
    for entry in members:
        by_place.setdefault((repr(entry.values[layout.row]), repr(entry.values[layout.column])), []).append(entry)
    column_values = layout.values[layout.column]
    rows = []
    for row_value in layout.values[layout.row]:
        row = [by_place.get((repr(row_value), repr(value)), []) for value in column_values]
        if any(row):
            rows.append((field_value(row_value), _cells(row, scale)))
    columns = [field_value(value) for value in column_values]
    return SweepTable(title, field_heading(layout.row), field_heading(layout.column), columns, rows)


def _cells(places: Sequence[Sequence[SweepEntry]], scale: _Scale) -> list[Cell]:
    """Write the cells of a row; the best of several measured values is marked, and those that may equal it."""
    runs = [_repeats(entries) for entries in places]
    cells = [_sweep_cell(entries, own, scale) for entries, own in zip(places, runs, strict=True)]
    values = [_measured(own, scale.metric) for own in runs]
    means = {index: fmean(own) for index, own in enumerate(values) if own}
    if len(means) < 2:
        return cells
    best = min(means, key=lambda index: (means[index] if scale.metric.least_is_best else -means[index], index))
    cells[best] = cells[best]._replace(is_best=True)
    for index, mean in means.items():
        if index != best and is_within(mean, means[best], scale.noise, len(values[index]), len(values[best])):
            note = f"{cells[index].note}; differs from the best by less than the noise of the repeats"
            cells[index] = cells[index]._replace(is_close=True, note=note)
    return cells


def _repeats(entries: Sequence[SweepEntry]) -> list[Run]:
    """Return the runs of a cell: the repeats of one point, else the newest run."""
    groups = repeat_groups(entry.run for entry in entries if entry.run)
    return groups[-1] if groups else []


def _sweep_cell(entries: Sequence[SweepEntry], runs: Sequence[Run], scale: _Scale) -> Cell:
    if not entries:
        return Cell(None, "unlaunched", DASH, "Not part of the sweep")
    if not runs:
        problem = entries[-1].problem
        if problem:
            return Cell(None, "invalid", "cannot run", problem)
        return Cell(None, "unlaunched", DASH, "Not launched")
    values = _measured(runs, scale.metric)
    if len(runs) == 1 or not values:
        return _run_cell(next((run for run in runs if run.state == RunState.OOM), runs[0]), scale)
    mean = fmean(values)
    text = with_deviation(in_column(mean, scale.unit), values, scale.unit.factor)
    unit = scale.metric.unit
    count = f"{len(values)} of {len(runs)}" if len(values) < len(runs) else str(len(values))
    numbers = ", ".join(f"#{run.number}" for run in runs[:MAX_LISTED])
    extent = f"{exact_quantity(min(values), unit)} to {exact_quantity(max(values), unit)}"
    return Cell(runs[0], "value", text, f"mean of {count} repeats ({numbers}), {exact_quantity(mean, unit)}; {extent}")


def _run_cell(run: Run, scale: _Scale) -> Cell:
    if run.state == RunState.OOM:
        return Cell(run, "oom", "OOM", run.reason)
    if run.state != RunState.FINISHED:
        return Cell(run, run.state, run.state, run.reason)
    value = scale.metric.value(run)
    if value is None:
        return Cell(run, "missing", DASH, "Not measured")
    return Cell(run, "value", in_column(value, scale.unit), exact_quantity(value, scale.metric.unit))


def _with_doubts(table: SweepTable, metric_name: str, doubts: Mapping[int, Doubts]) -> SweepTable:
    """Attach to each cell the findings about its number and about its run as a whole."""

    def doubted_cell(cell: Cell) -> Cell:
        of_run = doubts.get(cell.run.pk) if cell.run else None
        return cell._replace(doubts=[*of_run.get(metric_name, ()), *of_run.get(RUN, ())]) if of_run else cell

    return table._replace(rows=[(name, [doubted_cell(cell) for cell in cells]) for name, cells in table.rows])
