"""Records of a reader -> points of series, one recording per launch, spooled to a file until they are stored.

An import may have more points than fit into memory, and the database must not be locked while a file is read.
Therefore the points are spooled to disk, and storing them is one short transaction.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parlab.formats.builder import Builder, measured
from parlab.formats.documents.documents import Collector
from parlab.formats.grammar.quantities import quantity_of_metric
from parlab.formats.grammar.records import Record, Unread
from parlab.formats.grammar.units import LATEST, unix_time
from parlab.ingest.batches.events import MAX_STEP
from parlab.series.columns import Columns
from parlab.series.replacing import Rows, Spool
from parlab.series.store import CHUNK_POINTS, Key

BLOCK_ROWS = 4 * CHUNK_POINTS
"""Rows of one rank held in memory."""
MAX_ROWS = 16 * CHUNK_POINTS
"""Rows of all ranks and kinds of a launch held in memory."""
MAX_RANK = 2**31 - 1
_MAX_NAME = 80
MAX_METRICS = 200
_MAX_COLUMNS = 10 * MAX_METRICS
_NAN = float("nan")
_LARGEST = 1e300

# Normal names of the readers -> names of the same metrics in parlab's own engines.
_MEMORY = {
    "allocated_bytes": "memory_bytes",
    "max_allocated_bytes": "memory_peak_bytes",
    "max_memory_allocated_bytes": "memory_peak_bytes",
}
_STEP = {
    "lm_loss": "loss",
    "train_loss": "loss",
    "reduced_train_loss": "loss",
    "global_batch_size": "samples",
    **_MEMORY,
}
_SAME = {"step": _STEP, "metrics": _STEP, "memory": _MEMORY}
FASTEST = "timer_min/"
"""Prefix of the fastest rank in logs that print a range over ranks; the slowest rank is the timer itself."""
_PREFIX = {"timers": "timer/", "low": FASTEST, "validation": "validation/"}


def metric_name(kind: str, name: str) -> str:
    """Return the name of the series for a reader's value, as parlab's own engines name it."""
    return _SAME.get(kind, {}).get(name) or _PREFIX.get(kind, "") + name


class NotFinite(NamedTuple):
    """The values of a loss that a launch printed as NaN or infinite; series and statistics have finite values only."""

    steps: int
    """Number of steps with such a loss."""
    first_step: int | None
    """None if the launch counts no steps."""
    line: int
    """The line of the first, from 1."""
    last_step: int | None


class _Rows:
    """The rows of one kind and rank in memory; a column may be shorter than the rows."""

    def __init__(self, kind: str, rank: int) -> None:
        self.kind = kind
        self.rank = rank
        self.steps: list[int] = []
        self.times: list[float] = []
        # By the reader's names; times of the fastest ranks are separate, because they have the same names.
        self.columns: dict[str, list[float]] = {}
        self.lows: dict[str, list[float]] = {}


class Recording:
    """The points of one launch."""

    def __init__(self, file: IO[bytes], refused: Counter[str]) -> None:
        self.series = Spool(file)
        self._refused = refused
        self._rows: dict[tuple[str, int], _Rows] = {}
        self._names: dict[tuple[str, str], str | None] = {}
        self._step_names: set[str] = set()
        self._step_metrics: set[str] = set()
        """Names of the series of steps so far."""
        self._waiting = 0
        self._step = 0
        self._time = 0.0
        self._has_stamps = False
        self.last_step: int | None = None
        self.first_time: float | None = None
        self.last_time: float | None = None
        self.not_finite: NotFinite | None = None

    def note_not_finite(self, step: int | None, line: int) -> None:
        """Count a step whose loss is no finite number; ranks that repeat the step do not count again."""
        known = self.not_finite
        if known is None:
            self.not_finite = NotFinite(1, step, line, step)
        elif step is None or step != known.last_step:
            self.not_finite = known._replace(steps=known.steps + 1, last_step=step)

    def add(self, record: Record) -> None:
        kind = record.kind
        self._clock(record)
        values = self._beside_steps(record.values) if kind == "metrics" else record.values
        if not values:
            return
        if kind == "step" and not self._step_names.issuperset(values):
            self._step_names.update(values)
            self._step_metrics = {metric_name("step", name) for name in self._step_names}
        rank = record.rank if record.rank is not None and 0 <= record.rank <= MAX_RANK else 0
        rows = self._rows.get((kind, rank))
        if rows is None:
            rows = self._rows[kind, rank] = _Rows(kind, rank)
        row = self._row_index(rows, values)
        _put(rows.columns, row, values, kind == "timers")
        if record.low:
            _put(rows.lows, row, record.low, True)
        if len(rows.steps) >= BLOCK_ROWS:
            self._write(rows)
        elif self._waiting >= MAX_ROWS:
            self.flush()

    def _beside_steps(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """Return the figures of a launch that its steps do not have as well: they would be one more step."""
        return {name: value for name, value in values.items() if metric_name("metrics", name) not in self._step_metrics}

    def _clock(self, record: Record) -> None:
        """Update the current step and time; a record without a step belongs to the latest step."""
        step = record.iteration
        if step is not None:
            self._step = min(max(step, 0), MAX_STEP)
        elif record.kind == "step":
            self._step = min(self._step + 1, MAX_STEP)
        if record.kind == "step" and (self.last_step is None or self._step > self.last_step):
            self.last_step = self._step
        stamp = unix_time(record.time) if record.time else None
        if stamp is not None:
            if self.first_time is None:
                self.first_time = stamp
            self._time = self.last_time = stamp
            self._has_stamps = True
        elif not self._has_stamps:
            # In a log without time stamps, time is the sum of the step times, from 0.
            self._time = min(self._time + abs(record.values.get("step_time_s", 0.0)), LATEST)

    def _row_index(self, rows: _Rows, values: Mapping[str, float]) -> int:
        """Return the row of these values: a new row, or the last one if a step continues over several lines."""
        row = len(rows.steps)
        if row and rows.steps[-1] == self._step:
            columns = rows.columns
            if all(len(columns.get(name, ())) < row for name in values):
                return row - 1
        rows.steps.append(self._step)
        rows.times.append(self._time)
        self._waiting += 1
        return row

    def _name(self, kind: str, name: str) -> str | None:
        """Return the name of a series; None for values that are not stored as one."""
        key = (kind, name)
        if key not in self._names:
            metric: str | None = metric_name(kind, name)
            if metric in self._names.values() and kind == "step":
                metric = name  # a log with two losses: the second keeps its own name
            if name == "total_iterations":
                metric = None
            elif metric is None or len(metric) > _MAX_NAME or "\x00" in metric:
                self._refused[f"a metric name of more than {_MAX_NAME} characters"] += 1
                metric = None
            elif metric not in self._names.values() and len(set(self._names.values())) > MAX_METRICS:
                self._refused[f"more than {MAX_METRICS} metrics of one launch"] += 1
                metric = None
            if len(self._names) >= 10 * MAX_METRICS:
                return metric
            self._names[key] = metric
        return self._names[key]

    def flush(self) -> None:
        for rows in self._rows.values():
            self._write(rows)

    def _write(self, rows: _Rows) -> None:
        count = len(rows.steps)
        if not count:
            return
        by_metric: dict[str, list[float]] = {}
        for kind, columns in ((rows.kind, rows.columns), ("low", rows.lows)):
            for name, column in columns.items():
                metric = self._name(kind, name)
                if metric is not None and column:
                    by_metric.setdefault(metric, column)
        steps, times = np.array(rows.steps, np.int64), np.array(rows.times, np.float64)
        series: dict[Key, Columns] = {}
        for metric, column in by_metric.items():
            values = np.full(count, np.nan)
            values[: len(column)] = column
            # A line may contain any number; sums of extreme numbers would overflow.
            values[np.abs(values) > _LARGEST] = np.nan
            series[metric, rows.rank] = _present(steps, times, values)
        self.series.add(series)
        self._waiting -= count
        rows.steps, rows.times, rows.columns, rows.lows = [], [], {}, {}

    def metrics(self) -> set[str]:
        return {metric for metric, _ in self.series.keys}

    def read(self, metric: str) -> dict[int, Columns]:
        """Read one metric by rank, without loading the others into memory."""
        return {rank: self.series.read((name, rank)) for name, rank in self.series.keys if name == metric}


def packed_series(recordings: Sequence[Recording], keys: Iterable[Key], file: IO[bytes]) -> Rows:
    """Pack series of launches, one launch after the other; the packed points wait in the file."""
    rows = Rows(file)
    for key in sorted(keys):
        rows.add(key, Columns.joined(recording.series.read(key) for recording in recordings))
    return rows


def _present(steps: NDArray[np.int64], times: NDArray[np.float64], values: NDArray[np.float64]) -> Columns:
    present = ~np.isnan(values)
    # Complete columns share their steps and times, which the file then has once.
    columns = Columns(steps, times, values)
    return columns if present.all() else columns.take(present)


def _put(columns: dict[str, list[float]], row: int, values: Mapping[str, float], is_time: bool) -> None:
    """Write values into a row, except placeholders."""
    for name, value in values.items():
        if value <= 0.0 and (is_time or not measured({name: value})):
            continue
        column = columns.get(name)
        if column is None:
            if len(columns) >= _MAX_COLUMNS:
                continue
            column = columns[name] = []
        if len(column) < row:
            column.extend([_NAN] * (row - len(column)))
        if len(column) == row:
            column.append(value)


class _Step(NamedTuple):
    """The step that was read last."""

    line: int
    iteration: int | None


_NO_NUMBER = re.compile(r"(?i)(?P<key>[^:=]{1,80}?)\s*[:=]\s*'?[+-]?(?:nan|inf(?:inity)?)\b")


def is_loss_not_finite(problem: Unread) -> bool:
    """Return whether a text that is no number is the loss of a training: NaN or infinite."""
    match = _NO_NUMBER.match(problem.text)
    if match is None:
        return False
    quantity = quantity_of_metric(match["key"].strip())
    return quantity is not None and quantity.name == "loss"


class Recorder:
    """Feeds a Collector, and records the numbers of each launch that the collector accepts."""

    def __init__(self, collector: Collector, file: IO[bytes]) -> None:
        self._collector = collector
        self._file = file
        self._builder: Builder | None = None
        self._current: Recording | None = None
        self.refused: Counter[str] = Counter()
        """Reason -> number of values that remain in the raw text only."""
        self.recordings: dict[int, Recording] = {}
        """Index of the segment -> its points."""
        self._step = _Step(0, None)

    def add(self, record: Record) -> None:
        segments = self._collector.segments
        done = len(segments.done)
        self._collector.add(record)
        if segments.current is not self._builder:
            self._keep(len(segments.done) > done, done)
            self._builder = segments.current
        if record.values and record.kind in ("step", "timers", "memory", "validation", "metrics") and self._builder:
            if self._current is None:
                self._current = Recording(self._file, self.refused)
            self._current.add(record)
        if record.kind == "step":
            self._step = _Step(record.line, record.iteration)
        elif record.kind == "unread" and self._current is not None and is_loss_not_finite(record.data):
            # Readers yield what a line does not state as a number after its step.
            step = self._step.iteration if self._step.line == record.line else None
            self._current.note_not_finite(step, record.line)

    def _keep(self, is_accepted: bool, index: int) -> None:
        """Close the recording of a launch; it is kept if the collector accepted the launch."""
        if self._current is not None and is_accepted:
            self._current.flush()
            self.recordings[index] = self._current
        self._current = None

    def finish(self) -> None:
        """Close the current launch; call it before `document` of the collector."""
        segments = self._collector.segments
        done = len(segments.done)
        segments.close()
        self._keep(len(segments.done) > done, done)
        self._builder = None
