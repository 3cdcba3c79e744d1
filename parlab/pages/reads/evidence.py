"""The measurements behind the answer of an experiment: trials, operations, runs side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from django.db.models import F

from parlab.charts.axes import SIZE_AXES
from parlab.charts.fields import value_label
from parlab.charts.format import Unit, unit_for
from parlab.charts.points import RunPoint, devices
from parlab.charts.sweeps import capacity
from parlab.charts.sweeps.capacity import Search
from parlab.charts.sweeps.phases import PHASES
from parlab.lab.models import Attempt, Experiment, Run, Source
from parlab.publishing.figures import compared_curves as curves
from parlab.publishing.figures import engine_measurements
from parlab.publishing.figures.bandwidths import FORMATS
from parlab.publishing.figures.engine_measurements import OperationTable
from parlab.series import store
from runners.config.engines import UNKNOWN, engine_of

CAPACITY, BANDWIDTH, THROUGHPUT = "capacity", "bandwidth", "throughput"
LAYOUT = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
MAX_TIMERS = 14
"""Maximum number of phase columns; the longest phases are shown."""
_SPEEDS = {"tokens_per_s": "tokens/s", "samples_per_s": "samples/s", "tflops_per_gpu": "TFLOP/s per GPU", "fps": "fps"}
"""Speeds that the table may show, in order of preference: name -> unit; the last ones for files with no other."""


class TrialSearch(NamedTuple):
    """A capacity search with its run."""

    run: Run
    search: Search
    sentence: str


class Size(NamedTuple):
    """A run of a throughput question, as a row."""

    run: Run
    point: RunPoint
    layout: str
    """TP, PP and DP."""
    setting: str
    """The values of the other swept fields, as text."""
    speed: float | None
    """In the unit of the table."""
    ms_per_sample: float | None
    utilisation: str
    timers: list[float | None]


class Sizes(NamedTuple):
    """Runs side by side: time per sample, memory range, utilisation, phases."""

    rows: list[Size]
    timers: list[str]
    speed: str
    """Unit of the speeds."""
    memory: Unit
    time: Unit

    @property
    def has_settings(self) -> bool:
        return any(row.setting for row in self.rows)

    @property
    def devices(self) -> str:
        """What the runs are counted in: GPUs, or processes."""
        return devices([row.point for row in self.rows])

    @property
    def has_sample_times(self) -> bool:
        return any(row.ms_per_sample is not None for row in self.rows)

    @property
    def has_memory(self) -> bool:
        return any(row.point.memory_max for row in self.rows)

    @property
    def has_utilisation(self) -> bool:
        return any(row.utilisation for row in self.rows)


class Evidence(NamedTuple):
    """The measurements of an experiment that its engine makes beside steps."""

    searches: list[TrialSearch]
    operations: list[OperationTable]


def evidence_of(experiment: Experiment, runs: Sequence[Run]) -> Evidence:
    """Return the measurements of the runs and files of an experiment."""
    kind = _kind(experiment, runs)
    if kind == CAPACITY:
        attempts = _current_attempts(runs)
        candidates = [
            (run, engine_measurements.run_search(run, attempts[run.pk])) for run in runs if run.pk in attempts
        ]
        return Evidence([TrialSearch(run, search, capacity.answer(search)) for run, search in candidates if search], [])
    if kind == BANDWIDTH:
        messages = engine_measurements.experiment_messages([experiment], runs)
        return Evidence([], engine_measurements.operation_tables(messages))
    return Evidence([], [])


def side_by_side(experiment: Experiment, runs: Sequence[Run], points: Sequence[RunPoint]) -> Sizes | None:
    """Return the runs of an experiment side by side; None where they measure no steps."""
    if _kind(experiment, runs) != THROUGHPUT:
        return None
    return _sizes(runs, {point.number: point for point in points}, utilisations(runs))


def _kind(experiment: Experiment, runs: Sequence[Run]) -> str:
    engines = {engine_of(run.resolved) for run in runs}
    if engines and all(engine.searches_capacity for engine in engines):
        return CAPACITY
    has_files = engines == {UNKNOWN} and Source.objects.filter(experiment=experiment, format__in=FORMATS).exists()
    is_measured = bool(engines) and all(engine.measures_bandwidth for engine in engines)
    return BANDWIDTH if is_measured or has_files else THROUGHPUT


def _current_attempts(runs: Sequence[Run]) -> dict[int, Attempt]:
    attempts = Attempt.objects.filter(run__in=[run.pk for run in runs], number=F("run__attempt_number"))
    return {attempt.run_id: attempt for attempt in attempts.with_members()}


def _sizes(runs: Sequence[Run], points: Mapping[int, RunPoint], busy: Mapping[int, str]) -> Sizes:
    longest: dict[str, float] = {}
    for point in points.values():
        for name, timer in point.timers.items():
            longest[name] = max(longest.get(name, 0.0), timer.median)
    displayed = set(sorted(longest, key=lambda name: -longest[name])[:MAX_TIMERS])
    timers = [name for name in [*PHASES, *sorted(longest.keys() - PHASES.keys())] if name in displayed]
    speed = next((name for name in _SPEEDS if any(_speed(run, name) for run in runs)), "tokens_per_s")
    rows = [
        _size(run, points[run.number], timers, busy[run.pk], _speed(run, speed)) for run in runs if run.number in points
    ]
    rows.sort(key=lambda row: (row.point.gpus or math.inf, row.run.number))
    return Sizes(
        rows,
        timers,
        _SPEEDS[speed],
        unit_for((row.point.memory_max for row in rows), "B"),
        unit_for((value for row in rows for value in row.timers), "s"),
    )


def _speed(run: Run, name: str) -> float | None:
    """Return a speed of a run: a column of its row, or what a file states."""
    value = getattr(run, name) if name in ("tokens_per_s", "samples_per_s") else run.summary.get(name)
    return float(value) if isinstance(value, int | float) else None


def _size(run: Run, point: RunPoint, timers: Sequence[str], busy: str, speed: float | None) -> Size:
    parallel = run.resolved.get("parallel", {})
    rest = {axis: value for axis, value in point.values.items() if axis not in SIZE_AXES}
    return Size(
        run,
        point,
        " \N{MULTIPLICATION SIGN} ".join(str(parallel.get(size, 1)) for size in LAYOUT),
        ", ".join(value_label(axis, value) for axis, value in rest.items()),
        speed,
        run.summary.get("ms_per_sample"),
        busy,
        [point.timers[name].median if name in point.timers else None for name in timers],
    )


def utilisations(runs: Sequence[Run]) -> dict[int, str]:
    """Return the utilisation of each run in per cent, by run id: of its GPUs, or of the CPU cores it may use."""
    shares = {run.pk: _gpu_share(run.summary) for run in runs}
    missing = [run for run in runs if shares[run.pk] is None]
    series = store.read_many(list(curves.current_attempts(missing)), ["cpu_pct"], rank=-1)
    attempts = _current_attempts(missing) if series else {}
    busy = {attempt: columns for (attempt, _, _), columns in series.items()}
    for run in missing:
        attempt = attempts.get(run.pk)
        if attempt is None or (columns := busy.get(attempt.pk)) is None:
            continue
        # The first and the last sample partly cover time outside the training.
        values = columns.values[1:-1] if len(columns) > 4 else columns.values
        shares[run.pk] = float(np.median(values)) / _cores(run, attempt)
    return {pk: "" if value is None else f"{value:.0f}" for pk, value in shares.items()}


def _gpu_share(summary: Mapping[str, Any]) -> float | None:
    reported = summary.get("gpu_util_pct")
    value = reported.get("median", reported.get("mean")) if isinstance(reported, Mapping) else reported
    return float(value) if isinstance(value, int | float) else None


def _cores(run: Run, attempt: Attempt) -> int:
    """Return the number of cores that the ranks can use, at most those of the node."""
    per_rank = int(run.resolved.get("launcher", {}).get("threads_per_rank") or 1)
    threads = per_rank * int(run.resolved.get("cluster", {}).get("gpus_per_node") or 1)
    available = int((attempt.node.hardware if attempt.node else {}).get("cpu_cores") or threads)
    return max(1, min(threads, available))
