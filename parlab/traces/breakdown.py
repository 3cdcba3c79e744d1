"""Where the time of a traced rank goes, by step: compute, exposed communication, copies and idle time by cause.

The parts of a window add up to it: compute + exposed communication + exposed copies + idle. Communication and copies
that overlap with compute count as compute, as in HolisticTraceAnalysis (arXiv:2305.14516), whose idle causes are used
as well: a kernel that is launched after the device ran out of work waits for the host, one that was launched before
waits for its launch or for other kernels.

The events are read once, in the order of their start. What is merged is added to the windows at once, so that the
memory grows with the steps and the names, not with the events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .intervals import Intervals, Times, distinct, union
from .kinds import COMMUNICATION, COMPUTE, MEMORY, class_of
from .reading import RankTrace
from .spool import Rows, Spool

MAX_KERNELS = 50
_LONGEST_GAP_S = 3_600.0
"""Within a trace; profilers record seconds to minutes."""


class Window(NamedTuple):
    """A step, or the whole trace, with its parts in seconds."""

    step: int | None
    begin_s: float
    end_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    """Communication that no compute covers."""
    copy_s: float
    exposed_copy_s: float
    idle_host_s: float
    """Idle, because the processor had not launched the next kernel."""
    idle_kernel_s: float
    """Idle, although the next kernel was launched: launch latency, dependencies between streams."""

    @property
    def total_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def idle_s(self) -> float:
        return self.idle_host_s + self.idle_kernel_s


class KernelRow(NamedTuple):
    """All runs of one kernel or operation."""

    name: str
    group: str
    """Its class."""
    calls: int
    total_s: float
    mean_s: float
    longest_s: float
    share: float
    """Of the time of all kernels, 0 to 1."""


@dataclass(frozen=True)
class Breakdown:
    """A traced rank: the whole trace and each step."""

    whole: Window
    steps: tuple[Window, ...]
    kernels: tuple[KernelRow, ...]
    """The longest in total; for the processor the time of an operation without the operations that it calls."""
    classes: tuple[tuple[str, float], ...]
    """Class of kernels -> seconds, largest first."""
    problems: tuple[str, ...]


def breakdown(trace: RankTrace) -> Breakdown:
    """Return the breakdown of a rank. Problems name what the trace does not contain."""
    windows = [(None, trace.timeline.begin_s, trace.timeline.end_s), *_whole_steps(trace)]
    begins, ends = (np.array([window[place] for window in windows]) for place in (1, 2))
    edges = distinct(np.concatenate([begins, ends]))
    busy, kernels, overlaps = _Busy(edges), _KernelTimes(len(trace.names), nested=not trace.is_gpu), _Overlaps()
    idle = _Idle(edges, trace)
    for rows in trace.timeline.blocks():
        idle.add(rows)
        busy.add(rows)
        kernels.add(rows)
        overlaps.add(rows)
    at = np.searchsorted(edges, begins), np.searchsorted(edges, ends)
    inside = {kinds: covered.inside(*at) for kinds, covered in busy.kinds.items()}
    anything, host = idle.inside(*at)
    compute, communication = inside[COMPUTE,], inside[COMPUTE, COMMUNICATION]
    rows_ = [
        Window(
            step,
            begin,
            end,
            compute_s=float(compute[i]),
            communication_s=float(inside[COMMUNICATION,][i]),
            exposed_s=float(communication[i] - compute[i]),
            copy_s=float(inside[MEMORY,][i]),
            exposed_copy_s=float(anything[i] - communication[i]),
            idle_host_s=float(host[i]),
            idle_kernel_s=max(0.0, float(end - begin - anything[i] - host[i])),
        )
        for i, (step, begin, end) in enumerate(windows)
    ]
    problems = []
    if not trace.steps:
        problems.append("the trace has no steps (ProfilerStep); call the profiler's step() once per iteration")
    if idle.longest_s > _LONGEST_GAP_S:
        hours = f"{idle.longest_s / 3600:.3g} h"
        problems.append(f"nothing runs for {hours} between two events: some have wrong times or are of another trace")
    if trace.is_gpu and overlaps.count:
        problems.append(f"{overlaps.count} kernels overlap others on their stream; overlapping time counts once")
    return Breakdown(rows_[0], tuple(rows_[1:]), *kernels.tables(trace.names), tuple(problems))


class StepWindow(NamedTuple):
    """A step with the kernels that it launched."""

    number: int
    begin_s: float
    end_s: float


def _whole_steps(trace: RankTrace) -> list[StepWindow]:
    """Return the steps; on a GPU each ends where the next one begins, since kernels run on after their launch."""
    steps = [StepWindow(step.number, step.begin_s, step.end_s) for step in trace.steps]
    if not trace.is_gpu or not steps:
        return steps
    following = [*(step.begin_s for step in steps[1:]), max(trace.timeline.end_s, steps[-1].end_s)]
    return [step._replace(end_s=end) for step, end in zip(steps, following, strict=True)]


class _Covered:
    """The time that intervals cover before each edge of a window; the edges are in order."""

    def __init__(self, edges: Times) -> None:
        self._edges, self._seconds = edges, np.zeros(len(edges))

    def add(self, intervals: Intervals) -> None:
        """Add disjoint intervals, in order."""
        if not len(intervals.starts):
            return
        first, last = np.searchsorted(self._edges, [intervals.starts[0], intervals.ends[-1]])
        self._seconds[first:last] += intervals.until(self._edges[first:last])
        self._seconds[last:] += intervals.total

    def inside(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Times:
        """Return the covered time between two edges each."""
        seconds: Times = self._seconds[ends] - self._seconds[begins]
        return seconds


class _Merged:
    """Intervals that come in the order of their start, merged where they touch; the last one may still grow."""

    def __init__(self, edges: Times) -> None:
        self._covered = _Covered(edges)
        self.last = Intervals(np.empty(0), np.empty(0))

    def add(self, starts: Times, ends: Times) -> Intervals:
        """Return what the intervals and the last one before them are merged to."""
        merged = union(np.concatenate([self.last.starts, starts]), np.concatenate([self.last.ends, ends]))
        self._covered.add(Intervals(merged.starts[:-1], merged.ends[:-1]))
        self.last = Intervals(merged.starts[-1:], merged.ends[-1:])
        return merged

    def inside(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Times:
        """Return the covered time between two edges each, when all intervals were added."""
        self._covered.add(self.last)
        self.last = Intervals(np.empty(0), np.empty(0))
        return self._covered.inside(begins, ends)


class _Busy:
    """Time in which something of some kinds runs."""

    def __init__(self, edges: Times) -> None:
        kinds = ((COMPUTE,), (COMMUNICATION,), (MEMORY,), (COMPUTE, COMMUNICATION))
        self.kinds = {each: _Merged(edges) for each in kinds}

    def add(self, rows: Rows) -> None:
        for kinds, merged in self.kinds.items():
            chosen = np.logical_or.reduce([rows["kind"] == kind for kind in kinds])
            merged.add(rows["start"][chosen], rows["end"][chosen])


_GAP = np.dtype([("number", "<i4"), ("start", "<f8"), ("end", "<f8")])
"""Nothing runs until a kernel starts whose launch has this number."""


class _Idle:
    """Time in which nothing runs, and in which the next kernel has not been launched."""

    def __init__(self, edges: Times, trace: RankTrace) -> None:
        self._busy = _Merged(edges)
        self._host = _Covered(edges)
        self._trace = trace
        self._gaps = Spool(_GAP, "number", trace.timeline.folder)
        self._end = edges[-1:]
        self.longest_s = 0.0
        """Longest time in which nothing runs."""
        # Time before the first event is idle.
        self._busy.add(edges[:1], edges[:1])

    def add(self, rows: Rows) -> None:
        merged = self._busy.add(rows["start"], rows["end"])
        idle = Intervals(merged.ends[:-1], merged.starts[1:])
        self.longest_s = max(self.longest_s, float((idle.ends - idle.starts).max(initial=0.0)))
        if not self._trace.is_gpu:
            self._host.add(idle)  # a processor without an operation runs Python
            return
        gaps = np.empty(len(idle.starts), _GAP)
        gaps["start"], gaps["end"] = idle
        gaps["number"] = rows["launch"][np.searchsorted(rows["start"], idle.ends)]
        self._gaps.extend(gaps)

    def inside(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[Times, Times]:
        """Return the busy time and the time that waits for the host between two edges, when all events were added."""
        self._host.add(Intervals(self._busy.last.ends, np.maximum(self._busy.last.ends, self._end)))
        for gaps, calls in _launched(self._gaps, self._trace.launches):
            launched = calls - self._trace.timeline.shift_s
            until = np.clip(np.where(np.isnan(launched), gaps["start"], launched), gaps["start"], gaps["end"])
            order = np.argsort(gaps["start"])
            self._host.add(Intervals(gaps["start"][order], until[order]))
        return self._busy.inside(begins, ends), self._host.inside(begins, ends)


def _launched(gaps: Spool, launches: Spool) -> Iterator[tuple[Rows, Times]]:
    """Yield gaps with the time at which the kernel after them was launched; NaN if unknown."""
    following = launches.blocks()
    calls = next(following, None)
    for rows in gaps.blocks():
        at = np.full(len(rows), np.nan)
        while calls is not None:
            place = np.minimum(np.searchsorted(calls["number"], rows["number"]), len(calls) - 1)
            matches = calls["number"][place] == rows["number"]
            at[matches] = calls["at"][place[matches]]
            if calls["number"][-1] >= rows["number"][-1]:
                break
            calls = next(following, None)
        yield rows, at


class _Overlaps:
    """Kernels that start before the previous one of their stream has ended, by more than a microsecond."""

    def __init__(self) -> None:
        self.count = 0
        self._ends: dict[int, float] = {}

    def add(self, rows: Rows) -> None:
        for stream in distinct(rows["lane"]).tolist():
            if stream >= 0:
                own = rows[rows["lane"] == stream]
                before = np.append(self._ends.get(stream, -np.inf), own["end"][:-1])
                self.count += int((own["start"] < before - 1e-6).sum())
                self._ends[stream] = float(own["end"][-1])


class _KernelTimes:
    """Calls and times of kernels by name."""

    def __init__(self, names: int, *, nested: bool) -> None:
        self._calls, self._totals, self._longest = np.zeros(names, np.int64), np.zeros(names), np.zeros(names)
        self._own = OwnTimes() if nested else None

    def add(self, rows: Rows) -> None:
        if self._own:
            self._add(*self._own.add(rows))
        else:
            self._add(rows["name"], rows["end"] - rows["start"])

    def _add(self, names: NDArray[np.int32], lengths: Times) -> None:
        count = len(self._totals)
        self._calls += np.bincount(names, minlength=count)
        self._totals += np.bincount(names, lengths, count)
        np.maximum.at(self._longest, names, lengths)

    def tables(self, names: list[str]) -> tuple[tuple[KernelRow, ...], tuple[tuple[str, float], ...]]:
        """Return the kernels that take longest, and the time of each class, when all events were added."""
        if self._own:
            self._add(*self._own.close())
        calls, totals, longest = self._calls.tolist(), self._totals.tolist(), self._longest.tolist()
        whole = float(self._totals.sum()) or 1.0
        classes: dict[str, float] = {}
        for name, seconds in zip(names, totals, strict=True):
            group = class_of(name)
            classes[group] = classes.get(group, 0.0) + seconds
        rows = [
            KernelRow(name, class_of(name), count, total_s, total_s / count, longest_s, total_s / whole)
            for name, count, total_s, longest_s in zip(names, calls, totals, longest, strict=True)
            if count
        ]
        rows.sort(key=lambda row: -row.total_s)
        ordered = sorted(((name, seconds) for name, seconds in classes.items() if seconds), key=lambda item: -item[1])
        return tuple(rows[:MAX_KERNELS]), tuple(ordered)


class OwnTimes:
    """The length of each event without the events nested in it on its lane."""

    def __init__(self) -> None:
        self._open: dict[int, list[list[float]]] = {}
        """Lane -> (end, own time, name) of the events that contain the next one."""

    def add(self, rows: Rows) -> tuple[NDArray[np.int32], Times]:
        """Add events in the order of their start; return names and own times of those that have ended."""
        ordered = rows[np.lexsort((-rows["end"], rows["start"]))]
        ended: list[list[float]] = []
        columns = (ordered[name].tolist() for name in ("start", "end", "name", "lane"))
        for start, end, name, lane in zip(*columns, strict=True):
            stack = self._open.setdefault(lane, [])
            while stack and stack[-1][0] <= start:
                ended.append(stack.pop())
            if stack:
                stack[-1][1] -= min(end, stack[-1][0]) - start
            stack.append([end, end - start, name])
        return _names_and_times(ended)

    def close(self) -> tuple[NDArray[np.int32], Times]:
        """Return names and own times of the events that are still open."""
        ended = [row for stack in self._open.values() for row in stack]
        self._open = {}
        return _names_and_times(ended)


def _names_and_times(rows: list[list[float]]) -> tuple[NDArray[np.int32], Times]:
    return np.array([row[2] for row in rows], np.int32), np.array([row[1] for row in rows])
