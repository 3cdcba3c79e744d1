"""From the pipes of a run to its spool: split at line ends, look for the reason of the end, wait for a full disk."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections import defaultdict
from typing import NamedTuple

from parlab.client.journal import NODE
from runners.supervisor.spool import MAX_RECORD_BYTES, SpoolWriter
from runners.supervisor.verdict import Evidence
from runners.telemetry import telemetry

SYNC_S = 1.0
RETRY_S = 0.25
WARN_S = 60.0

log = logging.getLogger(__name__)


class LineCutter:
    """Split a stream into records that end at line ends; lines longer than a record are split as well."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.is_at_line_start = True
        """Whether the last record has ended a line."""

    def feed(self, data: bytes, *, is_last: bool = False) -> list[bytes]:
        """Add bytes; return the complete records, and with is_last also the rest."""
        buffer = self._buffer
        buffer += data
        records = []
        while len(buffer) > MAX_RECORD_BYTES:
            end = buffer.rfind(b"\n", 0, MAX_RECORD_BYTES) + 1 or MAX_RECORD_BYTES
            records.append(bytes(buffer[:end]))
            del buffer[:end]
        end = len(buffer) if is_last else buffer.rfind(b"\n") + 1
        if end:
            records.append(bytes(buffer[:end]))
            del buffer[:end]
        if records:
            self.is_at_line_start = records[-1].endswith(b"\n")
        return records


class _Record(NamedTuple):
    """A record that waits to be written."""

    data: bytes
    stamp: float
    rank: int
    is_continued: bool


class Recorder:
    """Write the output of a run; output that cannot be written stays pending and is retried."""

    def __init__(self, spool: SpoolWriter, *, has_streams: bool = False) -> None:
        """`has_streams`: ranks have streams of their own, so each record names the stream that it belongs to."""
        self.spool = spool
        self.evidence = Evidence(socket.gethostname())
        self.has_streams = has_streams
        self._cutters: defaultdict[int, LineCutter] = defaultdict(LineCutter)
        self._pending: list[_Record] = []
        self._blocked_at: float | None = None
        self._error: OSError | None = None
        self._synced_at = self._retry_at = 0.0
        self._has_given_up = False
        self._warned_at = -WARN_S

    @property
    def is_blocked(self) -> bool:
        """Whether output waits for the disk, so that nothing more may be read from the pipe."""
        return bool(self._pending)

    @property
    def blocked_s(self) -> float:
        """Return for how many seconds nothing could be written."""
        return time.monotonic() - self._blocked_at if self._blocked_at is not None else 0.0

    def take(self, data: bytes, *, rank: int = NODE, is_last: bool = False) -> list[bytes]:
        """Add bytes of a stream read now, with is_last the final ones; return the records that are complete."""
        cutter = self._cutters[rank]
        is_continued = not cutter.is_at_line_start
        records = cutter.feed(data, is_last=is_last)
        for record in records:
            self.evidence.see(record)
        self._queue(records, rank, is_continued)
        return records

    def insert(self, lines: bytes, *, rank: int = NODE) -> None:
        """Add lines of the supervisor, unless the stream is in the middle of a very long line."""
        stream = rank if self.has_streams else NODE
        if self._cutters[stream].is_at_line_start and not self._pending:
            self._queue([lines], stream)

    def give_up(self) -> None:
        """Discard pending and all later output, after the disk was full for too long."""
        self._has_given_up = True
        self._pending.clear()

    def write(self) -> None:
        """Write pending output if a retry is due, and sync about once a second."""
        now = time.monotonic()
        try:
            if self._pending and now >= self._retry_at:
                while self._pending:
                    data, stamp, rank, is_continued = self._pending[0]
                    self.spool.append_output(
                        data, stamp, rank=rank if self.has_streams else None, is_continued=is_continued
                    )
                    del self._pending[0]
                self._blocked_at = None
            if now - self._synced_at > SYNC_S:
                self._synced_at = now
                self.spool.sync()
        except OSError as error:
            self._error = error
            self._retry_at = now + RETRY_S
            self._blocked_at = self._blocked_at or now
            # A run may reach its limit many times a second, and the log is on the same disk.
            if now - self._warned_at > WARN_S:
                self._warned_at = now
                log.warning("the run waits: %s", self.disk_reason())

    def disk_reason(self, error: OSError | None = None) -> str:
        """Return the error of the disk, the free space, and the remedy."""
        error = error or self._error or OSError(errno.EIO, os.strerror(errno.EIO))
        path = self.spool.directory
        try:
            free = f"{telemetry.free_bytes(path) / 2**20:,.1f} MiB are free there"
        except OSError:
            free = "the free space there is unknown"
        return (
            f"output cannot be written to {path}: {error.strerror or error}; {free};"
            " free some space, raise PARLAB_SPOOL_LIMIT_MIB if that is the limit, or let the run print less"
        )

    def _queue(self, records: list[bytes], rank: int, is_continued: bool = False) -> None:
        if self._has_given_up:
            return
        now = time.time()
        for record in records:
            self._pending.append(_Record(record, now, rank, is_continued))
            is_continued = not record.endswith(b"\n")
        self.write()
