"""The append-only file between a supervisor, which writes it, and the daemon, which reads and ships it.

A spool is a directory of segments, each named by the position of its first byte. A position counts every
byte ever written, headers included, so it stays valid when acknowledged segments are deleted. A record is

    magic (2 bytes) | kind (1) | length of payload (4) | crc32 of kind, length and payload (4) | payload

in network byte order, and never crosses a segment. An unreadable record (a torn tail after a power cut, a
damaged sector) ends the readable part, unless a later segment shows that the record will never be completed: then
the reader reports the number of missing bytes and continues at that segment.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, Self

from runners.protocol import MAX_BATCH_BYTES, Report

MAX_RECORD_BYTES = 256 << 10
SEGMENT_BYTES = 8 << 20
RESERVE_BYTES = 256 << 10
MAX_TRACEBACK_CHARS = 32_000

_MAGIC = b"pl"
_HEADER = struct.Struct(">2sBII")
_SUFFIX = ".spool"
_RESERVE = "reserve"
# Far above the size of any record: a larger length means damage, and no memory is allocated for it.
_LENGTH_LIMIT = 16 << 20


class Kind(IntEnum):
    OUTPUT = 1
    REPORT = 2


class Record(NamedTuple):
    kind: Kind
    payload: bytes
    end: int
    """Offset of its end within its segment."""


class Piece(NamedTuple):
    """The content between two positions of a spool: output first, then reports."""

    output: bytes
    reports: list[Report]
    next_position: int


def segments(directory: Path) -> list[int]:
    """List the positions at which the spool's segments start, in order."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name[: -len(_SUFFIX)]) for name in names if name.endswith(_SUFFIX))


def segment_path(directory: Path, start: int) -> Path:
    """Return the path of the segment that starts at a position."""
    return directory / f"{start:020d}{_SUFFIX}"


def tail(directory: Path) -> int:
    """Return the position after the last byte, including torn records; it changes when there is more to read."""
    starts = segments(directory)
    if not starts:
        return 0
    with contextlib.suppress(FileNotFoundError):
        return starts[-1] + segment_path(directory, starts[-1]).stat().st_size
    return starts[-1]


def read_batch(directory: Path, position: int, max_output_bytes: int = MAX_BATCH_BYTES) -> Piece:
    """Read from a position: at most max_output_bytes of output, but always at least one whole record if there is one.

    Output never follows a report within a piece, so the order of a piece is the order in which it was written.
    `next_position` equals `position` when nothing more can be read yet. Bytes that can never be read any more are
    replaced by one line of output that says so.
    """
    starts = segments(directory)
    output, reports = bytearray(), list[Report]()
    while starts:
        index = bisect_right(starts, position) - 1
        following = starts[index + 1] if index + 1 < len(starts) else None
        if index >= 0:
            for record in _records(segment_path(directory, starts[index]), position - starts[index]):
                if record.kind is Kind.REPORT:
                    reports.append(_parse_report(record.payload))
                elif reports or (output and len(output) + len(record.payload) > max_output_bytes):
                    return Piece(bytes(output), reports, position)
                else:
                    output += record.payload
                position = starts[index] + record.end
        if following is None:
            break
        if position != following:
            if output or reports:
                break
            return Piece(_missing(following - position), [], following)
    return Piece(bytes(output), reports, position)


def forget(directory: Path, position: int) -> None:
    """Delete the segments that end before a position; the last one stays, because it may still be written to."""
    starts = segments(directory)
    for start, end in itertools.pairwise(starts):
        if end <= position:
            segment_path(directory, start).unlink(missing_ok=True)


def last_report(directory: Path) -> Report | None:
    """Return the report that ends a spool, if it ends with one."""
    starts = segments(directory)
    last: Record | None = None
    for start in starts[-1:]:
        for record in _records(segment_path(directory, start), 0):
            last = record
    return _parse_report(last.payload) if last and last.kind is Kind.REPORT else None


def final_report(directory: Path) -> Report | None:
    """Return the final report of the run, if it has been written."""
    report = last_report(directory)
    return report if report and report.is_final else None


def _records(path: Path, offset: int) -> Iterator[Record]:
    """Read records from an offset; stop at the first incomplete or damaged one."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            magic, kind, length, checksum = _HEADER.unpack(header)
            if magic != _MAGIC or kind not in (Kind.OUTPUT, Kind.REPORT) or length > _LENGTH_LIMIT:
                return
            payload = file.read(length)
            if len(payload) < length or zlib.crc32(payload, zlib.crc32(header[2:7])) != checksum:
                return
            offset += len(header) + length
            yield Record(Kind(kind), payload, offset)


def _encode(kind: Kind, payload: bytes) -> bytes:
    start = _HEADER.pack(_MAGIC, kind, len(payload), 0)
    return _HEADER.pack(_MAGIC, kind, len(payload), zlib.crc32(payload, zlib.crc32(start[2:7]))) + payload


def _parse_report(payload: bytes) -> Report:
    data = json.loads(payload)
    # A run can outlive an upgrade or downgrade of the daemon: unknown fields must not stop its spool.
    return Report.model_validate({key: value for key, value in data.items() if key in Report.model_fields})


def _encode_report(report: Report) -> bytes:
    """Encode a report that fits into the reserve; a very long traceback loses its beginning."""
    report = report.model_copy(update={"traceback": report.traceback[-MAX_TRACEBACK_CHARS:]})
    record = _encode(Kind.REPORT, report.model_dump_json().encode())
    if len(record) > RESERVE_BYTES:
        shorter = {"reason": report.reason[:1000], "traceback": report.traceback[-4000:], "environment": {}}
        record = _encode(Kind.REPORT, report.model_copy(update=shorter).model_dump_json().encode())
    return record


def _missing(count: int) -> bytes:
    return f"\n[parlab] {count} bytes of the spool are missing here: damaged or deleted on the node's disk\n".encode()


class SpoolWriter:
    """Append records; one writer at a time. Opening it truncates a torn tail that a killed writer left."""

    def __init__(self, directory: Path, *, limit_bytes: int | None = None, at_least: int = 0) -> None:
        """Open or create a spool; starts a new segment at `at_least` if the readable part ends before it."""
        self.directory = directory
        self.limit_bytes = limit_bytes
        self.segment_bytes = min(SEGMENT_BYTES, limit_bytes // 4) if limit_bytes else SEGMENT_BYTES
        self._dirty = False
        directory.mkdir(exist_ok=True)
        starts = segments(directory) or [0]
        self._start, self._size = starts[-1], 0
        for record in _records(segment_path(directory, self._start), 0):
            self._size = record.end
        self._file = self._open_segment(self._start)
        os.ftruncate(self._file, self._size)
        if self.position < at_least:
            self._next_segment(at_least)
        self._oldest = starts[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def position(self) -> int:
        """Position of the next record."""
        return self._start + self._size

    def reserve(self) -> None:
        """Reserve space for the final report, so that a disk that fills up later cannot prevent it."""
        descriptor = os.open(self.directory / _RESERVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        finally:
            os.close(descriptor)

    def append_output(self, data: bytes) -> None:
        """Append output as one record; raises OSError, with nothing written, if the disk or the limit is full."""
        if self.limit_bytes and self.position + len(data) - self._oldest > self.limit_bytes:
            self._oldest = (segments(self.directory) or [self._start])[0]
            if self.position + len(data) - self._oldest > self.limit_bytes:
                limit = f"limit of {self.limit_bytes >> 20} MiB for output that the server has not acknowledged"
                raise OSError(errno.EDQUOT, f"the {limit} is reached (PARLAB_SPOOL_LIMIT_MIB)", str(self.directory))
        self._append(_encode(Kind.OUTPUT, data))

    def append_report(self, report: Report) -> None:
        """Append a report and sync to the disk; a final report uses the reserve if the disk is full."""
        record, position = _encode_report(report), self.position
        try:
            self._append(record)
            self.sync()
        except OSError:
            if not report.is_final or not (self.directory / _RESERVE).exists():
                raise
            # The record may be complete, and only the sync have failed: count it once.
            self._size = max(0, position - self._start)
            os.ftruncate(self._file, self._size)
            self._append_in_reserve(record)
        if report.is_final:
            (self.directory / _RESERVE).unlink(missing_ok=True)

    def start_segment(self) -> None:
        """Start a new segment with the next record."""
        if self._size:
            self.sync()
            self._next_segment(self.position)

    def sync(self) -> None:
        """Sync to the disk."""
        if self._dirty:
            os.fdatasync(self._file)
            self._dirty = False

    def close(self) -> None:
        """Sync to the disk and close."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def _append(self, record: bytes) -> None:
        if self._size and self._size + len(record) > self.segment_bytes:
            self.start_segment()
        written = 0
        try:
            while written < len(record):
                written += os.pwrite(self._file, record[written:], self._size + written)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(record)
        self._dirty = True

    def _append_in_reserve(self, record: bytes) -> None:
        """Write a record into the reserved blocks and make them the next segment."""
        path = self.directory / _RESERVE
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.pwrite(descriptor, record, 0)
        os.ftruncate(descriptor, len(record))
        os.fdatasync(descriptor)
        position = self.position
        path.rename(segment_path(self.directory, position))
        os.close(self._file)
        self._file, self._start, self._size, self._dirty = descriptor, position, len(record), False

    def _next_segment(self, start: int) -> None:
        descriptor = self._open_segment(start)
        os.close(self._file)
        self._file, self._start, self._size = descriptor, start, 0

    def _open_segment(self, start: int) -> int:
        descriptor = os.open(segment_path(self.directory, start), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        directory = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return descriptor
