"""A sweep as tables in the shape of a paper, and its runs as plain data for the figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import DASH, exact_quantity, field_title, field_value, significant, unit_for
from parlab.charts.points import Roof, RunPoint, Timer, emulated_share, in_order
from parlab.lab.models import Finding, Run
from parlab.planner.hardware import find
from runners.config import Point, digest
from runners.protocol import RunState

from .findings import RUN, Doubts
from .runs import step_time
from .utilisation import compute, peak_words, share_pct

VERSION_AXIS = "configuration"
COLUMN_AXIS = "train.micro_batch_size"
GROUP_AXIS = "parallel.schedule"
MAX_TABLES = 12


class Metric(NamedTuple):
    """A number of a run that a sweep table may show."""

    title: str
    unit: str
    value: Callable[[Run], float | None]
    least_is_best: bool


def _step_time(run: Run) -> float | None:
    found = step_time(run.summary)
    return found.median if found else None


METRICS = {
    "step_time": Metric("Step time", "s", _step_time, True),
    "samples": Metric("Throughput", "samples/s", lambda run: run.samples_per_s, False),
    "tokens": Metric("Tokens", "tokens/s", lambda run: run.tokens_per_s, False),
    "memory": Metric("Peak memory", "B", lambda run: run.memory_max_bytes, True),
    "compute": Metric("Compute per device", "FLOP/s", lambda run: compute(run.summary), False),
    "mfu": Metric("MFU", "%", lambda run: share_pct(run.summary, "mfu"), False),
    "utilisation": Metric("GPU utilisation", "%", lambda run: share_pct(run.summary, "gpu_util"), False),
}
EVERYWHERE = ("step_time", "samples", "tokens", "memory")
"""Metrics that a page offers whether or not a run has them."""


def metrics_of(runs: Sequence[Run]) -> dict[str, Metric]:
    """List the metrics that a table of these runs may show."""
    return {
        name: metric
        for name, metric in METRICS.items()
        if name in EVERYWHERE or any(metric.value(run) is not None for run in runs)
    }


class Cell(NamedTuple):
    """One point of a sweep: a number, or the word that says why there is none."""

    run: Run | None
    kind: str
    """"value", "missing" (measured without this number), "unlaunched", "invalid", or the state of the run."""
    text: str
    note: str
    """All digits, or the reason."""
    is_best: bool = False
    doubts: Sequence[Finding] = ()


class SweepTable(NamedTuple):
    """One table: rows are one axis, columns another."""

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
    emulation: str = ""
    """Whether its runs only waited: emulated, partly emulated, or nothing."""


class _Entry(NamedTuple):
    values: dict[str, Any]
    run: Run | None
    problem: str


def sweep_tables(
    runs: Sequence[Run], points: Sequence[Point], metric: str, doubts: Mapping[int, Doubts] | None = None
) -> Sweep:
    """Shape runs and points without a run into tables: two axes make one, every further axis one for each value.

    Micro batch size goes across where it was swept, the schedule names the tables where there are three axes.
    Runs with other axes than most are left to the list of runs.
    """
    entries = _alike(_entries(runs, points))
    entries = [
        entry._replace(values=values)
        for entry, values in zip(entries, _tidied([entry.values for entry in entries]), strict=True)
    ]
    axes = {axis: in_order(entry.values[axis] for entry in entries) for axis in (entries[0].values if entries else [])}
    varied = {axis: values for axis, values in axes.items() if len(values) > 1}
    fixed = [f"{field_title(axis).lower()} {field_value(axes[axis][0])}" for axis in axes if axis not in varied]
    chosen = METRICS[metric]
    unit = unit_for((chosen.value(entry.run) for entry in entries if entry.run), chosen.unit)
    tables: list[SweepTable] = []
    if len(varied) >= 2:
        row_axis, column_axis, groups = _arrange(list(varied))
        if math.prod(len(varied[axis]) for axis in groups) <= MAX_TABLES:
            for combination in itertools.product(*(varied[axis] for axis in groups)):
                wanted = dict(zip(groups, combination, strict=True))
                members = [entry for entry in entries if all(entry.values[a] == v for a, v in wanted.items())]
                if members:
                    title = ", ".join(f"{field_title(axis)} {field_value(value)}" for axis, value in wanted.items())
                    tables.append(_table(title, members, row_axis, column_axis, varied, metric, unit.factor))
    if doubts:
        tables = [_doubted(table, metric, doubts) for table in tables]
    caption = f"All with {', '.join(fixed)}." if fixed and tables else ""
    emulation = emulated_share([entry.run.is_emulated for entry in entries if entry.run])
    return Sweep(metric, chosen.title, unit.name, tables, caption, emulation)


def _entries(runs: Sequence[Run], points: Sequence[Point]) -> list[_Entry]:
    several = len({run.config_id for run in runs}) > 1
    entries, known = [], set()
    for run in runs:
        values = dict(run.point)
        if several:
            values = {VERSION_AXIS: f"v{run.config.version}", **values}
        entries.append(_Entry(values, run, ""))
        known.add(run.point_digest)
    if not several:
        for point in points:
            if digest(point.values) not in known:
                entries.append(_Entry(point.values, None, "; ".join(problem.message for problem in point.problems)))
    return entries


NETWORK_AXIS = "network"
_NETWORK_WORDS = {"delay_ms": "{} ms", "bandwidth_gbps": "{} Gbit/s", "jitter_ms": "± {} ms", "loss_pct": "{} % lost"}


def _tidied(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make one axis of the fields of a network, and leave out times of emulated passes that follow from other axes."""
    named = [_network_in_words(point) for point in points]
    kept = [{axis: value for axis, value in one.items() if not axis.startswith("emulation.")} for one in named]
    return kept if len({repr(sorted(one.items())) for one in kept}) == len(kept) else named


def _network_in_words(point: Mapping[str, Any]) -> dict[str, Any]:
    fields = [axis for axis in point if axis.startswith(f"{NETWORK_AXIS}.")]
    rest = {axis: value for axis, value in point.items() if axis not in fields}
    if len(fields) < 2:
        return dict(point)
    words = [
        _NETWORK_WORDS.get(axis.rpartition(".")[2], "{}").format(field_value(point[axis]))
        for axis in fields
        if point[axis] is not None
    ]
    return {**rest, NETWORK_AXIS: ", ".join(words)}


def _alike(entries: Sequence[_Entry]) -> list[_Entry]:
    """Keep the entries with the most common set of axes."""
    kinds = [frozenset(entry.values) for entry in entries]
    most = max(kinds, key=kinds.count, default=frozenset())
    return [entry for entry, kind in zip(entries, kinds, strict=True) if kind == most]


def _arrange(axes: list[str]) -> tuple[str, str, list[str]]:
    """Choose the axis of the rows, that of the columns, and those that tell the tables apart."""
    left = list(axes)
    column = COLUMN_AXIS if COLUMN_AXIS in left else left[-1]
    left.remove(column)
    preferred = [axis for axis in (VERSION_AXIS, GROUP_AXIS) if axis in left]
    groups = preferred[: len(left) - 1]
    left = [axis for axis in left if axis not in groups]
    return left[-1], column, groups + left[:-1]


def _table(
    title: str,
    members: Sequence[_Entry],
    row_axis: str,
    column_axis: str,
    varied: Mapping[str, list[Any]],
    metric: str,
    factor: float,
) -> SweepTable:
    by_place = {(repr(entry.values[row_axis]), repr(entry.values[column_axis])): entry for entry in members}
    rows = []
    for row_value in varied[row_axis]:
        found = [by_place.get((repr(row_value), repr(value))) for value in varied[column_axis]]
        if any(found):
            rows.append((field_value(row_value), _cells(found, METRICS[metric], factor)))
    columns = [field_value(value) for value in varied[column_axis]]
    return SweepTable(title, field_title(row_axis), field_title(column_axis), columns, rows)


def _cells(entries: Sequence[_Entry | None], metric: Metric, factor: float) -> list[Cell]:
    """Shape one row; its best finished value is marked, once, where there is something to choose from."""
    cells = [_cell(entry, metric, factor) for entry in entries]
    measured = [
        (value if metric.least_is_best else -value, index)
        for index, (cell, entry) in enumerate(zip(cells, entries, strict=True))
        if cell.kind == "value" and entry and entry.run and (value := metric.value(entry.run)) is not None
    ]
    if len(measured) > 1:
        best = min(measured)[1]
        cells[best] = cells[best]._replace(is_best=True)
    return cells


def _cell(entry: _Entry | None, metric: Metric, factor: float) -> Cell:
    if entry is None:
        return Cell(None, "unlaunched", DASH, "Not part of the sweep")
    run = entry.run
    if run is None:
        return (
            Cell(None, "invalid", "cannot run", entry.problem)
            if entry.problem
            else Cell(None, "unlaunched", DASH, "Not launched")
        )
    if run.state == RunState.OOM:
        return Cell(run, "oom", "OOM", run.reason)
    if run.state != RunState.FINISHED:
        return Cell(run, run.state, run.state, run.reason)
    value = metric.value(run)
    if value is None:
        return Cell(run, "missing", DASH, "Not measured")
    return Cell(run, "value", significant(value / factor), exact_quantity(value, metric.unit))


def _doubted(table: SweepTable, metric: str, doubts: Mapping[int, Doubts]) -> SweepTable:
    """Put beside each number what findings say of it, and of its run as a whole."""

    def mark(cell: Cell) -> Cell:
        found = doubts.get(cell.run.pk) if cell.run else None
        return cell._replace(doubts=[*found.get(metric, ()), *found.get(RUN, ())]) if found else cell

    return table._replace(rows=[(name, [mark(cell) for cell in cells]) for name, cells in table.rows])


def run_points(runs: Sequence[Run]) -> list[RunPoint]:
    """Turn finished and out-of-memory runs into what the figures draw; others have no final numbers."""
    ended = [run for run in runs if run.state in (RunState.FINISHED, RunState.OOM)]
    several = len({run.config_id for run in ended}) > 1
    points = _tidied([({VERSION_AXIS: f"v{run.config.version}"} if several else {}) | dict(run.point) for run in ended])
    values = {run.pk: point for run, point in zip(ended, points, strict=True)}
    axes = dict.fromkeys(axis for found in values.values() for axis in found)
    varied = [axis for axis in axes if len({repr(found.get(axis)) for found in values.values()}) > 1]
    return [run_point(run, {axis: values[run.pk][axis] for axis in varied if axis in values[run.pk]}) for run in ended]


def run_point(run: Run, values: dict[str, Any]) -> RunPoint:
    summary = run.summary
    memory = summary.get("memory_peak_bytes") or {}
    return RunPoint(
        number=run.number,
        state=run.state,
        values=values,
        gpus=int(run.gpus or 1),
        step_time_s=step_time(summary),
        samples_per_s=run.samples_per_s,
        tokens_per_s=run.tokens_per_s,
        memory_by_rank={int(rank): value for rank, value in (memory.get("by_rank") or {}).items()},
        memory_min=memory.get("min"),
        memory_max=memory.get("max", run.memory_max_bytes),
        timers=_timers(summary.get("timers_s") or {}),
        global_batch_size=run.resolved.get("train", {}).get("global_batch_size"),
        mfu_pct=share_pct(summary, "mfu"),
        hfu_pct=share_pct(summary, "hfu"),
        gpu_util_pct=share_pct(summary, "gpu_util"),
        loss=(summary.get("loss") or {}).get("last"),
        flops_per_gpu=compute(summary),
        peak=peak_words(summary),
        roof=_roof(run),
        is_published=run.origin != Run.Origin.MEASURED,
        is_emulated=run.is_emulated,
    )


def _roof(run: Run) -> Roof | None:
    """Read what limits a run's FLOP/s: the peak of its device, and how fast that reads the weights."""
    peak = run.summary.get("peak") or {}
    flops, train, model = peak.get("flops"), run.resolved.get("train", {}), run.resolved.get("model", {})
    batch, length = train.get("micro_batch_size"), model.get("sequence_length")
    if not flops or not batch or not length:
        return None
    gpu = find(str(peak.get("device") or ""))
    weight_bytes = 4 if train.get("precision") == "fp32" else 2
    return Roof(float(flops), gpu.memory_bandwidth if gpu else None, 2 * int(batch) * int(length) / weight_bytes)


def _timers(timers: Mapping[str, Any]) -> dict[str, Timer]:
    """Take the phases of a step as the mean over all ranks: one that never was in a phase spent 0 s there."""
    ranks = {rank for timer in timers.values() for rank in timer.get("by_rank") or {}}
    found = {}
    for name, timer in timers.items():
        by_rank = timer.get("by_rank") or {}
        mean = sum(by_rank.values()) / len(ranks) if by_rank else timer.get("median")
        if mean is not None:
            found[name] = Timer(mean, timer.get("min", mean), timer.get("max", mean))
    return found
