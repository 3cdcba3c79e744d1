"""The append-only file between a supervisor, which writes it, and the daemon, which reads and ships it.

`parlab.client.journal` defines segments and records; here, the payload of a report is a Report.
"""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from parlab.client.journal import (
    MAX_RECORD_BYTES,
    Kind,
    Writer,
    encode,
    forget,
    last_record,
    read_stretch,
    segment_path,
    segments,
    tail,
)
from runners.wire.protocol import MAX_BATCH_BYTES, FilePiece, Report

__all__ = ["MAX_RECORD_BYTES", "SpoolWriter", "final_report", "forget", "last_report", "read_batch", "segments", "tail"]

RESERVE_BYTES = 256 << 10
MAX_TRACEBACK_CHARS = 32_000

_RESERVE = "reserve"
_FILE = struct.Struct(">IQQB")
"""Rank, offset in the file, size of the file and length of its name, before the name and the bytes."""


class Piece(NamedTuple):
    """The content between two positions of a spool: output first, then reports."""

    output: bytes
    reports: list[Report]
    next_position: int
    stamps: Sequence[tuple[int, float]] = ()
    """(offset in output, Unix time at which the supervisor read it), one per record that has a time."""
    streams: Sequence[tuple[int, int, bool]] = ()
    """(offset in output, rank or NODE, whether it begins inside a line), where another stream begins."""
    files: Sequence[FilePiece] = ()


def read_batch(directory: Path, position: int, max_output_bytes: int = MAX_BATCH_BYTES) -> Piece:
    """Read from a position, as `journal.read_stretch` does, with reports parsed."""
    stretch = read_stretch(directory, position, max_output_bytes)
    reports = [_parse_report(report) for report in stretch.reports]
    files = [_parse_file(payload) for payload in stretch.files]
    return Piece(stretch.output, reports, stretch.next_position, stretch.stamps, stretch.streams, files)


def last_report(directory: Path) -> Report | None:
    """Return the report that ends a spool, if it ends with one."""
    last = last_record(directory)
    return _parse_report(last.payload) if last and last.kind is Kind.REPORT else None


def final_report(directory: Path) -> Report | None:
    """Return the final report of the run, if it has been written."""
    report = last_report(directory)
    return report if report and report.is_final else None


def _parse_report(payload: bytes) -> Report:
    data = json.loads(payload)
    # A run can outlive an upgrade or downgrade of the daemon: unknown fields must not stop its spool.
    return Report.model_validate({key: value for key, value in data.items() if key in Report.model_fields})


def _parse_file(payload: bytes) -> FilePiece:
    rank, offset, size, length = _FILE.unpack_from(payload)
    start = _FILE.size + length
    name = payload[_FILE.size : start].decode()
    return FilePiece(name=name, rank=rank, offset=offset, size=size, data=base64.b64encode(payload[start:]).decode())


def _encode_report(report: Report) -> bytes:
    """Encode a report that fits into the reserve; a very long traceback loses its beginning."""
    report = report.model_copy(update={"traceback": report.traceback[-MAX_TRACEBACK_CHARS:]})
    record = encode(Kind.REPORT, report.model_dump_json().encode())
    if len(record) > RESERVE_BYTES:
        shorter = {"reason": report.reason[:1000], "traceback": report.traceback[-4000:], "environment": {}}
        record = encode(Kind.REPORT, report.model_copy(update=shorter).model_dump_json().encode())
    return record


class SpoolWriter(Writer):
    """Append output and reports; a final report finds room on a full disk."""

    def reserve(self) -> None:
        """Reserve space for the final report, so that a disk that fills up later cannot prevent it."""
        descriptor = os.open(self.directory / _RESERVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        finally:
            os.close(descriptor)

    def append_report(self, report: Report) -> None:
        """Append a report and sync to the disk; a final report uses the reserve if the disk is full."""
        record, position = _encode_report(report), self.position
        try:
            self.append(record)
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

    def append_file(self, name: str, rank: int, offset: int, size: int, data: bytes) -> None:
        """Append a piece of a file. Raises OSError, with nothing written, if the disk or the limit is full."""
        encoded = name.encode()
        self.check_limit(len(data))
        self.append(encode(Kind.FILE, _FILE.pack(rank, offset, size, len(encoded)) + encoded + data))

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
