"""Replace series of an attempt by other points, each at once: they are spooled to a file and packed beforehand.

So the transaction that replaces a series only writes rows, and memory holds the packed points of a few series.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import IO, Any, NamedTuple

import numpy as np
from django.db.models import BinaryField, Manager, Model
from numpy.typing import NDArray

from parlab.series import chunks, levels
from parlab.series.chunks import CHUNK_POINTS, Key
from parlab.series.columns import Columns
from parlab.series.models import SeriesChunk, SeriesLevel

_PIECE = 64 * CHUNK_POINTS
"""Points that are packed at once; whole blocks of each level that a row has."""


class _Block(NamedTuple):
    """Points of a series in the file: their number, and where each column begins."""

    points: int
    steps: int
    times: int
    values: int


class Spool:
    """Points of any number of series in a file, in the order in which they were added."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._blocks: dict[Key, list[_Block]] = {}

    @property
    def keys(self) -> Collection[Key]:
        """The series that have points."""
        return self._blocks.keys()

    def count(self, key: Key) -> int:
        """Return the number of points of a series."""
        return sum(block.points for block in self._blocks.get(key, ()))

    def add(self, series: Mapping[Key, Columns]) -> None:
        """Append points; columns that series share are written once."""
        # The caller keeps the arrays alive, so their ids are unique.
        offsets: dict[int, int] = {}
        for key, columns in series.items():
            for column in (columns.steps, columns.times, columns.values):
                if id(column) not in offsets:
                    offsets[id(column)] = self._file.seek(0, 2)
                    self._file.write(column.tobytes())
            places = (offsets[id(column)] for column in (columns.steps, columns.times, columns.values))
            if len(columns):
                self._blocks.setdefault(key, []).append(_Block(len(columns), *places))

    def read(self, key: Key, first: int = 0, last: int | None = None) -> Columns:
        """Return the points of a series from one place up to another."""
        parts, at = [], 0
        for block in self._blocks.get(key, ()):
            begin, end = max(first - at, 0), block.points if last is None else min(block.points, last - at)
            at += block.points
            if begin < end:
                steps = self._column(block.steps, begin, end, np.int64)
                times, values = (self._column(place, begin, end, np.float64) for place in (block.times, block.values))
                parts.append(Columns(steps, times, values))
        return Columns.joined(parts)

    def _column(self, offset: int, begin: int, end: int, kind: type[Any]) -> NDArray[Any]:
        self._file.seek(offset + 8 * begin)
        return np.frombuffer(self._file.read(8 * (end - begin)), kind)


class Packed(NamedTuple):
    """The full chunks of a series and their levels, as rows."""

    chunks: list[SeriesChunk]
    levels: list[SeriesLevel]
    points: int


def packed(attempt_id: int, key: Key, spool: Spool) -> Packed:
    """Pack the full chunks of a series."""
    points = spool.count(key) // CHUNK_POINTS * CHUNK_POINTS
    rows: list[SeriesChunk] = []
    of_levels: dict[tuple[int, int], SeriesLevel] = {}
    last_rows: dict[tuple[str, int, int], SeriesLevel] = {}
    for first in range(0, points, _PIECE):
        columns = spool.read(key, first, min(first + _PIECE, points))
        rows += chunks.full_chunks(attempt_id, key, first, columns)
        for row in levels.extended(attempt_id, {key: columns}, last_rows):
            of_levels[row.level, row.position] = row
            if row.is_last:
                last_rows[(*key, row.level)] = row
    if rows:
        rows[-1].is_last = True
    return Packed(rows, list(of_levels.values()), points)


def replace(attempt_id: int, series: Mapping[Key, Packed]) -> None:
    """Replace series of an attempt by their full chunks, in the caller's transaction."""
    ranks: dict[str, list[int]] = {}
    for metric, rank in series:
        ranks.setdefault(metric, []).append(rank)
    for model in (SeriesChunk, SeriesLevel):
        for metric, metric_ranks in ranks.items():
            model._default_manager.filter(attempt_id=attempt_id, metric=metric, rank__in=metric_ranks).delete()
    SeriesChunk.objects.bulk_create(row for each in series.values() for row in each.chunks)
    SeriesLevel.objects.bulk_create(row for each in series.values() for row in each.levels)


def stored_keys(attempt_id: int) -> Iterable[Key]:
    """Return the series of which an attempt has rows, complete or not."""
    keys: set[Key] = set()
    for model in (SeriesChunk, SeriesLevel):
        keys |= set(model._default_manager.filter(attempt_id=attempt_id).values_list("metric", "rank").distinct())
    return keys


_ROWS_AT_ONCE = 64
_PACKED: dict[type[Model], list[str]] = {
    model: [field.attname for field in model._meta.concrete_fields if isinstance(field, BinaryField)]
    for model in (SeriesChunk, SeriesLevel)
}
"""The columns of a model that are packed."""


class Rows:
    """All rows of new series, packed before there is an attempt that has them; the packed columns wait in a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._rows: list[tuple[SeriesChunk | SeriesLevel, list[tuple[int, int]]]] = []

    def add(self, key: Key, columns: Columns) -> None:
        """Pack a series."""
        for rows in chunks.whole(key, columns):
            for row in rows:
                places = []
                for name in _PACKED[type(row)]:
                    data = getattr(row, name)
                    places.append((self._file.seek(0, 2), len(data)))
                    self._file.write(data)
                    setattr(row, name, b"")
                self._rows.append((row, places))

    def store(self, attempt_id: int) -> None:
        """Give the rows to an attempt without series, in the caller's transaction."""
        for model in (SeriesChunk, SeriesLevel):
            filled = (self._filled(row, places, attempt_id) for row, places in self._rows if type(row) is model)
            manager: Manager[Any] = model._default_manager
            while batch := list(islice(filled, _ROWS_AT_ONCE)):
                manager.bulk_create(batch)

    def _filled(self, row: Model, places: Sequence[tuple[int, int]], attempt_id: int) -> Any:
        result: Any = copy(row)
        result.attempt_id = attempt_id
        for name, (offset, size) in zip(_PACKED[type(result)], places, strict=True):
            self._file.seek(offset)
            setattr(result, name, self._file.read(size))
        return result
