"""Where the time of a traced rank goes, by step: compute, exposed communication, copies and idle time by cause.

The parts of a window add up to it: compute + exposed communication + exposed copies + idle. Communication and copies
that overlap with compute count as compute, as in HolisticTraceAnalysis (arXiv:2305.14516), whose idle causes are used
as well: a kernel that is launched after the device ran out of work waits for the host, one that was launched before
waits for its launch or for other kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .intervals import Intervals, Times, gaps, union
from .kinds import COMMUNICATION, COMPUTE, MEMORY, class_of
from .reading import RankTrace

MAX_KERNELS = 50


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
    problems = []
    busy = [union(*_of(trace, kinds)) for kinds in ((COMPUTE,), (COMMUNICATION,), (MEMORY,))]
    covered = [busy[0], union(*_of(trace, (COMPUTE, COMMUNICATION))), union(trace.starts, trace.ends)]
    windows: list[tuple[int | None, float, float]] = [(None, trace.begin_s, trace.end_s)]
    windows += [(step.number, step.begin_s, step.end_s) for step in _whole_steps(trace)]
    begins, ends = (np.array([window[place] for window in windows]) for place in (1, 2))
    waits = _host_waits(trace, covered[2], float(begins.min()), float(ends.max()))
    alone = [intervals.inside(begins, ends) for intervals in busy]
    nested = [intervals.inside(begins, ends) for intervals in covered]
    host = waits.inside(begins, ends)
    rows = [
        Window(
            step,
            begin,
            end,
            compute_s=float(alone[0][i]),
            communication_s=float(alone[1][i]),
            exposed_s=float(nested[1][i] - nested[0][i]),
            copy_s=float(alone[2][i]),
            exposed_copy_s=float(nested[2][i] - nested[1][i]),
            idle_host_s=float(host[i]),
            idle_kernel_s=max(0.0, float(end - begin - nested[2][i] - host[i])),
        )
        for i, (step, begin, end) in enumerate(windows)
    ]
    if not trace.steps:
        problems.append("the trace has no steps (ProfilerStep); call the profiler's step() once per iteration")
    if trace.is_gpu and (overlaps := _overlaps(trace)):
        problems.append(f"{overlaps} kernels overlap others on their stream; overlapping time counts once")
    kernels, classes = _kernels(trace)
    return Breakdown(rows[0], tuple(rows[1:]), kernels, classes, tuple(problems))


def _of(trace: RankTrace, kinds: tuple[int, ...]) -> tuple[Times, Times]:
    chosen = np.isin(trace.kinds, kinds)
    return trace.starts[chosen], trace.ends[chosen]


def _whole_steps(trace: RankTrace) -> list[StepWindow]:
    """Return the steps; on a GPU each ends where the next one begins, since kernels run on after their launch."""
    steps = [StepWindow(step.number, step.begin_s, step.end_s) for step in trace.steps]
    if not trace.is_gpu or not steps:
        return steps
    following = [*(step.begin_s for step in steps[1:]), max(trace.end_s, steps[-1].end_s)]
    return [step._replace(end_s=end) for step, end in zip(steps, following, strict=True)]


class StepWindow(NamedTuple):
    """A step with the kernels that it launched."""

    number: int
    begin_s: float
    end_s: float


def _host_waits(trace: RankTrace, busy: Intervals, begin: float, end: float) -> Intervals:
    """Return the idle intervals in which the next kernel had not been launched."""
    idle = gaps(busy, begin, end)
    if not trace.is_gpu or not len(idle.starts):
        return idle  # a processor without an operation runs Python
    order = np.argsort(trace.starts, kind="stable")
    place = np.searchsorted(trace.starts[order], idle.ends, side="left")
    launches = np.append(trace.launches[order], np.inf)[np.minimum(place, len(order))]
    until = np.clip(np.where(np.isnan(launches), idle.starts, launches), idle.starts, idle.ends)
    return Intervals(idle.starts, until)


def _overlaps(trace: RankTrace) -> int:
    """Count kernels that start before the previous one of their stream has ended, by more than a microsecond."""
    order = np.lexsort((trace.starts, trace.streams))
    starts, ends, streams = trace.starts[order], trace.ends[order], trace.streams[order]
    same = streams[1:] == streams[:-1]
    return int((same & (streams[1:] >= 0) & (starts[1:] < ends[:-1] - 1e-6)).sum())


def _kernels(trace: RankTrace) -> tuple[tuple[KernelRow, ...], tuple[tuple[str, float], ...]]:
    lengths = trace.ends - trace.starts if trace.is_gpu else own_times(trace.starts, trace.ends, trace.streams)
    count = len(trace.names)
    totals = np.bincount(trace.name_ids, lengths, count) if count else np.empty(0)
    counts = np.bincount(trace.name_ids, minlength=count)
    longest = np.zeros(count)
    np.maximum.at(longest, trace.name_ids, lengths)
    whole = float(totals.sum()) or 1.0
    classes: dict[str, float] = {}
    for name, seconds in zip(trace.names, totals, strict=True):
        group = class_of(name)
        classes[group] = classes.get(group, 0.0) + float(seconds)
    order = np.argsort(-totals, kind="stable")[:MAX_KERNELS]
    rows = [
        KernelRow(
            trace.names[i],
            class_of(trace.names[i]),
            int(counts[i]),
            float(totals[i]),
            float(totals[i] / counts[i]),
            float(longest[i]),
            float(totals[i] / whole),
        )
        for i in order
        if counts[i]
    ]
    ordered = sorted(((name, seconds) for name, seconds in classes.items() if seconds), key=lambda item: -item[1])
    return tuple(rows), tuple(ordered)


def own_times(starts: Times, ends: Times, lanes: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Times:
    """Return the length of each interval without the intervals nested in it on its lane."""
    own: Times = (ends - starts).copy()
    order = np.lexsort((-ends, starts, lanes))
    stack: list[int] = []
    begin, end, lane = starts.tolist(), ends.tolist(), lanes.tolist()
    for i in order.tolist():
        while stack and (lane[stack[-1]] != lane[i] or end[stack[-1]] <= begin[i]):
            stack.pop()
        if stack:
            own[stack[-1]] -= min(end[i], end[stack[-1]]) - begin[i]
        stack.append(i)
    return own
