"""A pyramid beside each series: minima, maxima and means of blocks of points, so that long series are read quickly.

Level 1 divides a series into blocks of 64 points, each further level joins 16 blocks of the level below. A block keeps
its smallest, its largest and its first non-finite point as they were stored, so that peaks and gaps stay exact, and the
mean and number of its finite points. Levels are extended when a chunk of a series is full: what no level covers yet is
read from the chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlab.series.columns import Columns, pack, unpack
from parlab.series.models import SeriesLevel
from parlab.series.statements import Select

BLOCK = 64
"""Points of a block of level 1."""
JOINED = 16
"""Blocks of a level in a block of the next level."""
ROW_BLOCKS = 1_024
"""Blocks of a row of the database; a multiple of JOINED, so that blocks of the next level begin with a row."""

Key = tuple[str, int]


def size_of(level: int) -> int:
    """Return the points of a block of a level; level 0 are the points themselves."""
    return BLOCK * JOINED ** (level - 1) if level else 1


def level_for(points: int, least: int) -> int:
    """Return the highest level at which so many points have at least `least` blocks; 0 if none has."""
    level = 0
    while points // size_of(level + 1) >= least:
        level += 1
    return level


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Consecutive blocks of one level: their points (1 to 4 of each), and their statistics."""

    points: Columns
    sizes: NDArray[np.int64]
    """Number of points kept of each block."""
    means: NDArray[np.float64]
    """Mean of the finite values of each block; NaN if it has none."""
    finite: NDArray[np.int64]
    """Number of finite values of each block."""
    first_steps: NDArray[np.int64]
    """Lowest step of each block."""
    last_steps: NDArray[np.int64]
    """Highest step of each block."""

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, part: slice) -> Blocks:
        """Select consecutive blocks."""
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        first, last, _ = part.indices(len(self))
        points = self.points.take(slice(int(starts[first]), int(starts[max(first, last)])))
        columns = (getattr(self, name)[part] for name in _STATISTICS)
        return Blocks(points, *columns)

    @classmethod
    def joined(cls, pieces: Iterable[Blocks]) -> Blocks:
        parts = list(pieces)
        statistics = (np.concatenate([getattr(part, name) for part in parts]) for name in _STATISTICS)
        return cls(Columns.joined(part.points for part in parts), *statistics)


_STATISTICS = ("sizes", "means", "finite", "first_steps", "last_steps")
_NONE = np.empty(0, np.int64)
_EMPTY = Blocks(Columns.joined([]), _NONE, np.empty(0, np.float64), _NONE, _NONE, _NONE)


def blocks_of(columns: Columns, *, is_start: bool) -> Blocks:
    """Return the blocks of level 1 of points whose number is a multiple of BLOCK.

    The first block of a series (`is_start`) keeps the first point, where a drawn line begins.
    """
    values = columns.values.reshape(-1, BLOCK)
    selected = _selected(values, np.ones(values.shape, np.bool_))
    if is_start:
        selected[0, 0] = True
    finite, steps = np.isfinite(values), columns.steps.reshape(-1, BLOCK)
    return Blocks(
        columns.take(selected.ravel()),
        selected.sum(axis=1),
        _means(np.where(finite, values, 0.0).sum(axis=1), finite.sum(axis=1)),
        finite.sum(axis=1),
        steps.min(axis=1),
        steps.max(axis=1),
    )


def join(blocks: Blocks, *, is_start: bool) -> Blocks:
    """Return the blocks of the next level; the number of blocks is a multiple of JOINED."""
    groups = blocks.sizes.reshape(-1, JOINED).sum(axis=1)
    width = int(groups.max())
    is_point = np.arange(width) < groups[:, None]
    values = np.zeros(is_point.shape)
    values[is_point] = blocks.points.values
    selected = _selected(values, is_point)
    if is_start:
        selected[0, 0] = True
    finite = blocks.finite.reshape(-1, JOINED)
    sums = np.where(finite > 0, blocks.means.reshape(-1, JOINED), 0.0) * finite
    return Blocks(
        blocks.points.take(selected[is_point]),
        selected.sum(axis=1),
        _means(sums.sum(axis=1), finite.sum(axis=1)),
        finite.sum(axis=1),
        blocks.first_steps.reshape(-1, JOINED).min(axis=1),
        blocks.last_steps.reshape(-1, JOINED).max(axis=1),
    )


def _selected(values: NDArray[np.float64], is_point: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the smallest, the largest and the first non-finite point of each row."""
    finite = np.isfinite(values) & is_point
    gaps = is_point & ~finite
    rows = np.arange(len(values))
    selected = np.zeros(values.shape, np.bool_)
    has_finite, has_gap = finite.any(axis=1), gaps.any(axis=1)
    lowest = np.where(finite, values, np.inf).argmin(axis=1)
    highest = np.where(finite, values, -np.inf).argmax(axis=1)
    selected[rows[has_finite], lowest[has_finite]] = True
    selected[rows[has_finite], highest[has_finite]] = True
    selected[rows[has_gap], gaps.argmax(axis=1)[has_gap]] = True
    return selected


def _means(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


# --- writing ---------------------------------------------------------------------------------------------------------


LastRows = Mapping[tuple[str, int, int], SeriesLevel]
"""The last row of each level, by metric, rank and level."""


def last_rows(attempt_id: int, metrics: Collection[str]) -> LastRows:
    """Return the last rows of all levels of the series of some metrics."""
    rows = SeriesLevel.objects.filter(attempt_id=attempt_id, metric__in=metrics, is_last=True)
    return {(row.metric, row.rank, row.level): row for row in rows}


def end_of(row: SeriesLevel | None) -> int:
    """Return the position up to which the level of a row reaches."""
    return row.position + row.blocks * size_of(row.level) if row is not None else 0


def extend(attempt_id: int, series: Mapping[Key, Columns], held: LastRows) -> None:
    """Extend the levels of series by the points that follow the end of level 1, a multiple of BLOCK points."""
    SeriesLevel.objects.bulk_create(
        extended(attempt_id, series, held),
        update_conflicts=True,
        unique_fields=["attempt", "metric", "rank", "level", "position"],
        update_fields=["is_last", "blocks", "first_step", "last_step", *_COLUMNS],
    )


def extended(attempt_id: int, series: Mapping[Key, Columns], held: LastRows) -> list[SeriesLevel]:
    """Return the rows that `extend` changes: the last row of each level, and those after it."""
    changed: list[SeriesLevel] = []
    for (metric, rank), columns in series.items():
        level = 1
        last = held.get((metric, rank, level))
        new = blocks_of(columns, is_start=last is None)
        while len(new):
            tail = _Tail.of(last)
            changed += tail.extended(attempt_id, metric, rank, level, new)
            above = held.get((metric, rank, level + 1))
            # Blocks of this level that the next level does not cover yet, then whole groups of them.
            covered = end_of(above)
            pending = Blocks.joined([tail.blocks.take(slice((covered - tail.position) // size_of(level), None)), new])
            whole = len(pending) // JOINED * JOINED
            new = join(pending.take(slice(0, whole)), is_start=covered == 0) if whole else pending.take(slice(0, 0))
            level, last = level + 1, above
    return changed


_COLUMNS = ("steps", "times", "values", *_STATISTICS)


@dataclass(frozen=True, slots=True, eq=False)
class _Tail:
    """The last row of a level, unpacked."""

    row: SeriesLevel | None
    position: int
    blocks: Blocks

    @classmethod
    def of(cls, row: SeriesLevel | None) -> _Tail:
        return cls(row, row.position if row else 0, unpacked(row) if row else _EMPTY)

    def extended(self, attempt_id: int, metric: str, rank: int, level: int, new: Blocks) -> list[SeriesLevel]:
        """Return the changed rows: the last one, filled up, and those after it."""
        rows: list[SeriesLevel] = []
        position, blocks = self.position, Blocks.joined([self.blocks, new])
        for at in range(0, len(blocks), ROW_BLOCKS):
            part = blocks.take(slice(at, at + ROW_BLOCKS))
            rows.append(
                SeriesLevel(
                    attempt_id=attempt_id,
                    metric=metric,
                    rank=rank,
                    level=level,
                    position=position,
                    is_last=at + ROW_BLOCKS >= len(blocks),
                    blocks=len(part),
                    first_step=int(part.first_steps.min()),
                    last_step=int(part.last_steps.max()),
                    **{name: pack(getattr(part.points, name)) for name in ("steps", "times", "values")},
                    **{name: pack(getattr(part, name)) for name in _STATISTICS},
                )
            )
            position += len(part) * size_of(level)
        return rows


def unpacked(row: SeriesLevel) -> Blocks:
    points = Columns(unpack(row.steps), unpack(row.times), unpack(row.values))
    return Blocks(points, *(unpack(getattr(row, name)) for name in _STATISTICS))


# --- reading ---------------------------------------------------------------------------------------------------------

_read = Select(
    SeriesLevel, ("level", "position", "blocks", "steps", "times", "values", "sizes"), ('"level" DESC', '"position"')
)
_last = Select(SeriesLevel, ("position", "blocks"), ('"position" DESC',), limit=1)
_steps = Select(SeriesLevel, ("position", "first_steps", "last_steps"), ('"position"',))
_SERIES = '"attempt_id" = %s AND "metric" = %s AND "rank" = %s'
_LEVEL = f'{_SERIES} AND "level" = %s'
# SQLite searches two indexes only if each alternative names the series.
_WANTED = f'({_LEVEL} AND "position" < %s AND "position" > %s) OR ({_SERIES} AND "level" < %s AND "is_last")'


def read_points(
    attempt_id: int, metric: str, rank: int, *, level: int, first: int, last: int
) -> tuple[list[Columns], int]:
    """Return the points of all blocks that overlap positions first to last, and the position where they end.

    Where `level` does not reach yet, the lower levels continue; the rest is for the chunks.
    """
    lowest = first - ROW_BLOCKS * size_of(level)
    series = (attempt_id, metric, rank)
    rows = _read(_WANTED, (*series, level, last, lowest, *series, level))
    parts: list[Columns] = []
    at = first
    for row_level, position, blocks, steps, times, values, sizes in rows:
        size = size_of(row_level)
        begin, end = max(0, (at - position) // size), min(blocks, -(-(last - position) // size))
        if begin >= end:
            continue
        points = Columns(unpack(steps), unpack(times), unpack(values))
        if (begin, end) != (0, blocks):
            starts = np.concatenate([[0], np.cumsum(unpack(sizes))])
            points = points.take(slice(int(starts[begin]), int(starts[end])))
        parts.append(points)
        at = position + end * size
    return parts, at


def reach(attempt_id: int, metric: str, rank: int, *, level: int) -> int:
    """Return the position up to which a level reaches."""
    rows = _last(_LEVEL, (attempt_id, metric, rank, level))
    return sum(position + blocks * size_of(level) for position, blocks in rows)


def means(attempt_id: int, metric: str, rank: int, *, level: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the means and the numbers of finite values of all blocks of a level of a series."""
    rows = SeriesLevel.objects.filter(attempt_id=attempt_id, metric=metric, rank=rank, level=level).order_by("position")
    pairs = [(unpack(packed), unpack(counts)) for packed, counts in rows.values_list("means", "finite")]
    if not pairs:
        return np.empty(0, np.float64), np.empty(0, np.int64)
    packed_means, counts = zip(*pairs, strict=True)
    return np.concatenate(packed_means), np.concatenate(counts)


def position_range(
    attempt_id: int,
    metric: str,
    rank: int,
    *,
    level: int,
    first_step: int | None,
    last_step: int | None,
    after: int,
    before: int,
) -> tuple[int, int] | None:
    """Return the positions between which the steps of a range lie, by the blocks of a level; None if none overlaps.

    Only blocks that begin at position `after` or later, and before position `before`, are considered.
    """
    conditions = [_LEVEL, '"position" > %s', '"position" < %s']
    parameters = [attempt_id, metric, rank, level, after - ROW_BLOCKS * size_of(level), before]
    if first_step is not None:
        conditions.append('"last_step" >= %s')
        parameters.append(first_step)
    if last_step is not None:
        conditions.append('"first_step" <= %s')
        parameters.append(last_step)
    packed = _steps(" AND ".join(conditions), parameters)
    size = size_of(level)

    def inside(row: tuple[Any, ...]) -> NDArray[np.int64]:
        position, firsts, lasts = row
        first_steps = unpack(firsts)
        positions: NDArray[np.int64] = position + np.arange(len(first_steps)) * size
        is_inside = (positions >= after) & (positions < before)
        if first_step is not None:
            is_inside &= unpack(lasts) >= first_step
        if last_step is not None:
            is_inside &= first_steps <= last_step
        return positions[is_inside]

    # A wide range has many rows, of which only the outermost matter.
    first = next((blocks for row in packed if len(blocks := inside(row))), None)
    if first is None:
        return None
    last = next(blocks for row in reversed(packed) if len(blocks := inside(row)))
    return int(first[0]), int(last[-1]) + size
