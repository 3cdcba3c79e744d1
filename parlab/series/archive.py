"""The full chunks of series in Parquet files, on a disk or in object storage, and back; and their removal.

Parts of at most PART_POINTS points of one series are files of their own, so that an archive of any length needs little
memory. What is written is read back and compared before the chunks go. The pyramid, and the last chunk of each series,
stay in the database for ever: figures look the same, and only a part in full detail is read from the archive.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import fsspec  # type: ignore[import-untyped]  # no stubs
import numpy as np
from django.db import transaction
from django.db.models import Min

from parlab.series import levels
from parlab.series.chunks import CHUNK_POINTS, columns_of, full_chunks
from parlab.series.columns import Columns
from parlab.series.models import SeriesArchive, SeriesChunk, SeriesLevel

PART_POINTS = 256 * CHUNK_POINTS
_ROWS = 200
"""Chunks that one transaction removes or brings back, so that writers do not wait."""


class Damaged(Exception):
    """Raised if a file of an archive is missing or not what was written."""


class Part(NamedTuple):
    """A file of an archive: consecutive points of one series."""

    name: str
    metric: str
    rank: int
    position: int
    points: int
    sha256: str


def archive(attempt_id: int, url: str) -> SeriesArchive | None:
    """Move the full chunks of an attempt below a URL (of fsspec); None if there are none.

    With an empty URL they are removed, and only the pyramid stays. Raises Damaged if what was written reads otherwise.
    """
    is_first = not SeriesArchive.objects.filter(attempt_id=attempt_id).exists()
    if not is_first:
        raise ValueError(f"attempt {attempt_id} is archived already; restore it first")
    target = f"{url.rstrip('/')}/attempt-{attempt_id}" if url else ""
    ends = _covered(attempt_id)
    if not ends:
        return None
    parts = [_write(target, key, part) for key, end in ends.items() for part in _parts(attempt_id, key, end)]
    with transaction.atomic():
        row = SeriesArchive.objects.create(
            attempt_id=attempt_id,
            url=target,
            parts=[list(part) for part in parts] if url else [],
            points=sum(part.points for part in parts),
        )
    _remove(attempt_id, ends)
    return row


def _covered(attempt_id: int) -> dict[tuple[str, int], int]:
    """Return up to which position the chunks of each series are in its pyramid, and are not the last."""
    rows = SeriesLevel.objects.filter(attempt_id=attempt_id, level=1, is_last=True)
    reach = {
        (row.metric, row.rank): levels.end_of(row) for row in rows.only("metric", "rank", "position", "blocks", "level")
    }
    last = SeriesChunk.objects.filter(attempt_id=attempt_id, is_last=True).values_list("metric", "rank", "position")
    ends = {(metric, rank): min(position, reach.get((metric, rank), 0)) for metric, rank, position in last}
    return {key: end // CHUNK_POINTS * CHUNK_POINTS for key, end in ends.items() if end >= CHUNK_POINTS}


def _parts(attempt_id: int, key: tuple[str, int], end: int) -> Iterator[tuple[int, Columns]]:
    for first in range(0, end, PART_POINTS):
        rows = SeriesChunk.objects.filter(
            attempt_id=attempt_id, metric=key[0], rank=key[1], position__gte=first,
            position__lt=min(first + PART_POINTS, end),
        )  # fmt: skip
        yield first, Columns.joined(columns_of(chunk) for chunk in rows.order_by("position"))


def _write(target: str, key: tuple[str, int], part: tuple[int, Columns]) -> Part:
    position, columns = part
    if not target:
        return Part("", *key, position, len(columns), "")
    content = _packed(columns)
    digest = sha256(content).hexdigest()
    written = Part(f"{digest[:32]}.parquet", *key, position, len(columns), digest)
    path = f"{target}/{written.name}"
    filesystem, inner = fsspec.core.url_to_fs(path)
    filesystem.makedirs(inner.rpartition("/")[0], exist_ok=True)
    with fsspec.open(path, "wb") as file:
        file.write(content)
    again = _part_columns(target, written)
    if not all(
        np.array_equal(left, right, equal_nan=True) for left, right in zip(again, _arrays(columns), strict=True)
    ):
        raise Damaged(f"{path} is not what was written; check the storage, nothing was removed")
    return written


def _arrays(columns: Columns) -> tuple[Any, Any, Any]:
    return columns.steps, columns.times, columns.values


def _packed(columns: Columns) -> bytes:
    polars = _polars()
    buffer = io.BytesIO()
    frame = polars.DataFrame({"step": columns.steps, "time": columns.times, "value": columns.values}, nan_to_null=False)
    frame.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def _part_columns(target: str, part: Part) -> tuple[Any, Any, Any]:
    path = f"{target}/{part.name}"
    try:
        with fsspec.open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing; bring the files of the archive back") from error
    if sha256(content).hexdigest() != part.sha256:
        raise Damaged(f"{path} is not what was written (its SHA-256 differs); bring it back from a copy")
    frame = _polars().read_parquet(io.BytesIO(content))
    return tuple(frame[name].to_numpy() for name in ("step", "time", "value"))


def _polars() -> Any:
    """Return polars, an optional requirement; raises Damaged with the remedy."""
    try:
        import polars  # optional, 40 MB: only servers that archive need it
    except ImportError as error:
        raise Damaged("archives are Parquet files, which need polars: pip install polars") from error
    return polars


def _remove(attempt_id: int, ends: dict[tuple[str, int], int]) -> None:
    """Remove the chunks before the given positions, the first ones first, in transactions of a few rows."""
    for (metric, rank), end in ends.items():
        rows = SeriesChunk.objects.filter(attempt_id=attempt_id, metric=metric, rank=rank)
        for first in range(0, end, _ROWS * CHUNK_POINTS):
            rows.filter(position__lt=min(first + _ROWS * CHUNK_POINTS, end)).delete()


def restore(attempt_id: int) -> int:
    """Bring the chunks of an attempt back; return the number of points. Raises Damaged, ValueError."""
    row = SeriesArchive.objects.filter(attempt_id=attempt_id).first()
    if row is None:
        raise ValueError(f"attempt {attempt_id} is not archived")
    if not row.url:
        raise ValueError(
            f"the points of attempt {attempt_id} were removed without an archive; only reingest rebuilds them"
        )
    count = 0
    for part in _parts_of(row):
        columns = Columns(*_part_columns(row.url, part))
        rows = full_chunks(attempt_id, (part.metric, part.rank), part.position, columns)
        for first in range(0, len(rows), _ROWS):
            SeriesChunk.objects.bulk_create(rows[first : first + _ROWS], ignore_conflicts=True)
        count += len(columns)
    row.delete()
    return count


def _parts_of(row: SeriesArchive) -> list[Part]:
    return [Part(*part) for part in row.parts]


def points_before(row: SeriesArchive, metric: str, rank: int, first: int, last: int) -> list[Columns]:
    """Return the points of a series from position `first` up to `last`, which are no longer in chunks.

    If they were removed, these are the extremes of blocks of points. Raises Damaged.
    """
    if not row.url:
        return levels.read_points(row.attempt_id, metric, rank, level=1, first=first, last=last)[0]
    pieces = []
    for part in _parts_of(row):
        if (part.metric, part.rank) == (metric, rank) and part.position < last and part.position + part.points > first:
            columns = Columns(*_part_columns(row.url, part))
            pieces.append(columns.take(slice(max(0, first - part.position), max(0, last - part.position))))
    return pieces


def starts(attempt_ids: Collection[int]) -> dict[tuple[int, str, int], int]:
    """Return the position of the first chunk of each series of attempts."""
    rows = SeriesChunk.objects.filter(attempt_id__in=attempt_ids).order_by("attempt_id", "metric", "rank")
    firsts = rows.values_list("attempt_id", "metric", "rank").annotate(first=Min("position"))
    return {(attempt, metric, rank): first for attempt, metric, rank, first in firsts}
