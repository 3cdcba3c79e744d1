"""The append-only file of records under every spool: segments, checksums, reading and writing.

Only the standard library, and nothing that Python 3.9 lacks: training scripts import it through `parlab.client`.

A spool is a directory of segments, each named by the position of its first byte. A position counts every
byte ever written, headers included, so it stays valid when acknowledged segments are deleted. A record is

    magic (2 bytes) | kind (1) | length of payload (4) | crc32 of kind, length and payload (4) | payload

in network byte order, and never crosses a segment. The payload of stamped output begins with the Unix time at which
the supervisor read it (8 bytes, a double); that of stream output continues with the rank that printed it (4 bytes) and
with whether it begins inside a line (1 byte). The payload of a piece of a file is opaque here. An unreadable record (a
torn tail after a power cut, a damaged sector) ends the readable part, unless a later segment shows that the record will
never be completed: then the reader reports the number of missing bytes and continues at that segment.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Self

MAX_RECORD_BYTES = 256 << 10
SEGMENT_BYTES = 8 << 20

HEADER = struct.Struct(">2sBII")
_CHECKED = struct.Struct(">BI")
NODE = -1
"""Stream of the launcher and the supervisor; ranks have streams of their own."""
_STAMP = struct.Struct(">d")
_STREAM = struct.Struct(">di?")
_MAGIC = b"pl"
_READ_BYTES = 1 << 20
_SUFFIX = ".spool"
# Far above the size of any record: a larger length means damage, and no memory is allocated for it.
_LENGTH_LIMIT = 16 << 20


class Kind(IntEnum):
    OUTPUT = 1
    REPORT = 2
    STAMPED_OUTPUT = 3
    STREAM_OUTPUT = 4
    FILE = 5
    """A piece of a file that the run has written."""


_KINDS = {kind.value: kind for kind in Kind}
_HEADS = {Kind.OUTPUT: 0, Kind.STAMPED_OUTPUT: _STAMP.size, Kind.STREAM_OUTPUT: _STREAM.size}
"""Bytes before the output in the payload."""


class Record(NamedTuple):
    kind: Kind
    payload: bytes
    end: int
    """Offset of its end within its segment."""

    @property
    def output(self) -> bytes:
        """Output of the run in this record; empty for a report."""
        return self.payload[_HEADS[self.kind] :] if self.kind in _HEADS else b""

    @property
    def stamp(self) -> float | None:
        """Unix time at which the supervisor read the output, if it is known."""
        return float(_STAMP.unpack_from(self.payload)[0]) if _HEADS.get(self.kind) else None

    @property
    def stream(self) -> tuple[int, bool]:
        """The rank that printed the output, or NODE, and whether the output begins inside a line."""
        if self.kind is not Kind.STREAM_OUTPUT:
            return NODE, False
        _, rank, is_continued = _STREAM.unpack_from(self.payload)
        return int(rank), bool(is_continued)


class Stretch(NamedTuple):
    """The content between two positions of a spool: output first, then the payloads of reports."""

    output: bytes
    reports: list[bytes]
    next_position: int
    stamps: Sequence[tuple[int, float]] = ()
    """(offset in output, Unix time at which it was read), one per record that has a time."""
    streams: Sequence[tuple[int, int, bool]] = ()
    """(offset in output, rank or NODE, whether it begins inside a line), where another stream begins."""
    files: Sequence[bytes] = ()
    """Payloads of pieces of files."""


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


class _Gathering:
    """What a stretch holds so far."""

    def __init__(self, room: int) -> None:
        self.output, self.reports, self.files = bytearray(), list[bytes](), list[bytes]()
        self.stamps, self.streams = list[tuple[int, float]](), list[tuple[int, int, bool]]()
        self._rank, self._room = NODE, room

    @property
    def is_empty(self) -> bool:
        return not (self.output or self.reports or self.files)

    def has_room(self, record: Record) -> bool:
        """Return whether a record belongs to this stretch: nothing but reports follows a report."""
        if record.kind is Kind.REPORT:
            return True
        return not self.reports and (not (self.output or self.files) or len(record.payload) <= self._room)

    def add(self, record: Record) -> None:
        if record.kind is Kind.REPORT:
            self.reports.append(record.payload)
        elif record.kind is Kind.FILE:
            self.files.append(record.payload)
            self._room -= len(record.payload)
        elif record.kind is Kind.OUTPUT and self._rank == NODE:  # every step that a script logs
            self.output += record.payload
            self._room -= len(record.payload)
        else:
            if (stamp := record.stamp) is not None:
                self.stamps.append((len(self.output), stamp))
            if record.stream[0] != self._rank or (record.stream[1] and not self.output):
                self._rank = record.stream[0]
                self.streams.append((len(self.output), *record.stream))
            self.output += record.output
            self._room -= len(record.output)

    def stretch(self, position: int) -> Stretch:
        return Stretch(bytes(self.output), self.reports, position, self.stamps, self.streams, self.files)


def read_stretch(directory: Path, position: int, max_output_bytes: int) -> Stretch:
    """Read from a position: at most max_output_bytes of output and pieces of files, but at least one whole record.

    Output never follows a report within a stretch, so its order is the order in which it was written.
    `next_position` equals `position` when nothing more can be read yet. Bytes that can never be read any more are
    replaced by one line of output that says so.
    """
    starts = segments(directory)
    gathering = _Gathering(max_output_bytes)
    while starts:
        index = bisect_right(starts, position) - 1
        following = starts[index + 1] if index + 1 < len(starts) else None
        if index >= 0:
            for record in records(segment_path(directory, starts[index]), position - starts[index]):
                if not gathering.has_room(record):
                    return gathering.stretch(position)
                gathering.add(record)
                position = starts[index] + record.end
        if following is None:
            break
        if position != following:
            if not gathering.is_empty:
                break
            return Stretch(_missing(following - position), [], following)
    return gathering.stretch(position)


def forget(directory: Path, position: int) -> None:
    """Delete the segments that end before a position; the last one stays, because it may still be written to."""
    starts = segments(directory)
    for start, end in zip(starts, starts[1:]):
        if end <= position:
            segment_path(directory, start).unlink(missing_ok=True)


def last_record(directory: Path) -> Record | None:
    """Return the last record of a spool."""
    last: Record | None = None
    for start in segments(directory)[-1:]:
        for record in records(segment_path(directory, start), 0):
            last = record
    return last


def records(path: Path, offset: int) -> Iterator[Record]:
    """Read records from an offset; stop at the first incomplete or damaged one."""
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        data, at, needed = b"", 0, HEADER.size
        while True:
            while len(data) - at < needed:
                more = file.read(max(_READ_BYTES, needed))
                if not more:
                    return
                data, at = data[at:] + more, 0
            magic, number, length, checksum = HEADER.unpack_from(data, at)
            kind = _KINDS.get(number)
            if magic != _MAGIC or kind is None or length > _LENGTH_LIMIT:
                return
            end = at + HEADER.size + length
            if end > len(data):
                needed = end - at
                continue
            payload = data[at + HEADER.size : end]
            if zlib.crc32(payload, zlib.crc32(data[at + 2 : at + 7])) != checksum:
                return
            offset += end - at
            at, needed = end, HEADER.size
            yield Record(kind, payload, offset)


def encode(kind: Kind, payload: bytes) -> bytes:
    """Return the record of a payload."""
    checked = _CHECKED.pack(kind, len(payload))
    return b"".join((_MAGIC, checked, zlib.crc32(payload, zlib.crc32(checked)).to_bytes(4, "big"), payload))


def _missing(count: int) -> bytes:
    return f"\n[parlab] {count} bytes of the spool are missing here: damaged or deleted on the node's disk\n".encode()


class Writer:
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
        for record in records(segment_path(directory, self._start), 0):
            self._size = record.end
        self._file = self._open_segment(self._start)
        os.ftruncate(self._file, self._size)
        os.lseek(self._file, self._size, os.SEEK_SET)
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

    def append_output(
        self, data: bytes, stamp: float | None = None, *, rank: int | None = None, is_continued: bool = False
    ) -> None:
        """Append output as one record, with the Unix time at which it was read and the stream that it belongs to.

        Raises OSError, with nothing written, if the disk or the limit is full.
        """
        self.check_limit(len(data))
        if stamp is None:
            self.append(encode(Kind.OUTPUT, data))
        elif rank is not None:
            self.append(encode(Kind.STREAM_OUTPUT, _STREAM.pack(stamp, rank, is_continued) + data))
        else:
            self.append(encode(Kind.STAMPED_OUTPUT, _STAMP.pack(stamp) + data))

    def check_limit(self, count: int) -> None:
        """Raise OSError if so many more bytes exceed the limit."""
        if self.limit_bytes and self.position + count - self._oldest > self.limit_bytes:
            self._oldest = (segments(self.directory) or [self._start])[0]
            if self.position + count - self._oldest > self.limit_bytes:
                limit = f"limit of {self.limit_bytes >> 20} MiB for output that the server has not acknowledged"
                raise OSError(errno.EDQUOT, f"the {limit} is reached (PARLAB_SPOOL_LIMIT_MIB)", str(self.directory))

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

    def append(self, record: bytes) -> None:
        """Append an encoded record, or raise OSError with nothing written."""
        if self._size and self._size + len(record) > self.segment_bytes:
            self.start_segment()
        written = 0
        try:
            while written < len(record):
                written += os.write(self._file, record[written:] if written else record)
        except OSError:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(record)
        self._dirty = True

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
