"""The chunks of series: append points to the series of any number of attempts with few queries.

Batches of any size produce full chunks of CHUNK_POINTS, each at a multiple of it. Points after the last full one are in
two chunks while a run is active, so that a batch of a few points writes few anew: the last chunk is marked and grows up
to about TAIL_POINTS, then it joins the one before it. One indexed query of the marked rows returns the series of an
attempt and their lengths. Only one writer per attempt is allowed: `ingest.services` locks the row of the attempt.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parlab.series import levels
from parlab.series.columns import Columns, pack, unpack
from parlab.series.models import SeriesChunk, SeriesLevel
from parlab.series.statements import Delete, Select, Upsert, one_of, quoted

CHUNK_POINTS = 4_096
TAIL_POINTS = 256
_NAMED = 500
"""Metrics, and ranks, that one query names; databases limit the number of parameters."""

Key = tuple[str, int]
"""Metric and rank."""
Series = tuple[int, str, int]
"""Attempt, metric and rank."""


class Chunk(NamedTuple):
    """A row of SeriesChunk without its primary key: a batch may have those of 100,000 series."""

    attempt_id: int
    metric: str
    rank: int
    position: int
    is_last: bool
    size: int
    first_step: int
    last_step: int
    steps: bytes | memoryview
    times: bytes | memoryview
    values: bytes | memoryview

    @property
    def series(self) -> Series:
        return self[:3]


# A field of a named tuple cannot be called `count`.
_COLUMNS = tuple("count" if name == "size" else name for name in Chunk._fields)
_KEY = _COLUMNS[:4]
_read = Select(SeriesChunk, _COLUMNS, _KEY)
_write = Upsert(SeriesChunk, _COLUMNS, _KEY)
_remove = Delete(SeriesChunk, _KEY)


def append(attempt_id: int, series: Mapping[Key, Columns]) -> int:
    """Append points to the series of an attempt, {(metric, rank): points}; return the number of points."""
    return append_all({attempt_id: series})


def append_all(by_attempt: Mapping[int, Mapping[Key, Columns]]) -> int:
    """Append points to the series of attempts, {attempt: {(metric, rank): points}}; return the number of points.

    Runs in the caller's transaction: one query reads the last chunks and one statement writes all chunks.
    """
    series = {
        (attempt_id, metric, rank): columns
        for attempt_id, of_attempt in by_attempt.items()
        for (metric, rank), columns in of_attempt.items()
        if len(columns)
    }
    if not series:
        return 0
    last_chunks = {chunk.series: chunk for chunk in _last_chunks(series)}
    bodies = _bodies([last for key, last in last_chunks.items() if key in series and _joins(last, len(series[key]))])
    packer = _Packer()
    chunks = [
        chunk
        for key, columns in series.items()
        for chunk in packer.appended(key, bodies.get(key), last_chunks.get(key), columns)
    ]
    _remove([(*key, last_chunks[key].position) for key in bodies])
    _write(chunks)
    for attempt_id, full in groupby(packer.full, key=lambda pair: pair[0].attempt_id):
        _extend_levels(attempt_id, list(full))
    return sum(len(columns) for columns in series.values())


def _last_chunks(series: Collection[Series]) -> Iterator[Chunk]:
    """Read the last chunks of series, and of others of the same attempts, metrics and ranks."""
    attempts, ranks = {attempt_id for attempt_id, _, _ in series}, {rank for _, _, rank in series}
    metrics = sorted({metric for _, metric, _ in series})
    conditions, parameters = ['"is_last"', one_of("attempt_id", attempts)], [*attempts]
    if len(ranks) <= _NAMED:  # one node of a run of a thousand ranks may have sent these
        conditions.append(one_of("rank", ranks))
        parameters += ranks
    for at in range(0, len(metrics), _NAMED):
        part = metrics[at : at + _NAMED]
        yield from map(Chunk._make, _read(" AND ".join([*conditions, one_of("metric", part)]), [*parameters, *part]))


def _joins(last: Chunk, new: int) -> bool:
    """Return whether the last chunk joins the one before it when so many points are appended."""
    begin = last.position % CHUNK_POINTS
    return begin > 0 and (last.size + new > _tail_points(last) or begin + last.size + new >= CHUNK_POINTS)


def _tail_points(last: Chunk) -> int:
    """Return up to how many points the last chunk of a series grows.

    Attempts differ, so that many runs that print alike do not join theirs in the same transaction.
    """
    return TAIL_POINTS - last.attempt_id % 64 * 2


def _bodies(tails: Sequence[Chunk]) -> dict[Series, Chunk]:
    """Return the chunks before last chunks that join them, by series."""
    bodies = {}
    for at in range(0, len(tails), _NAMED):
        part = tails[at : at + _NAMED]
        keys = [(*tail.series, tail.position // CHUNK_POINTS * CHUNK_POINTS) for tail in part]
        attempts = {attempt_id for attempt_id, *_ in keys}
        rows = _read(
            # Attempts are named twice, or PostgreSQL would plan for all partitions.
            f"{one_of('attempt_id', attempts)} AND ({quoted(_KEY)}) IN"
            f" (VALUES {', '.join(['(%s, %s, %s, %s)'] * len(keys))})",
            [*attempts, *(value for key in keys for value in key)],
        )
        bodies.update({chunk.series: chunk for chunk in map(Chunk._make, rows)})
    return bodies


def _extend_levels(attempt_id: int, full: Sequence[tuple[Chunk, Columns]]) -> None:
    """Add chunks that have just become full to the pyramids of their series."""
    if not full:
        return
    held = levels.last_rows(attempt_id, {chunk.metric for chunk, _ in full})
    new: dict[Key, list[Columns]] = {}
    for chunk, columns in full:
        key = chunk.metric, chunk.rank
        if key not in new:
            # Chunks that were stored before there were levels come first.
            end = levels.end_of(held.get((*key, 1)))
            new[key] = points_between(attempt_id, *key, end, chunk.position)[1] if chunk.position > end else []
        new[key].append(columns)
    levels.extend(attempt_id, {key: Columns.joined(parts) for key, parts in new.items()}, held)


def columns_of(chunk: SeriesChunk) -> Columns:
    return Columns.unpacked(chunk.steps, chunk.times, chunk.values)


def points_between(attempt_id: int, metric: str, rank: int, first: int, last: int) -> tuple[int, list[Columns]]:
    """Return the points of the chunks that overlap positions `first` to `last`, from `first` on, and where they begin.

    They begin after `first` if the chunks before were archived; at `last` if there are none.
    """
    rows = SeriesChunk.objects.filter(
        attempt_id=attempt_id, metric=metric, rank=rank, position__gt=first - CHUNK_POINTS, position__lt=last
    )
    begin, parts = last, []
    for position, *packed in rows.order_by("position").values_list("position", "steps", "times", "values"):
        part = Columns.unpacked(*packed)
        begin = min(begin, max(first, position))
        # A chunk may have been joined by later points since `last` was read.
        parts.append(part.take(slice(max(0, first - position), last - position)))
    return begin, parts


def full_chunks(attempt_id: int, key: Key, position: int, columns: Columns) -> list[SeriesChunk]:
    """Return chunks, none of them the last, of points whose number is a multiple of CHUNK_POINTS."""
    rows = []
    for at in range(0, len(columns), CHUNK_POINTS):
        part = columns.take(slice(at, at + CHUNK_POINTS))
        rows.append(
            SeriesChunk(
                attempt_id=attempt_id,
                metric=key[0],
                rank=key[1],
                position=position + at,
                count=len(part),
                first_step=int(part.steps.min()),
                last_step=int(part.steps.max()),
                steps=pack(part.steps),
                times=pack(part.times),
                values=pack(part.values),
            )
        )
    return rows


def whole(key: Key, columns: Columns) -> tuple[list[SeriesChunk], list[SeriesLevel]]:
    """Return all rows of a series, of no attempt yet: its chunks and its levels."""
    packer = _Packer()
    rows = [
        SeriesChunk(**dict(zip(_COLUMNS, chunk, strict=True)))
        for chunk in packer.appended((0, *key), None, None, columns)
    ]
    full = [points for _, points in packer.full]
    return rows, levels.extended(0, {key: Columns.joined(full)}, {}) if full else []


class _Piece(NamedTuple):
    """The part of a column in one chunk."""

    packed: bytes
    column: NDArray[Any]


class _Packer:
    """Creates the chunks of one append; steps and times that metrics share are packed once."""

    def __init__(self) -> None:
        self._shared: dict[tuple[tuple[bytes, ...], int], list[_Piece]] = {}
        self._ranges: dict[int, tuple[int, int]] = {}
        self.full: list[tuple[Chunk, Columns]] = []
        """The chunks that have become full, with their points."""

    def appended(self, series: Series, body: Chunk | None, last: Chunk | None, new: Columns) -> Iterator[Chunk]:
        """Yield the chunks that change: new points begin a chunk, or continue the last one, joined to `body` if given.

        The caller removes the row of a last chunk that was joined.
        """
        held: list[Chunk] = []
        if last is None:
            position = 0
        elif last.size == CHUNK_POINTS or _is_body(last, len(new)):
            position = last.position + last.size
            yield last._replace(is_last=False)
        else:
            held = [body, last] if body is not None else [last]
            position = held[0].position
        steps = self._pieces_once([chunk.steps for chunk in held], new.steps)
        times = self._pieces_once([chunk.times for chunk in held], new.times)
        values = _pieces([chunk.values for chunk in held], new.values)
        for number, (step, time, value) in enumerate(zip(steps, times, values, strict=True), 1):
            size, is_last, steps_of = len(value.column), number == len(values), self._range(step)
            chunk = Chunk(*series, position, is_last, size, *steps_of, step.packed, time.packed, value.packed)
            position += size
            if size == CHUNK_POINTS:
                self.full.append((chunk, Columns(step.column, time.column, value.column)))
            yield chunk

    def _range(self, step: _Piece) -> tuple[int, int]:
        """Return the first and the last step of a shared piece."""
        if (found := self._ranges.get(id(step))) is None:
            found = self._ranges[id(step)] = int(step.column.min()), int(step.column.max())
        return found

    def _pieces_once(self, held: Sequence[bytes | memoryview], new: NDArray[Any]) -> list[_Piece]:
        # The caller keeps the arrays alive, so their ids are unique.
        key = (tuple(map(bytes, held)), id(new))
        if key not in self._shared:
            self._shared[key] = _pieces(held, new)
        return self._shared[key]


def _is_body(last: Chunk, new: int) -> bool:
    """Return whether so many new points begin a chunk of their own after the last one, which is the first of its block.

    Many points are written together with it instead.
    """
    if last.position % CHUNK_POINTS or new > _tail_points(last):
        return False
    return _tail_points(last) < last.size + new < CHUNK_POINTS


def _pieces(held: Sequence[bytes | memoryview], new: NDArray[Any]) -> list[_Piece]:
    column = np.concatenate([*map(unpack, held), new]) if held else new
    parts = (column[at : at + CHUNK_POINTS] for at in range(0, len(column), CHUNK_POINTS))
    return [_Piece(pack(part), part) for part in parts]
