"""From the pipe of a run to its spool: split at line ends, look for the reason of the end, wait for a full disk."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time

from runners import telemetry
from runners.spool import MAX_RECORD_BYTES, SpoolWriter
from runners.verdict import Evidence

SYNC_S = 1.0
RETRY_S = 0.25
WARN_S = 60.0

log = logging.getLogger(__name__)


class LineCutter:
    """Split a stream into records that end at line ends; lines longer than a record are split as well."""

    def __init__(self) -> None:
        self._buffer = bytearray()

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
        return records


class Recorder:
    """Write the output of a run; output that cannot be written stays pending and is retried."""

    def __init__(self, spool: SpoolWriter) -> None:
        self.spool = spool
        self.evidence = Evidence(socket.gethostname())
        self._cutter = LineCutter()
        self._pending: list[tuple[bytes, float]] = []
        self._is_at_line_start = True
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

    def take(self, data: bytes, *, is_last: bool = False) -> list[bytes]:
        """Add bytes read from the pipe now, with is_last the final ones; return the records that are complete."""
        records = self._cutter.feed(data, is_last=is_last)
        for record in records:
            self.evidence.see(record)
        self._queue(records)
        return records

    def insert(self, lines: bytes) -> None:
        """Add lines of the supervisor, unless the run is in the middle of a very long line."""
        if self._is_at_line_start and not self._pending:
            self._queue([lines])

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
                    self.spool.append_output(*self._pending[0])
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

    def _queue(self, records: list[bytes]) -> None:
        if records:
            self._is_at_line_start = records[-1].endswith(b"\n")
        if not self._has_given_up:
            now = time.time()
            self._pending += [(record, now) for record in records]
            self.write()
