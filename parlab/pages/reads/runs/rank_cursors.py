"""Ranks of a run with one cursor (step, rank): heat map, parts and timeline of the step, its lines of the log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from parlab.charts.format import Unit, in_column, significant, unit_for
from parlab.charts.runs import rank_lanes
from parlab.charts.runs.rank_lanes import KEYS, Lane, spans_of
from parlab.charts.runs.ranks import Cells
from parlab.charts.runs.step_bar import HATCHED
from parlab.charts.runs.timeline import Bar
from parlab.charts.svg import Svg
from parlab.pages.reads.runs import ranks as reads
from parlab.pages.reads.runs.ranks import STEP_TIME, TIMER, Choice, Source
from parlab.pages.reads.runs.timelines import measured_timeline, steps_of
from parlab.publishing.figures.run_curves import phase_timers
from parlab.publishing.figures.windows import Window
from parlab.series.step_lines import StepLine, step_lines
from parlab.whole_numbers import whole_number

MAX_ROWS = 64
"""More ranks are shown by node."""
MAX_COLUMNS = 32
"""Steps of the heat map; the rest of a long run is in the strip above."""
_STRIP = 120
_HEATS = 6
_NOTEWORTHY = 1.05
"""Below this ratio to the others no rank stands out: step times vary as much."""
_TWICE = 2.0
_FEWEST, _MAX_WAITING = 2, 4
"""Ranks that can be compared, and that a sentence names."""
_VERBS = {reads.WORK: "computes", reads.WAITING: "waits"}
_LEAST_RANGE = 1.3
"""Ratio of the darkest to the lightest colour at least, so that noise is not made dramatic."""
Values = NDArray[np.float64]


class Cell(NamedTuple):
    """A cell of the heat map."""

    text: str
    heat: int | None
    """0 to 5; None: not measured."""
    address: str
    note: str
    is_cursor: bool
    is_column: bool


class HeatRow(NamedTuple):
    """A rank, or a node with the slowest of its ranks in each cell."""

    name: str
    place: str
    cells: list[Cell]
    is_cursor: bool
    address: str = ""
    """Opens the ranks of a node."""


class Heat(NamedTuple):
    """The heat map around the cursor."""

    unit: str
    steps: list[tuple[int, bool]]
    """With whether it is that of the cursor."""
    rows: list[HeatRow]
    strip: list[Cell]
    """All steps of a long run; empty where the heat map has all."""
    has_texts: bool


class LaneRow(NamedTuple):
    """A rank beside its bar or lane."""

    rank: int
    node: str
    drawn: Svg
    is_cursor: bool


class Lanes(NamedTuple):
    """Bars or lanes with their axis."""

    unit: str
    rows: list[LaneRow]
    axis: Svg
    keys: list[tuple[str, str]]


class Moves(NamedTuple):
    """Addresses of the neighbours of the cursor; empty at an edge."""

    left: str = ""
    right: str = ""
    up: str = ""
    down: str = ""


class RankView(NamedTuple):
    step: int
    rank: int
    sentence: str
    others: str
    heat: Heat | None
    bars: Lanes | None
    timeline: Lanes | None
    timeline_title: str
    recorded: list[int]
    """Steps with a timeline."""
    lines: list[StepLine]
    moves: Moves


class _Cursor(NamedTuple):
    step: int
    rank: int
    query: tuple[tuple[str, str], ...]

    def address(self, step: int, rank: int) -> str:
        return "?" + urlencode([*self.query, ("step", step), ("rank", rank)])


def rank_view(
    source: Source, choice: Choice, query: Mapping[str, str], kept: Sequence[tuple[str, str]]
) -> RankView | None:
    """Read what the cursor of an address shows; None without a measured step. `kept` stays in all addresses."""
    whole = reads.reading_of(source, choice, Window(0)).cells
    if not whole.means.size or not np.isfinite(whole.means).any():
        return None
    numbers = list(whole.ranks.numbers)
    step = _chosen(query.get("step", ""), whole.first_step, _last_step(whole))
    step = _worst_step(source, whole) if step is None else step
    source = source.at(step)
    cells = _window(source, choice, whole, step)
    column = min(max(0, (step - cells.first_step) // cells.width), cells.means.shape[1] - 1)
    rank = _chosen(query.get("rank", ""), 0, max(numbers))
    rank = rank if rank in numbers else numbers[_slowest(cells.means[:, column])]
    cursor = _Cursor(step, rank, tuple(kept))
    lanes = _lanes(source, step, numbers, rank)
    sentence, others = _sentence(source, choice, cells, column, step)
    timeline, title = _timeline(source, step, lanes, rank)
    return RankView(
        step,
        rank,
        sentence,
        others,
        _heat(cells, whole, cursor) if len(numbers) > 1 or choice.node_rank is not None else None,
        _bars(lanes, rank),
        timeline,
        title,
        _recorded(source),
        step_lines(source.attempt.pk, step),
        _moves(cells, cursor, numbers),
    )


def _chosen(text: str, first: int, last: int) -> int | None:
    """Read a number of an address within its range."""
    number = whole_number(text)
    return number if number is not None and first <= number <= last else None


def _last_step(cells: Cells) -> int:
    return cells.first_step + cells.width * int(cells.means.shape[1]) - 1


def _slowest(values: Values) -> int:
    return int(np.nanargmax(values)) if np.isfinite(values).any() else 0


def _excess(values: Values) -> Values:
    """Return by column how much the slowest rank is above the median of all; 0 where nothing was measured."""
    finite = np.isfinite(values)
    measured = finite.any(axis=0)
    excess = np.zeros(values.shape[1])
    if measured.any():
        middles = np.nanmedian(np.where(finite, values, np.nan)[:, measured], axis=0)
        peaks = np.where(finite, values, -np.inf)[:, measured].max(axis=0)
        excess[measured] = np.divide(peaks, middles, out=np.zeros_like(peaks), where=middles > 0)
    return excess


def _worst_step(source: Source, cells: Cells) -> int:
    """Return the step in which a rank is furthest from the others; with a timeline if there is one."""
    warmup = int((source.run.resolved.get("train") or {}).get("warmup_steps") or 0)
    excess = _excess(cells.means)
    steps = [cells.first_step + cells.width * at for at in range(len(excess))]
    recorded = {step for step in _recorded(source) if step > warmup}
    candidates = [at for at, step in enumerate(steps) if step in recorded] or [
        at for at, step in enumerate(steps) if step > warmup
    ]
    return steps[max(candidates or range(len(steps)), key=lambda at: excess[at])]


def _recorded(source: Source) -> list[int]:
    """Return the steps with a timeline, of the attempt that made each of them last."""
    attempts = source.joined.with_ends(source.parts(reads.STEP))
    return sorted(step for attempt, end in attempts for step in steps_of(attempt) if step <= end)


def _window(source: Source, choice: Choice, whole: Cells, step: int) -> Cells:
    """Return single steps around the cursor, or all of a short run."""
    if whole.width == 1 and whole.means.shape[1] <= MAX_COLUMNS:
        return whole
    first = max(whole.first_step, min(step - MAX_COLUMNS // 2, _last_step(whole) - MAX_COLUMNS + 1))
    return reads.reading_of(source, choice, Window(0, first, first + MAX_COLUMNS - 1)).cells


def _heat(cells: Cells, whole: Cells, cursor: _Cursor) -> Heat:
    unit = cells.unit or unit_for([float(np.nanmedian(cells.means))], "s")
    unit = unit._replace(decimals=max(0, 2 - int(math.log10(max(1.0, float(np.nanmax(cells.means)) / unit.factor)))))
    scale = _scale(cells.means)
    steps = [cells.first_step + cells.width * at for at in range(cells.means.shape[1])]
    is_by_node = len(cells.ranks.numbers) > MAX_ROWS and len(cells.ranks.node_names) > 1
    groups = _nodes(cells) if is_by_node else [(number, [row]) for row, number in enumerate(cells.ranks.numbers)]
    rows = [_heat_row(cells, key, members, steps, unit, scale, cursor, is_by_node) for key, members in groups]
    strip = _strip(whole, cursor) if _last_step(whole) - whole.first_step >= MAX_COLUMNS else []
    marks = [(step, step <= cursor.step < step + cells.width) for step in steps]
    return Heat(unit.name, marks, rows, strip, len(steps) <= 24)


def _nodes(cells: Cells) -> list[tuple[int, list[int]]]:
    by_node: dict[int, list[int]] = {}
    for row, node in enumerate(cells.ranks.node_ranks):
        by_node.setdefault(node, []).append(row)
    return list(by_node.items())


def _scale(values: Values) -> tuple[float, float]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return low, max(high, low * _LEAST_RANGE)


def _heat_of(value: float, scale: tuple[float, float]) -> int | None:
    if not np.isfinite(value):
        return None
    low, high = scale
    return min(_HEATS - 1, int(_HEATS * (value - low) / (high - low))) if high > low else 0


def _heat_row(
    cells: Cells,
    key: int,
    members: Sequence[int],
    steps: Sequence[int],
    unit: Unit,
    scale: tuple[float, float],
    cursor: _Cursor,
    is_node: bool,
) -> HeatRow:
    numbers = [cells.ranks.numbers[row] for row in members]
    node = cells.ranks.node_names[cells.ranks.node_ranks[members[0]]] if len(cells.ranks.node_names) > 1 else ""
    drawn = []
    for at, step in enumerate(steps):
        row = members[_slowest(cells.means[list(members), at])]
        value, number = float(cells.means[row, at]), cells.ranks.numbers[row]
        is_column = step <= cursor.step < step + cells.width
        note = f"rank {number}{f' on {node}' if node else ''}, step {step}: {in_column(value, unit)} {unit.name}"
        drawn.append(
            Cell(in_column(value, unit).replace(",", ""), _heat_of(value, scale), cursor.address(step, number), note,
                 is_column and cursor.rank in numbers, is_column)
        )  # fmt: skip
    if not is_node:
        return HeatRow(f"rank {key}", node, drawn, cursor.rank == key)
    kept = [(name, text) for name, text in cursor.query if name != "ranks_of"]
    opened = "?" + urlencode([*kept, ("ranks_of", key), ("step", cursor.step)])
    return HeatRow(node, f"{len(numbers)} ranks", drawn, cursor.rank in numbers, opened)


def _strip(whole: Cells, cursor: _Cursor) -> list[Cell]:
    """Return the slowest rank of each part of a long run; a click moves the cursor there."""
    count = whole.means.shape[1]
    edges = np.linspace(0, count, min(_STRIP, count) + 1).astype(int).tolist()
    peaks = [_peak(whole.means[:, begin:end]) for begin, end in pairwise(edges)]
    scale = _scale(np.array([peaks]))
    cells = []
    for peak, (begin, end) in zip(peaks, pairwise(edges), strict=True):
        first, last = whole.first_step + whole.width * begin, whole.first_step + whole.width * end - 1
        note = f"steps {first} to {last}" if last > first else f"step {first}"
        is_here = first <= cursor.step <= last
        cells.append(Cell("", _heat_of(peak, scale), cursor.address(first, cursor.rank), note, is_here, is_here))
    return cells


def _peak(values: Values) -> float:
    return float(np.nanmax(values)) if np.isfinite(values).any() else math.nan


def _sentence(source: Source, choice: Choice, cells: Cells, column: int, step: int) -> tuple[str, str]:
    """Name the slowest rank of a step, and who waits for it."""
    values = cells.means[:, column]
    if np.isfinite(values).sum() < _FEWEST:
        return f"Step {step} of one rank.", ""
    row = _slowest(values)
    number = cells.ranks.numbers[row]
    middle = float(np.nanmedian(np.delete(values, row)))
    ratio = float(values[row]) / middle if middle else 0.0
    if ratio < _NOTEWORTHY:
        above = significant(100 * max(0.0, ratio - 1), 2)
        return f"No rank stands out at step {step}.", f"The slowest, rank {number}, is {above} % above the others."
    place = f" on {source.layout.node_of(number)}" if len(cells.ranks.node_names) > 1 else ""
    longer = f"{significant(100 * (ratio - 1), 2)} % longer than"
    size = f"{significant(ratio, 2)} × as long as" if ratio >= _TWICE else longer
    waiting = _waiting(cells, number) if choice.measure == reads.WORK else ""
    return f"Rank {number}{place} {_VERBS.get(choice.measure, 'takes')} {size} the others at step {step}.", waiting


def _waiting(cells: Cells, number: int) -> str:
    """Say which ranks wait for the slowest one; empty if they are many."""
    others = [str(other) for other in cells.ranks.numbers if other != number]
    if len(others) > _MAX_WAITING:
        return ""
    if len(others) == 1:
        return f"Rank {others[0]} waits for it."
    return f"Ranks {', '.join(others[:-1])} and {others[-1]} wait for it."


def _lanes(source: Source, step: int, numbers: Sequence[int], rank: int) -> list[Lane]:
    """Return the parts of a step by rank; of many ranks those of the node of the cursor."""
    shown = list(numbers)
    if len(shown) > MAX_ROWS:
        node = source.layout.node_rank_of(rank)
        shown = [number for number in numbers if source.layout.node_rank_of(number) == node][:MAX_ROWS]
    names = {STEP_TIME, *phase_timers(source.metrics)}
    lanes = []
    for number, columns in source.joined.each_rank(names, shown, first_step=step, last_step=step):
        last = {metric: float(points[1][-1]) for metric, points in columns.items() if len(points[1])}
        values = {name: value for name, value in last.items() if math.isfinite(value)}
        total_s = values.pop(STEP_TIME, 0.0)
        timers = {name.removeprefix(TIMER): seconds for name, seconds in values.items()}
        place = source.layout.node_of(number) if len(source.layout.nodes) > 1 else ""
        lanes.append(Lane(number, place, total_s or sum(timers.values()), spans_of(timers, total_s)))
    return lanes


def _height(count: int, tall: float) -> float:
    return tall if count <= 8 else max(10.0, 8 * tall / count)


def _bars(lanes: Sequence[Lane], rank: int) -> Lanes | None:
    longest_s = max((lane.total_s for lane in lanes), default=0.0)
    if not longest_s:
        return None
    unit = unit_for([longest_s], "s")
    height = _height(len(lanes), 28.0)
    rows = [
        LaneRow(lane.rank, lane.node, rank_lanes.lane_bar(lane, longest_s, unit, height), lane.rank == rank)
        for lane in lanes
    ]
    keys = dict.fromkeys((_key(span.fill), span.name) for lane in lanes for span in lane.spans)
    return Lanes(unit.name, rows, rank_lanes.lane_axis(longest_s, unit), list(keys))


def _key(fill: str) -> str:
    """Return the class of the key of a fill: `f1` is `b1` as a background."""
    return fill if fill == HATCHED else f"b{fill.removeprefix('f')}"


def _timeline(source: Source, step: int, lanes: Sequence[Lane], rank: int) -> tuple[Lanes | None, str]:
    measured = measured_timeline(source.run, source.attempt, step) if steps_of(source.attempt) else None
    if measured is None or not measured.bars:
        return None, ""
    by_rank: dict[int, list[Bar]] = {}
    for bar in measured.bars:
        by_rank.setdefault(bar.rank, []).append(bar)
    shown = [lane._replace(bars=by_rank[lane.rank]) for lane in lanes if lane.rank in by_rank]
    unit = unit_for([measured.iteration_s], "s")
    height = _height(len(shown), 44.0)
    rows = [
        LaneRow(lane.rank, lane.node, rank_lanes.lane_timeline(lane, measured.iteration_s, height), lane.rank == rank)
        for lane in shown
    ]
    kinds = {"waiting" if bar.kind.startswith("wait") else bar.kind for bar in measured.bars}
    keys = [(css, name) for css, name in KEYS if name in kinds]
    title = measured.title.partition(", step ")[0]
    return Lanes(unit.name, rows, rank_lanes.lane_axis(measured.iteration_s, unit, 1.0), keys), title


def _moves(cells: Cells, cursor: _Cursor, numbers: Sequence[int]) -> Moves:
    at = numbers.index(cursor.rank)
    return Moves(
        cursor.address(cursor.step - 1, cursor.rank) if cursor.step > cells.first_step else "",
        cursor.address(cursor.step + 1, cursor.rank) if cursor.step < _last_step(cells) else "",
        cursor.address(cursor.step, numbers[at - 1]) if at else "",
        cursor.address(cursor.step, numbers[at + 1]) if at + 1 < len(numbers) else "",
    )
