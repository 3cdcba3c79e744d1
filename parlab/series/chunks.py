"""The chunks of series: append points to the series of any number of attempts with few queries.

The last chunk of a series is marked and grows until it is full, so batches of any size produce full chunks, and one
indexed query of the marked rows returns the series of an attempt and their lengths. Only one writer per attempt is
allowed: `ingest.services` locks the row of the attempt.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parlab.series import levels
from parlab.series.columns import Columns, pack, unpack
from parlab.series.models import SeriesChunk, SeriesLevel
from parlab.series.statements import Upsert

CHUNK_POINTS = 4_096
_NAMED = 500
"""Metrics, and ranks, up to which a query names them; databases limit the number of parameters."""

Key = tuple[str, int]
"""Metric and rank."""


_COLUMNS = (
    *("attempt_id", "metric", "rank", "position"),
    *("is_last", "count", "first_step", "last_step", "steps", "times", "values"),
)
_row = attrgetter(*_COLUMNS)
_write = Upsert(SeriesChunk, _COLUMNS, _COLUMNS[:4])


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
    last_rows = SeriesChunk.objects.filter(attempt_id__in=set(by_attempt), is_last=True)
    metrics, ranks = {metric for _, metric, _ in series}, {rank for _, _, rank in series}
    if len(metrics) <= _NAMED:
        last_rows = last_rows.filter(metric__in=metrics)
        # One node of a run of a thousand ranks has sent these.
        last_rows = last_rows.filter(rank__in=ranks) if len(ranks) <= _NAMED else last_rows
    last_chunks = {(chunk.attempt_id, chunk.metric, chunk.rank): chunk for chunk in last_rows}
    packer = _Packer()
    chunks = [
        chunk
        for (attempt_id, metric, rank), columns in series.items()
        for chunk in packer.chunks(attempt_id, (metric, rank), last_chunks.get((attempt_id, metric, rank)), columns)
    ]
    _write([_row(chunk) for chunk in chunks])
    for attempt_id, full in groupby(packer.full, key=lambda pair: pair[0].attempt_id):
        _extend_levels(attempt_id, list(full))
    return sum(len(columns) for columns in series.values())


def _extend_levels(attempt_id: int, full: Sequence[tuple[SeriesChunk, Columns]]) -> None:
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
    """Return the points of a chunk."""
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
        parts.append(part.take(slice(max(0, first - position), None)))
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
    rows = list(packer.chunks(0, key, None, columns))
    full = [points for _, points in packer.full]
    return rows, levels.extended(0, {key: Columns.joined(full)}, {}) if full else []


class _Piece(NamedTuple):
    """The part of a column in one chunk."""

    packed: bytes
    column: NDArray[Any]


class _Packer:
    """Creates the chunks of one append; steps and times that metrics share are packed once."""

    def __init__(self) -> None:
        self._shared: dict[tuple[bytes, int], list[_Piece]] = {}
        self.full: list[tuple[SeriesChunk, Columns]] = []
        """The chunks that have become full, with their points."""

    def chunks(self, attempt_id: int, key: Key, last: SeriesChunk | None, new: Columns) -> Iterator[SeriesChunk]:
        """Yield the changed chunks: the last chunk, extended or marked as full, and new chunks after it."""
        position, steps, times, values = 0, b"", b"", b""
        if last is not None and last.count < CHUNK_POINTS:
            position, steps, times, values = last.position, bytes(last.steps), bytes(last.times), bytes(last.values)
        elif last is not None:
            position = last.position + last.count
            last.is_last = False
            yield last
        pieces = zip(
            self._pieces_once(steps, new.steps),
            self._pieces_once(times, new.times),
            _pieces(values, new.values),
            strict=True,
        )
        chunk = None
        for step, time, value in pieces:
            if chunk is not None:
                yield chunk
            chunk = SeriesChunk(
                attempt_id=attempt_id,
                metric=key[0],
                rank=key[1],
                position=position,
                is_last=False,
                count=len(value.column),
                first_step=int(step.column.min()),
                last_step=int(step.column.max()),
                steps=step.packed,
                times=time.packed,
                values=value.packed,
            )
            position += chunk.count
            if chunk.count == CHUNK_POINTS:
                self.full.append((chunk, Columns(step.column, time.column, value.column)))
        if chunk is not None:
            chunk.is_last = True
            yield chunk

    def _pieces_once(self, held: bytes, new: NDArray[Any]) -> list[_Piece]:
        # The caller keeps the arrays alive, so their ids are unique.
        key = (held, id(new))
        if key not in self._shared:
            self._shared[key] = _pieces(held, new)
        return self._shared[key]


def _pieces(held: bytes, new: NDArray[Any]) -> list[_Piece]:
    column = np.concatenate([unpack(held), new]) if held else new
    parts = (column[at : at + CHUNK_POINTS] for at in range(0, len(column), CHUNK_POINTS))
    return [_Piece(pack(part), part) for part in parts]
