"""Series of numbers over time: append, read, downsample. A row stores up to CHUNK_POINTS points of one series."""

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from django.db.models import Max, Min, QuerySet
from numpy.typing import NDArray

from parlab.series import archive, levels
from parlab.series.chunks import CHUNK_POINTS, Key, append, append_all, points_between
from parlab.series.columns import Columns, unpack
from parlab.series.models import SeriesArchive, SeriesChunk, SeriesLevel
from parlab.series.statements import Select, one_of

__all__ = ["CHUNK_POINTS", "Columns", "Key", "append", "append_all"]

log = logging.getLogger(__name__)

_SHARED = 64
"""Unpacked columns that are held for the series that share them."""


class SeriesInfo(NamedTuple):
    """Name and length of one series of an attempt."""

    metric: str
    rank: int
    points: int


def read(
    attempt_id: int,
    metric: str,
    *,
    rank: int,
    max_points: int | None = None,
    first_step: int | None = None,
    last_step: int | None = None,
) -> Columns:
    """Return the series of one rank as `read_ranks` does, empty if there is none."""
    steps = {"first_step": first_step, "last_step": last_step}
    return read_ranks(attempt_id, metric, rank=rank, max_points=max_points, **steps).get(rank, Columns.joined([]))


def read_ranks(
    attempt_id: int,
    metric: str,
    *,
    rank: int | None = None,
    max_points: int | None = None,
    first_step: int | None = None,
    last_step: int | None = None,
) -> dict[int, Columns]:
    """Return the series of all ranks, or of one, as {rank: columns}.

    Only chunks that overlap first_step to last_step (inclusive) are unpacked. More than max_points points per rank are
    downsampled by `Columns.thinned`, of a long series from the levels of its pyramid.
    """
    if max_points is None:
        series = read_many([attempt_id], [metric], rank=rank, first_step=first_step, last_step=last_step)
    else:
        parts = read_parts([attempt_id], [metric], max_points, rank=rank, first_step=first_step, last_step=last_step)
        series = {key: part.columns.thinned(max_points) for key, part in parts.items()}
    return {series_rank: columns for (_, _, series_rank), columns in series.items()}


class Part(NamedTuple):
    """A part of a series in at least the detail that was requested."""

    columns: Columns
    is_whole: bool
    """Whether these are all points of the part; else they are the minima, maxima and gaps of blocks of points."""


def read_parts(
    attempt_ids: Collection[int],
    metrics: Collection[str] | None,
    least: int,
    *,
    rank: int | None = None,
    first_step: int | None = None,
    last_step: int | None = None,
) -> dict[tuple[int, str, int], Part]:
    """Return series like `read_many`, long ones from the highest level that has `least` blocks within the steps."""
    if not attempt_ids or (metrics is not None and not metrics):
        return {}
    conditions = ['"is_last"', one_of("attempt_id", attempt_ids)]
    parameters: list[int | str] = [*attempt_ids]
    if metrics is not None:
        conditions.append(one_of("metric", metrics))
        parameters += metrics
    if rank is not None:
        conditions.append('"rank" = %s')
        parameters.append(rank)
    parts = {}
    for row in _last_chunks(" AND ".join(conditions), parameters):
        last = _Last(*row)
        part = _part(last, least, first_step, last_step)
        if len(part.columns):
            parts[last.key] = part
    return parts


@dataclass(frozen=True, slots=True)
class _Last:
    """The last chunk of a series."""

    attempt_id: int
    metric: str
    rank: int
    position: int
    count: int
    steps: bytes
    times: bytes
    values: bytes

    @property
    def key(self) -> tuple[int, str, int]:
        return self.attempt_id, self.metric, self.rank

    @property
    def columns(self) -> Columns:
        return Columns.unpacked(self.steps, self.times, self.values)


_last_chunks = Select(SeriesChunk, tuple(field.name for field in fields(_Last)), ('"attempt_id"', '"metric"', '"rank"'))


def _part(last: _Last, least: int, first_step: int | None, last_step: int | None) -> Part:
    """Read one series, whose last chunk is known, in the detail that its part within the steps needs."""
    key = last.key
    first, end = 0, last.position + last.count
    level = levels.level_for(last.position, least)
    if level and (first_step, last_step) != (None, None):
        first, end, level = _narrowed(key, end, level, least, first_step, last_step)
    pieces, at = levels.read_points(*key, level=level, first=first, last=end) if level else ([], first)
    is_whole = not level
    if at < min(end, last.position):
        raw, is_raw_whole = _raw(key, at, min(end, last.position))
        pieces, is_whole = pieces + raw, is_whole and is_raw_whole
    if end > last.position:
        pieces.append(last.columns.take(slice(max(0, at - last.position), None)))
    return Part(_between(Columns.joined(pieces), first_step, last_step), is_whole=is_whole)


def _raw(key: tuple[int, str, int], first: int, last: int) -> tuple[list[Columns], bool]:
    """Return the points between positions, from chunks and archive, and whether these are all of them.

    Where the archive cannot be read, the pyramid stands in for it.
    """
    begin, pieces = points_between(*key, first, last)
    row = SeriesArchive.objects.filter(attempt_id=key[0]).first() if begin > first else None
    if row is None:
        return pieces, True
    try:
        return [*archive.points_before(row, *key[1:], first, begin), *pieces], bool(row.url)
    except (archive.Damaged, OSError) as error:
        log.warning("the archived points of %s of attempt %d are shown in less detail: %s", key[1], key[0], error)
        return [*levels.read_points(*key, level=1, first=first, last=begin)[0], *pieces], False


def _narrowed(
    key: tuple[int, str, int], end: int, level: int, least: int, first_step: int | None, last_step: int | None
) -> tuple[int, int, int]:
    """Return the positions between which the steps lie, and the level that shows them in enough detail."""
    first, last = 0, end
    while level:
        covered = levels.position_range(
            *key, level=level, first_step=first_step, last_step=last_step, after=first, before=last
        )
        reach = levels.reach(*key, level=level)
        rest = SeriesChunk.objects.filter(attempt_id=key[0], metric=key[1], rank=key[2])
        is_in_rest = _with_steps(rest.filter(position__gt=reach - CHUNK_POINTS), first_step, last_step).exists()
        if not is_in_rest and level > 1:  # chunks after the last block of the level may be archived
            tail = levels.position_range(
                *key, level=1, first_step=first_step, last_step=last_step, after=reach, before=end
            )
            is_in_rest = tail is not None
        first = covered[0] if covered else reach
        last = end if is_in_rest else covered[1] if covered else first
        if (finer := levels.level_for(last - first, least)) == level:
            break
        # The ends are known to a block of the level: look again where blocks are smaller.
        level = finer
    return first, last, level


def _with_steps(chunks: QuerySet[SeriesChunk], first_step: int | None, last_step: int | None) -> QuerySet[SeriesChunk]:
    """Select the chunks that overlap a range of steps."""
    if first_step is not None:
        chunks = chunks.filter(last_step__gte=first_step)
    return chunks if last_step is None else chunks.filter(first_step__lte=last_step)


def read_many(
    attempt_ids: Collection[int],
    metrics: Collection[str] | None = None,
    *,
    rank: int | None = None,
    first_step: int | None = None,
    last_step: int | None = None,
) -> dict[tuple[int, str, int], Columns]:
    """Return series of several attempts with one query: {(attempt, metric, rank): columns}; all if metrics is None.

    Archived points are read from their files; raises archive.Damaged if that fails. Of removed points these are the
    extremes of blocks.
    """
    chunks = SeriesChunk.objects.filter(attempt_id__in=attempt_ids)
    if metrics is not None:
        chunks = chunks.filter(metric__in=metrics)
    if rank is not None:
        chunks = chunks.filter(rank=rank)
    rows = (
        _with_steps(chunks, first_step, last_step)
        .order_by("attempt_id", "metric", "rank", "position")
        .values_list("attempt_id", "metric", "rank", "position", "steps", "times", "values")
    )
    series, is_cut = {}, False
    for key, group in groupby(rows.iterator(chunk_size=256), key=lambda row: row[:3]):
        chunks_of_series = list(group)
        is_cut |= chunks_of_series[0][3] > 0
        columns = Columns.joined(Columns(unpack(row[4]), unpack(row[5]), unpack(row[6])) for row in chunks_of_series)
        series[key] = _between(columns, first_step, last_step)
    if is_cut or not series:
        # The first chunk is archived, or before these steps, or there is none.
        before = _archived(attempt_ids, metrics, rank)
        for key, archived in before.items():
            part = _between(archived, first_step, last_step)
            series[key] = Columns.joined([part, series[key]]) if key in series else part
    return {key: columns for key, columns in series.items() if len(columns)}


def _archived(
    attempt_ids: Collection[int], metrics: Collection[str] | None, rank: int | None
) -> dict[tuple[int, str, int], Columns]:
    """Return the points of series before their first chunks; raises archive.Damaged."""
    rows = {row.attempt_id: row for row in SeriesArchive.objects.filter(attempt_id__in=attempt_ids)}
    if not rows:
        return {}
    return {
        (attempt, metric, series_rank): Columns.joined(
            archive.points_before(rows[attempt], metric, series_rank, 0, start)
        )
        for (attempt, metric, series_rank), start in archive.starts(rows).items()
        if start and (metrics is None or metric in metrics) and (rank is None or series_rank == rank)
    }


def extent(attempt_id: int, metrics: Collection[str], ranks: Collection[int]) -> tuple[int, int] | None:
    """Return the first and the last step of series of an attempt; None without points."""
    chunks = SeriesChunk.objects.filter(attempt_id=attempt_id, metric__in=metrics, rank__in=ranks)
    steps = chunks.aggregate(first=Min("first_step"), last=Max("last_step"), start=Min("position"))
    if steps["first"] is None:
        return None
    if steps["start"]:
        rows = SeriesLevel.objects.filter(attempt_id=attempt_id, metric__in=metrics, rank__in=ranks, level=1)
        steps = {"first": steps["first"], "last": steps["last"]} | {
            name: value for name, value in rows.aggregate(first=Min("first_step")).items() if value is not None
        }
    return steps["first"], steps["last"]


def each_rank(
    attempt_id: int, metrics: Collection[str], ranks: Collection[int], *, first_step: int, last_step: int
) -> Iterator[tuple[int, dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]]]:
    """Yield rank by rank {metric: (steps, values)}, so that thousands of ranks need little memory."""
    if SeriesArchive.objects.filter(attempt_id=attempt_id).exists():
        for rank in sorted(ranks):
            whole = read_many([attempt_id], metrics, rank=rank, first_step=first_step, last_step=last_step)
            if whole:
                yield rank, {key[1]: (columns.steps, columns.values) for key, columns in whole.items()}
        return
    chunks = SeriesChunk.objects.filter(attempt_id=attempt_id, metric__in=metrics, rank__in=ranks)
    chunks = chunks.filter(last_step__gte=first_step, first_step__lte=last_step)
    rows = chunks.order_by("rank", "metric", "position").values_list("rank", "metric", "steps", "values")
    shared = _Unpacked()
    for rank, of_rank in groupby(rows.iterator(chunk_size=256), key=lambda row: row[0]):
        series = {}
        for metric, group in groupby(of_rank, key=lambda row: row[1]):
            parts = [(shared(row[2]), unpack(row[3])) for row in group]
            steps = np.concatenate([part[0] for part in parts]) if len(parts) > 1 else parts[0][0]
            values = np.concatenate([part[1] for part in parts]) if len(parts) > 1 else parts[0][1]
            inside = (steps >= first_step) & (steps <= last_step)
            if inside.any():
                series[metric] = (steps, values) if inside.all() else (steps[inside], values[inside])
        yield rank, series


class _Unpacked:
    """Unpacks columns that many series share once."""

    def __init__(self) -> None:
        self._columns: dict[bytes, NDArray[Any]] = {}

    def __call__(self, packed: bytes | memoryview) -> NDArray[Any]:
        key = bytes(packed)
        if key not in self._columns:
            if len(self._columns) > _SHARED:
                self._columns.clear()
            self._columns[key] = unpack(key)
        return self._columns[key]


def _between(columns: Columns, first_step: int | None, last_step: int | None) -> Columns:
    if first_step is None and last_step is None:
        return columns
    selected = np.ones(len(columns), np.bool_)
    if first_step is not None:
        selected &= columns.steps >= first_step
    if last_step is not None:
        selected &= columns.steps <= last_step
    return columns.take(selected)


def metrics(attempt_id: int) -> list[SeriesInfo]:
    """Return the series of an attempt, sorted by name and rank."""
    rows = SeriesChunk.objects.filter(attempt_id=attempt_id, is_last=True).order_by("metric", "rank")
    return [
        SeriesInfo(metric, rank, position + count)
        for metric, rank, position, count in rows.values_list("metric", "rank", "position", "count")
    ]


def metric_names(attempt_ids: Collection[int]) -> dict[int, set[str]]:
    """Return the names of the series of attempts, read from the index alone: a run may have thousands of ranks."""
    rows = SeriesChunk.objects.filter(attempt_id__in=attempt_ids, is_last=True).order_by("attempt_id", "metric")
    names: dict[int, set[str]] = {attempt_id: set() for attempt_id in attempt_ids}
    for attempt_id, metric in rows.values_list("attempt_id", "metric").distinct():
        names[attempt_id].add(metric)
    return names


def has_metric(attempt_ids: Collection[int], metric: str) -> bool:
    return SeriesChunk.objects.filter(attempt_id__in=attempt_ids, metric=metric, is_last=True).exists()


def latest(attempt_ids: Collection[int], metrics: Collection[str]) -> dict[tuple[int, str, int], float]:
    """Return the last value of each series, {(attempt, metric, rank): value}, with one query."""
    rows = SeriesChunk.objects.filter(attempt_id__in=attempt_ids, metric__in=metrics, is_last=True)
    last_values = rows.values_list("attempt_id", "metric", "rank", "values")
    return {(attempt, metric, rank): float(unpack(values)[-1]) for attempt, metric, rank, values in last_values}


def delete(attempt_id: int, keys: Collection[Key] | None = None) -> None:
    """Delete the given series of an attempt, or all, to rebuild them from its log.

    Archived series come back first, or are lost with their archive if all go; raises archive.Damaged.
    """
    archived = SeriesArchive.objects.filter(attempt_id=attempt_id)
    if keys is None:
        archived.delete()
    elif archived.exclude(url="").exists():
        archive.restore(attempt_id)
    ranks: dict[str, list[int]] = {}
    for metric, rank in keys or ():
        ranks.setdefault(metric, []).append(rank)
    for rows in (SeriesChunk.objects.filter(attempt_id=attempt_id), SeriesLevel.objects.filter(attempt_id=attempt_id)):
        if keys is None:
            rows.delete()
        for metric, metric_ranks in ranks.items():
            rows.filter(metric=metric, rank__in=metric_ranks).delete()
