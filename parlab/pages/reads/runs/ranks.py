"""Ranks of a run over its steps: which measures there are, the cells of the heat map, the slowest ranks and nodes."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from django.core.cache import cache
from numpy.typing import NDArray

from parlab.charts.format import Unit, unit_for
from parlab.charts.runs import ranks as chart
from parlab.charts.runs.ranks import Cells, Ranks, Slow, Values
from parlab.charts.theme import Drawing, Table
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.layouts import RankLayout, rank_layout
from parlab.publishing.figures.chains import Joined, Points
from parlab.publishing.figures.windows import Window
from parlab.series import store
from parlab.whole_numbers import whole_number

STEP_TIME = "step_time_s"
WORK, WAITING, STEP = "work", "waiting", "step"
TIMER = "timer/"
_WAITS = ("-recv", "-send", "all-reduce", "all-gather", "reduce-scatter", "broadcast", "barrier", "wait")
"""Ends of timer names in which a rank waits for others, or transfers."""
MAX_WINDOWS = 8
"""Rows of the table of the slowest ranks over time."""
_MAX_POINTS = 40_000_000
"""Points that one figure reads, from the newest steps backwards."""
_LIVE_SHARE = 0.05
"""While a run is active, reading takes at most this share of the time."""
_KEEP_S = 600


class Choice(NamedTuple):
    """What the heat map shows."""

    measure: str
    """A key of `measures`."""
    node_rank: int | None = None
    """Only the ranks of this node."""


def measures(metrics: Collection[str]) -> dict[str, str]:
    """Return the measures that a run has, name -> title; the first is the default.

    Ranks that wait for each other have equal step times: only the time without waiting differs.
    """
    timers = sorted(name.removeprefix(TIMER) for name in metrics if name.startswith(TIMER))
    titles: dict[str, str] = {}
    if STEP_TIME in metrics and any(map(_is_waiting, timers)):
        titles |= {WORK: "Step time without waiting", WAITING: "Waiting and transfers"}
    if STEP_TIME in metrics:
        titles[STEP] = "Step time"
    return titles | {f"{TIMER}{name}": name for name in timers}


def _is_waiting(timer: str) -> bool:
    return timer.endswith(_WAITS)


def choice_of(query: Mapping[str, str], metrics: Collection[str], layout: RankLayout) -> Choice | None:
    """Read `?phase=work&ranks_of=1`; what does not exist is ignored. None if the run has no measure."""
    available = measures(metrics)
    if not available:
        return None
    phase, node = query.get("phase", ""), query.get("ranks_of", "")
    number = whole_number(node)
    is_node = number is not None and number < len(layout.nodes)
    return Choice(phase if phase in available else next(iter(available)), number if is_node else None)


class Reading(NamedTuple):
    """Cells, and the slowest ranks of all steps that were read."""

    cells: Cells
    slow: list[Slow]

    @property
    def ranks(self) -> int:
        return len(self.cells.ranks.numbers)


_NOTHING = Reading(Cells("", Ranks((), (), ()), 0, 1, np.empty((0, 0)), np.empty((0, 0))), [])


class Source(NamedTuple):
    """An attempt, with what it goes on from, and its series."""

    run: Run
    attempt: Attempt
    layout: RankLayout
    joined: Joined
    series: list[store.SeriesInfo]

    def at(self, step: int) -> Source:
        """Return the same with the attempt that made a step, and its nodes."""
        if len(self.joined.attempts) == 1:
            return self
        attempt = self.joined.attempt_at(step, self.parts(STEP))
        return self._replace(attempt=attempt, layout=rank_layout(self.run, attempt))

    @property
    def metrics(self) -> set[str]:
        return {info.metric for info in self.series}

    def parts(self, measure: str) -> set[str]:
        """Return the metrics that a measure is made of."""
        if measure.startswith(TIMER):
            return {measure}
        waits = {name for name in self.metrics if name.startswith(TIMER) and _is_waiting(name)}
        return {STEP: {STEP_TIME}, WAITING: waits}.get(measure, {STEP_TIME, *waits})


def source_of(run: Run, attempt: Attempt) -> Source:
    """Return what the figures of an attempt's ranks are read from."""
    joined = Joined(attempt)
    return Source(run, attempt, rank_layout(run, attempt), joined, joined.metrics())


def drawing(run: Run, attempt: Attempt, window: Window, query: Mapping[str, str]) -> Drawing:
    """Draw the heat map; of a window, only its cells."""
    source = source_of(run, attempt)
    choice = choice_of(query, source.metrics, source.layout)
    reading = reading_of(source, choice, window) if choice else _NOTHING
    if choice is None or (reading.ranks < 2 and choice.node_rank is None):  # a node of the run may have one rank
        return chart.figure(_NOTHING.cells)
    drawn = chart.figure(reading.cells, chart.sentence(reading.slow, _title(source, choice).lower()))
    return drawn._replace(table=_numbers(run, choice, reading.cells)) if window.points is None else drawn


def _numbers(run: Run, choice: Choice, cells: Cells) -> Table:
    """Return the cells as a table; sums of timers and means over steps of a file are derived."""
    table = chart.numbers(cells)
    if not run.has_printed_numbers:
        return table
    metric = STEP_TIME if choice.measure == STEP else choice.measure
    is_derived = choice.measure in (WORK, WAITING) or cells.width > 1
    kind = "derived" if is_derived else run.series_kind(metric)
    return Table([*table.header, "kind"], [[*row, kind] for row in table.rows])


def _title(source: Source, choice: Choice) -> str:
    return measures(source.metrics)[choice.measure]


def reading_of(source: Source, choice: Choice, window: Window) -> Reading:
    """Read the cells of a choice; while a run is active, from the cache for a while."""
    attempt, is_final = source.attempt, source.run.is_final
    state = str(attempt.committed) if is_final else "live"
    key = f"parlab.ranks.{attempt.pk}.{source.joined.attempts[-1].pk}.{choice}.{window}.{state}"
    # A key of memcached may have neither blanks nor more than 250 characters.
    key = f"parlab.ranks.{hashlib.sha256(key.encode()).hexdigest()}"
    cached: Reading | None = cache.get(key)
    if cached is not None:
        return cached
    began = time.monotonic()
    reading = _rank_reading(source, choice, window)
    took_s = time.monotonic() - began
    if window.points is not None:
        cache.set(key, reading, _KEEP_S if is_final else took_s / _LIVE_SHARE)
    return reading


def _rank_reading(source: Source, choice: Choice, window: Window) -> Reading:
    names = source.parts(choice.measure)
    owned = None if choice.node_rank is None else source.layout.ranks_of(choice.node_rank)
    infos = [info for info in source.series if info.metric in names and info.rank >= 0]
    infos = [info for info in infos if owned is None or info.rank in owned]
    numbers = sorted({info.rank for info in infos})
    extent = source.joined.extent(names, numbers)
    if extent is None:
        return _NOTHING
    (first, last), note = extent, ""
    points = sum(info.points for info in infos)
    if points > _MAX_POINTS:
        first = last - (last - first) * _MAX_POINTS // points
        note = f"Only the newest steps are read, from step {first}."
    if window.first is not None and window.last is not None:
        first, last = max(first, int(window.first)), min(last, math.ceil(window.last))
    if last < first:
        return _NOTHING
    ranks = Ranks(numbers, [source.layout.node_rank_of(rank) for rank in numbers], source.layout.nodes)
    width = -(-(last - first + 1) // chart.columns_for(len(numbers), window.points is None))
    width = max(width, _spacing(source, infos[0], first, last))
    bins = _Bins(len(numbers), first, last, width, _windows(source.run, first, last))
    rows = {rank: row for row, rank in enumerate(numbers)}
    for rank, series in source.joined.each_rank(names, numbers, first_step=first, last_step=last):
        bins.add(rows[rank], *_values(choice.measure, series))
    unit, title = _unit(source.run, choice.measure), _title(source, choice)
    cells = Cells(title, ranks, first, width, bins.means(), bins.peaks, unit, note)
    return Reading(cells, chart.slowest(ranks, bins.windows, bins.medians))


def _values(measure: str, columns: Mapping[str, Points]) -> Points:
    series = {name: _once(*points) for name, points in columns.items()}
    if len(series) < 2 and measure != WORK:
        return next(iter(series.values()), (np.empty(0, np.int64), np.empty(0)))
    steps = np.unique(np.concatenate([steps for steps, _ in series.values()]))
    total = np.zeros(len(steps))
    for name, (own_steps, values) in series.items():
        sign = -1.0 if measure == WORK and name != STEP_TIME else 1.0
        total[np.searchsorted(steps, own_steps)] += sign * values
    if measure == WORK:
        timed = series.get(STEP_TIME)
        present = np.isin(steps, timed[0]) if timed else np.zeros(len(steps), np.bool_)
        steps, total = steps[present], np.maximum(total[present], 0.0)
    return steps, total


def _once(steps: NDArray[np.int64], values: Values) -> Points:
    """Return finite values by ascending step; of a step that was repeated after a restart, the last one."""
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]
    if len(steps) > 1 and (np.diff(steps) <= 0).any():
        unique, from_end = np.unique(steps[::-1], return_index=True)
        return unique, values[::-1][from_end]
    return steps, values


class _Bins:
    """Mean and maximum by rank and bin of steps, and medians by rank and window of steps."""

    def __init__(self, ranks: int, first: int, last: int, width: int, windows: Sequence[tuple[int, int]]) -> None:
        columns = (last - first) // width + 1
        self.windows = windows
        self._first, self._width = first, width
        self._sums, self._counts = np.zeros((ranks, columns)), np.zeros((ranks, columns))
        self.peaks = np.full((ranks, columns), np.nan)
        self.medians = np.full((ranks, len(windows)), np.nan)

    def add(self, row: int, steps: NDArray[np.int64], values: Values) -> None:
        if not len(steps):
            return
        places = (steps - self._first) // self._width
        count = self._sums.shape[1]
        self._sums[row] = np.bincount(places, values, count)
        self._counts[row] = np.bincount(places, minlength=count)
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        self.peaks[row, places[starts]] = np.maximum.reduceat(values, starts)
        for number, (first, last) in enumerate(self.windows):
            part = values[np.searchsorted(steps, first) : np.searchsorted(steps, last, "right")]
            if len(part):
                self.medians[row, number] = _median(part)

    def means(self) -> Values:
        return np.where(self._counts > 0, self._sums / np.maximum(self._counts, 1), np.nan)


def _median(values: Values) -> float:
    """Return the median; np.median takes several times as long for the few steps of a window."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(values, (low, high))
    return float(ordered[low] + ordered[high]) / 2


def _windows(run: Run, first: int, last: int) -> list[tuple[int, int]]:
    """Divide the steps after the warm-up into a few windows of equal length."""
    warmup = int((run.resolved.get("train") or {}).get("warmup_steps") or 0)
    begin = max(first, warmup + 1) if last > warmup else first
    count = min(MAX_WINDOWS, last - begin + 1)
    edges = [begin + (last - begin + 1) * number // count for number in range(count + 1)]
    return [(edge, following - 1) for edge, following in pairwise(edges)]


def _spacing(source: Source, info: store.SeriesInfo, first: int, last: int) -> int:
    """Return the distance between printed steps: a trainer may print every tenth only."""
    rows = source.joined.each_rank({info.metric}, [info.rank], first_step=first, last_step=last)
    points = next((series[info.metric] for _, series in rows if info.metric in series), None)
    steps = _once(*points)[0] if points is not None else ()
    return int(np.median(np.diff(steps))) if len(steps) > 2 else 1


def _unit(run: Run, measure: str) -> Unit | None:
    """Choose the unit by the summary, so that a part of the figure has the unit of the whole."""
    timers = run.summary.get("timers_s") or {}
    typical = (run.summary.get("step_time_s") or {}).get("median")
    if measure.startswith(TIMER):
        typical = (timers.get(measure.removeprefix(TIMER)) or {}).get("median")
    elif measure == WAITING:
        typical = sum(float(timer.get("median") or 0) for name, timer in timers.items() if _is_waiting(name))
    return unit_for([typical], "s") if typical else None
