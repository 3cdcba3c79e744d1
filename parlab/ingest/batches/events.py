"""Raw output -> columns. Pure; no output of a training run raises an exception here.

A line is an event if it starts with EVENT_PREFIX, is shorter than EVENT_LINE_LIMIT and ends with a newline. Invalid
lines and values are counted by reason; they remain in the log, which keeps all output.
"""

import json
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from parlab.ingest.summaries import checkpoints, links
from parlab.series.columns import Columns
from parlab.series.operations import Printed, read_operation
from runners.wire.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX

MAX_METRICS = 20_000
"""Distinct metrics of one attempt; further metrics remain in the log only."""
MAX_REPORTED_METRICS = 100_000
"""Distinct metrics of an attempt that a script reports."""
MAX_NODES = 100_000
"""Nodes of a reported run, whose number no configuration states."""
MAX_FACTS = 100
MAX_STEP = 2**31 - 1
LATEST_TIME = 1e11
"""Unix seconds; later times (after the year 5000) are invalid."""

NOTEWORTHY = frozenset({"start", "oom", "error", "end"})
_TIMERS = "timer/"
_ABSENT = None
_STEP_FIELDS = ("parlab", "t", "rank", "event", "step", "metrics")
"""Fields of a step event with metrics only, in the order in which clients write them."""
_NUMBERS = frozenset({float, int})
_NAN = float("nan")
_INFINITE: dict[Any, float] = {"inf": float("inf"), "-inf": float("-inf")}
"""JSON has no infinities: as texts they are values of `metrics`."""


class Limits(NamedTuple):
    """What an attempt's events may contain; events beyond stay in the log as text."""

    ranks: int
    metrics: int = MAX_METRICS
    name: re.Pattern[str] = re.compile(r"[A-Za-z_][A-Za-z0-9_.:+/-]{0,79}")
    first_step: int = 0
    nodes: int = 1
    """What belongs to a node has the rank -1 - node rank."""


def reported_limits(ranks: int = 2**31 - 1) -> Limits:
    """Return the limits for a run that a script reports: other tools allow more names, and steps below zero."""
    return Limits(ranks, MAX_REPORTED_METRICS, re.compile(r"[^\x00-\x1f]{1,250}"), -MAX_STEP, nodes=MAX_NODES)


class Fact(NamedTuple):
    """An event that is not a measurement: start, oom, error or end."""

    event: str
    rank: int
    time: float
    fields: dict[str, Any]


@dataclass
class Parsed:
    """The content of a piece of output."""

    series: dict[tuple[str, int], Columns] = field(default_factory=dict)
    last_step: int | None = None
    """Highest step so far, including earlier pieces."""
    steps: int = 0
    """Number of step events."""
    facts: list[Fact] = field(default_factory=list)
    operations: dict[tuple[int, int], Printed] = field(default_factory=dict)
    """(step, rank) -> operations of the rank in the step, as printed."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason -> number of lines or values that remain in the log as text."""

    @property
    def points(self) -> int:
        return sum(len(columns) for columns in self.series.values())


def parse(
    output: bytes,
    *,
    limits: Limits,
    existing_metrics: Collection[str] = (),
    last_step: int | None = None,
    clock_offset_s: float = 0.0,
) -> Parsed:
    """Parse the complete lines of a piece of output; text after the last newline is ignored.

    `clock_offset_s` is how far the clock of the node is ahead of the server's; it is taken out of the times.

    `existing_metrics` are the metrics of earlier pieces of the same attempt, `last_step` their highest step. With
    them, the points do not depend on how the output is split into pieces at line ends.
    """
    parser = _Parser(limits, set(existing_metrics), last_step, clock_offset_s)
    lines = output.split(b"\n")
    del lines[-1]
    for line in lines:
        if line.startswith(EVENT_PREFIX):
            parser.feed(line)
    return parser.result()


class _Rows:
    """The points of one rank: one row per event, a list of values per metric."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.steps: list[int] = []
        self.times: list[float] = []
        self.values: dict[str, list[float | None]] = {}


class _Table:
    """The step events of one rank that have the same metrics, all of them numbers: one row per event."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.steps: list[int] = []
        self.times: list[float] = []
        self.values: list[tuple[float, ...]] = []


class _Part(NamedTuple):
    """Points of one series, with the numbers of their events."""

    numbers: NDArray[np.int64]
    columns: Columns


class _Parser:
    def __init__(self, limits: Limits, metrics: set[str], last_step: int | None, clock_offset_s: float) -> None:
        self._limits = limits
        self._metrics = metrics
        self._last_step = last_step
        self._clock_offset_s = clock_offset_s
        self._steps = 0
        self._number = 0
        self._ranks: dict[int, _Rows] = {}
        self._tables: dict[tuple[int, tuple[str, ...]], _Table] = {}
        self._facts: list[Fact] = []
        self._operations: dict[tuple[int, int], Printed] = {}
        self._refused: Counter[str] = Counter()

    def feed(self, line: bytes) -> None:
        event = _loads(line) if len(line) < EVENT_LINE_LIMIT else None
        if type(event) is not dict:
            self._refused["not a JSON object on one short line"] += 1
            return
        self._number += 1
        if len(event) == len(_STEP_FIELDS) and tuple(event) == _STEP_FIELDS and self._tabulate(*event.values()):
            return
        name, rank, time = event.pop("event", None), event.pop("rank", None), event.pop("t", None)
        if type(rank) is not int or not -self._limits.nodes <= rank < self._limits.ranks:
            self._refused["rank out of range"] += 1
        elif (type(time) is not float and type(time) is not int) or not 0 <= time < LATEST_TIME:
            self._refused["invalid time"] += 1
        elif name == "step" or name == "telemetry":
            self._measure(name, rank, time, event)
        elif name == "link":
            self._link(time, event)
        elif name == "operations":
            self._operate(rank, event)
        elif name == "checkpoint":
            self._checkpoint(rank, time, event)
        elif type(name) is str and name in NOTEWORTHY and len(self._facts) < MAX_FACTS:
            self._facts.append(Fact(name, rank, time - self._clock_offset_s, event))

    def _tabulate(self, _mark: Any, time: Any, rank: Any, name: Any, step: Any, metrics: Any) -> bool:
        """Add a step event that has nothing but valid metrics, which is what scripts log; return whether it was one."""
        if name != "step" or type(metrics) is not dict or type(step) is not int or type(rank) is not int:
            return False
        values = tuple(metrics.values())
        if type(time) is not float or not _NUMBERS.issuperset(map(type, values)):
            return False
        place = (rank, tuple(metrics))
        table = self._tables.get(place)
        if table is None:
            # What is refused is counted elsewhere.
            if not -self._limits.nodes <= rank < self._limits.ranks or not self._accepts_all(metrics):
                return False
            table = self._tables[place] = _Table()
        if not self._limits.first_step <= step <= MAX_STEP or not 0 <= time < LATEST_TIME:
            return False
        table.numbers.append(self._number)
        table.steps.append(step)
        table.times.append(time - self._clock_offset_s)
        table.values.append(values)
        self._steps += 1
        if self._last_step is None or step > self._last_step:
            self._last_step = step
        return True

    def _measure(self, name: str, rank: int, time: float, event: dict[str, Any]) -> None:
        step = event.pop("step", None)
        if name == "telemetry":
            # Telemetry is sampled outside the training process; it is assigned to the latest step.
            step = self._last_step or 0
        elif type(step) is not int or not self._limits.first_step <= step <= MAX_STEP:
            self._refused["invalid step"] += 1
            return
        else:
            self._steps += 1
            if self._last_step is None or step > self._last_step:
                self._last_step = step
        rows, row = self._rank_row(rank, step, time)
        timers, metrics = event.pop("timers_s", None), event.pop("metrics", None)
        del event["parlab"]
        self._add(rows, row, event, "")
        if type(metrics) is dict:
            self._add(rows, row, {name: _INFINITE.get(value, value) for name, value in metrics.items()}, "")
        if type(timers) is dict:
            self._add(rows, row, timers, _TIMERS)

    def _rank_row(self, rank: int, step: int, time: float) -> tuple[_Rows, int]:
        rows = self._ranks.get(rank)
        if rows is None:
            rows = self._ranks[rank] = _Rows()
        rows.numbers.append(self._number)
        rows.steps.append(step)
        rows.times.append(time - self._clock_offset_s)
        return rows, len(rows.steps) - 1

    def _link(self, time: float, event: dict[str, Any]) -> None:
        """Add the measurements of a link before the training as series of its source rank, at step 0."""
        source, target = event.get("source"), event.get("target")
        if not all(type(end) is int and 0 <= end < self._limits.ranks for end in (source, target)):
            self._refused["link without source or target rank"] += 1
            return
        rows, row = self._rank_row(cast(int, source), 0, time)
        numbers = {name: event[field] for field, name in links.NUMBERS.items() if event.get(field) is not None}
        self._add(rows, row, numbers, f"{links.PREFIX}{target}/")

    def _checkpoint(self, rank: int, time: float, event: dict[str, Any]) -> None:
        """Add a checkpoint that was written or loaded as series at its step, which may be one of before."""
        step, names = event.get("step"), checkpoints.NUMBERS.get(str(event.get("kind")))
        if type(step) is not int or not 0 <= step <= MAX_STEP or names is None:
            self._refused["checkpoint without step, or neither saved nor loaded"] += 1
            return
        if event.get("valid") is not True:
            return  # the log says why
        rows, row = self._rank_row(rank, step, time)
        numbers = {name: event[field] for field, name in names.items() if event.get(field) is not None}
        self._add(rows, row, numbers, checkpoints.PREFIX)

    def _operate(self, rank: int, event: dict[str, Any]) -> None:
        step, listed = event.get("step"), event.get("operations")
        if type(step) is not int or not 0 <= step <= MAX_STEP or type(listed) is not list:
            self._refused["invalid step"] += 1
            return
        operations = [operation for operation in map(read_operation, listed) if operation is not None]
        if len(operations) < len(listed):
            self._refused["invalid operation"] += len(listed) - len(operations)
        if event.get("part") == 0:  # the first part of a step, which may be printed again after a restart
            self._operations[step, rank] = Printed(operations, is_begin=True)
        else:
            self._operations.setdefault((step, rank), Printed([], is_begin=False)).operations.extend(operations)

    def _add(self, rows: _Rows, row: int, numbers: dict[str, Any], prefix: str) -> None:
        columns = rows.values
        for name, value in numbers.items():
            kind = type(value)
            if kind is not float and kind is not int and kind is not bool and value is not None:
                continue
            metric = prefix + name if prefix else name
            values = columns.get(metric)
            if values is None:
                if not self._accepts(metric, prefix):
                    continue
                values = columns[metric] = []
            if len(values) != row:
                values.extend([_ABSENT] * (row - len(values)))
            # Engines print null for numbers that are not finite, because JSON cannot represent them.
            values.append(_NAN if value is None else value)

    def _accepts_all(self, metrics: Collection[str]) -> bool:
        """Return whether all of these may be metrics, and count those that are new."""
        new = [metric for metric in metrics if metric not in self._metrics]
        if len(self._metrics) + len(new) > self._limits.metrics or not all(map(self._is_name, new)):
            return False
        self._metrics.update(new)
        return True

    def _is_name(self, metric: str) -> bool:
        return bool(self._limits.name.fullmatch(metric)) and not metric.startswith(_TIMERS)

    def _accepts(self, metric: str, prefix: str) -> bool:
        if not (self._limits.name.fullmatch(metric) if prefix else self._is_name(metric)):
            self._refused["invalid metric name"] += 1
            return False
        if metric not in self._metrics:
            if len(self._metrics) >= self._limits.metrics:
                self._refused[f"more than {self._limits.metrics} metrics"] += 1
                return False
            self._metrics.add(metric)
        return True

    def result(self) -> Parsed:
        parts: dict[tuple[str, int], list[_Part]] = {}
        for (rank, metrics), table in self._tables.items():
            if table.numbers:
                numbers, steps, times = _arrays(table)
                columns = np.ascontiguousarray(np.array(table.values, np.float64).T)
                for metric, values in zip(metrics, columns, strict=True):
                    parts.setdefault((metric, rank), []).append(_Part(numbers, Columns(steps, times, values)))
        for rank, rows in self._ranks.items():
            # Metrics present in every event share these arrays, which the store then packs once.
            numbers, steps, times = _arrays(rows)
            for metric, listed in rows.values.items():
                parts.setdefault((metric, rank), []).append(_present(numbers, steps, times, listed))
        series = {key: pieces[0].columns if len(pieces) == 1 else _merged(pieces) for key, pieces in parts.items()}
        return Parsed(series, self._last_step, self._steps, self._facts, self._operations, self._refused)


def _arrays(rows: _Rows | _Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    return np.array(rows.numbers, np.int64), np.array(rows.steps, np.int64), np.array(rows.times, np.float64)


def _present(
    numbers: NDArray[np.int64],
    steps: NDArray[np.int64],
    times: NDArray[np.float64],
    values: list[float | None],
) -> _Part:
    if len(values) == len(steps) and _ABSENT not in values:
        return _Part(numbers, Columns(steps, times, np.array(values, np.float64)))
    present = [row for row, value in enumerate(values) if value is not _ABSENT]
    columns = Columns(steps[present], times[present], np.array([values[row] for row in present], np.float64))
    return _Part(numbers[present], columns)


def _merged(parts: list[_Part]) -> Columns:
    """Join the parts of a series in the order of their events."""
    order = np.argsort(np.concatenate([part.numbers for part in parts]), kind="stable")
    return Columns.joined(part.columns for part in parts).take(order)


def _loads(line: bytes) -> Any:
    """Parse JSON, with NaN and Infinity as Python's json writes them; None for an invalid line."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(line, parse_int=_integer)
    except (ValueError, RecursionError):
        return None


def _integer(digits: str) -> float:
    return int(digits) if len(digits) < 19 else float(digits)
