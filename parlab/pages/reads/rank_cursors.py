"""Ranks of a run with one cursor (step, rank): heat map, parts and timeline of the step, its lines of the log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from parlab.charts.format import Unit, in_column, significant, unit_for
from parlab.charts.runs import rank_lanes
from parlab.charts.runs.rank_lanes import KEYS, Lane, spans_of
from parlab.charts.runs.timeline import Bar
from parlab.charts.svg import Svg
from parlab.pages.reads import ranks as reads
from parlab.pages.reads.ranks import STEP_TIME, TIMER, Choice, Source
from parlab.pages.reads.timelines import measured_timeline, steps_of
from parlab.publishing.figures.run_curves import phase_timers
from parlab.publishing.figures.windows import Window
from parlab.series import store
from parlab.series.step_lines import StepLine, step_lines

MAX_ROWS = 64
"""More ranks are shown by node."""
MAX_COLUMNS = 32
"""Steps of the heat map; the rest of a long run is in the strip above."""
_STRIP = 120
_HEATS = 6
_NOTEWORTHY = 1.05
"""Below this ratio to the others no rank stands out: step times vary as much."""
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
    """All of the tab."""

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
    step = _chosen(query.get("step", ""), _first_step(source, whole), _last_step(whole))
    step = _worst_step(source, whole) if step is None else step
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
        _heat(source, choice, cells, whole, cursor) if len(numbers) > 1 else None,
        _bars(lanes, rank),
        timeline,
        title,
        steps_of(source.attempt),
        step_lines(source.attempt.pk, step),
        _moves(cells, cursor, numbers),
    )


def _chosen(text: str, first: int, last: int) -> int | None:
    """Read a number of an address within its range."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 and first <= int(text) <= last else None


def _first_step(source: Source, cells: reads.Cells) -> int:
    return cells.first_step


def _last_step(cells: reads.Cells) -> int:
    return cells.first_step + cells.width * cells.means.shape[1] - 1


def _slowest(values: Values) -> int:
    return int(np.nanargmax(values)) if np.isfinite(values).any() else 0


def _excess(values: Values) -> Values:
    """Return by column how much the slowest rank is above the median of all."""
    with np.errstate(all="ignore"):
        middles = np.nanmedian(np.where(np.isfinite(values), values, np.nan), axis=0)
        return np.nan_to_num(
            np.nanmax(np.where(np.isfinite(values), values, -np.inf), axis=0) / middles, nan=0.0, posinf=0.0
        )


def _worst_step(source: Source, cells: reads.Cells) -> int:
    """Return the step in which a rank is furthest from the others; with a timeline if there is one."""
    warmup = int((source.run.resolved.get("train") or {}).get("warmup_steps") or 0)
    excess = _excess(cells.means)
    steps = [cells.first_step + cells.width * at for at in range(len(excess))]
    recorded = {step for step in steps_of(source.attempt) if step > warmup}
    candidates = [at for at, step in enumerate(steps) if step in recorded] or [
        at for at, step in enumerate(steps) if step > warmup
    ]
    return steps[max(candidates or range(len(steps)), key=lambda at: excess[at])]


def _window(source: Source, choice: Choice, whole: reads.Cells, step: int) -> reads.Cells:
    """Return single steps around the cursor, or all of a short run."""
    if whole.width == 1 and whole.means.shape[1] <= MAX_COLUMNS:
        return whole
    first = max(whole.first_step, min(step - MAX_COLUMNS // 2, _last_step(whole) - MAX_COLUMNS + 1))
    return reads.reading_of(source, choice, Window(0, first, first + MAX_COLUMNS - 1)).cells


def _heat(source: Source, choice: Choice, cells: reads.Cells, whole: reads.Cells, cursor: _Cursor) -> Heat:
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


def _nodes(cells: reads.Cells) -> list[tuple[int, list[int]]]:
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
    cells: reads.Cells,
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
        note = f"rank {number}{f' on {node}' if node else ''}, step {step}: {_text(value, unit)} {unit.name}"
        drawn.append(
            Cell(_text(value, unit), _heat_of(value, scale), cursor.address(step, number), note,
                 is_column and cursor.rank in numbers, is_column)
        )  # fmt: skip
    if not is_node:
        return HeatRow(f"rank {key}", node, drawn, cursor.rank == key)
    opened = "?" + urlencode(
        [*((name, text) for name, text in cursor.query if name != "ranks_of"), ("ranks_of", key), ("step", cursor.step)]
    )
    return HeatRow(node, f"{len(numbers)} ranks", drawn, cursor.rank in numbers, opened)


def _text(value: float, unit: Unit) -> str:
    return in_column(value, unit)


def _strip(whole: reads.Cells, cursor: _Cursor) -> list[Cell]:
    """Return the slowest rank of each part of a long run; a click moves the cursor there."""
    count = whole.means.shape[1]
    edges = np.linspace(0, count, min(_STRIP, count) + 1).astype(int)
    peaks = [
        float(np.nanmax(whole.means[:, begin:end])) if np.isfinite(whole.means[:, begin:end]).any() else np.nan
        for begin, end in zip(edges, edges[1:], strict=False)
    ]
    scale = _scale(np.array([peaks]))
    cells = []
    for peak, begin, end in zip(peaks, edges, edges[1:], strict=False):
        first, last = whole.first_step + whole.width * int(begin), whole.first_step + whole.width * int(end) - 1
        note = f"steps {first} to {last}" if last > first else f"step {first}"
        is_here = first <= cursor.step <= last
        cells.append(Cell("", _heat_of(peak, scale), cursor.address(first, cursor.rank), note, is_here, is_here))
    return cells


def _sentence(source: Source, choice: Choice, cells: reads.Cells, column: int, step: int) -> tuple[str, str]:
    """Name the slowest rank of a step, and who waits for it."""
    values = cells.means[:, column]
    if np.isfinite(values).sum() < 2:
        return f"Step {step} of one rank.", ""
    row = _slowest(values)
    number, node = cells.ranks.numbers[row], source.layout.node_of(cells.ranks.numbers[row])
    others = np.delete(values, row)
    middle = float(np.nanmedian(others))
    ratio = float(values[row]) / middle if middle else 0.0
    name = f"Rank {number}{f' on {node}' if len(cells.ranks.node_names) > 1 else ''}"
    verb = "computes" if choice.measure == reads.WORK else "waits" if choice.measure == reads.WAITING else "takes"
    if ratio < _NOTEWORTHY:
        return (
            f"No rank stands out at step {step}.",
            f"The slowest, rank {number}, is {significant(100 * max(0.0, ratio - 1), 2)} % above the others.",
        )
    size = (
        f"{significant(ratio, 2)} × as long as" if ratio >= 2 else f"{significant(100 * (ratio - 1), 2)} % longer than"
    )
    waiting = [str(other) for other in cells.ranks.numbers if other != number]
    who = ""
    if choice.measure == reads.WORK and len(waiting) < 5:
        listed = f"{', '.join(waiting[:-1])} and {waiting[-1]}" if len(waiting) > 1 else waiting[0]
        who = f"Rank{'s' if len(waiting) > 1 else ''} {listed} wait{'' if len(waiting) > 1 else 's'} for it."
    return f"{name} {verb} {size} the others at step {step}.", who


def _lanes(source: Source, step: int, numbers: Sequence[int], rank: int) -> list[Lane]:
    """Return the parts of a step by rank; of many ranks those of the node of the cursor."""
    shown = list(numbers)
    if len(shown) > MAX_ROWS:
        node = source.layout.node_rank_of(rank)
        shown = [number for number in numbers if source.layout.node_rank_of(number) == node][:MAX_ROWS]
    names = {STEP_TIME, *phase_timers(source.metrics)}
    lanes = []
    for number, columns in store.each_rank(source.attempt.pk, names, shown, first_step=step, last_step=step):
        values = {
            name: float(points[1][-1])
            for name, points in columns.items()
            if len(points[1]) and np.isfinite(points[1][-1])
        }
        total_s = values.pop(STEP_TIME, 0.0)
        timers = {name.removeprefix(TIMER): seconds for name, seconds in values.items()}
        node = source.layout.node_of(number) if len(source.layout.nodes) > 1 else ""
        lanes.append(Lane(number, node, total_s or sum(timers.values()), spans_of(timers, total_s)))
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
    keys = dict.fromkeys((span.fill, span.name) for lane in lanes for span in lane.spans)
    marked = [(f"b{fill[1]}" if fill.startswith("f") else fill, name) for fill, name in keys]
    return Lanes(
        unit.name,
        rows,
        rank_lanes.lane_axis(longest_s, unit),
        [("hatched" if css == "b" else css, name) for css, name in marked],
    )


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
    kinds = {bar.kind for bar in measured.bars}
    keys = [
        (css, name)
        for css, name in KEYS
        if name in kinds or (name == "waiting" and any(kind.startswith("wait") for kind in kinds))
    ]
    title = measured.title.partition(", step ")[0]
    return Lanes(unit.name, rows, rank_lanes.lane_axis(measured.iteration_s, unit, 1.0), keys), title


def _moves(cells: reads.Cells, cursor: _Cursor, numbers: Sequence[int]) -> Moves:
    at = numbers.index(cursor.rank)
    return Moves(
        cursor.address(cursor.step - 1, cursor.rank) if cursor.step > cells.first_step else "",
        cursor.address(cursor.step + 1, cursor.rank) if cursor.step < _last_step(cells) else "",
        cursor.address(cursor.step, numbers[at - 1]) if at else "",
        cursor.address(cursor.step, numbers[at + 1]) if at + 1 < len(numbers) else "",
    )
