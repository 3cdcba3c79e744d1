"""Files that ranks write into the run directory, and their way into the spool.

A rank writes a file under a hidden name and renames it when it is complete. The supervisor appends it to the spool
piece by piece, so that output waits for at most one piece, and deletes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from parlab.client.journal import MAX_RECORD_BYTES
from runners.supervisor.spool import SpoolWriter

DIRECTORY = "files"
"""Its name in the run directory, which is the working directory of the ranks."""
PIECE_BYTES = MAX_RECORD_BYTES - 1024
_TRACE = re.compile(r"trace-rank(\d{1,7})\.json\.gz")


def trace_name(rank: int) -> str:
    return f"trace-rank{rank}.json.gz"


def rank_of(name: str) -> int | None:
    """Return the rank of a trace; None for another name."""
    match = _TRACE.fullmatch(name)
    return int(match[1]) if match else None


class FileFeed:
    """Feeds the files of a run to its spool.

    The directory belongs to the code of the run, which may put links and pipes in it, or another directory in its
    place: it is opened once, and a file is read only if it is one of the directory's owner.
    """

    def __init__(self, run_directory: Path, spool: SpoolWriter) -> None:
        path = run_directory / DIRECTORY
        path.mkdir(mode=0o700, exist_ok=True)
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._spool = spool
        self._file: BinaryIO | None = None
        self._name = ""
        self._offset = self._size = 0

    def turn(self) -> bool:
        """Append the next piece; return whether there was one. Raises OSError if the disk or the limit is full."""
        if self._file is None and not self._open():
            return False
        assert self._file is not None
        self._file.seek(self._offset)
        data = self._file.read(PIECE_BYTES)
        self._spool.append_file(self._name, rank_of(self._name) or 0, self._offset, self._size, data)
        self._offset += len(data)
        if self._offset >= self._size or not data:
            self.drop()
        return True

    def drop(self) -> str:
        """Delete the current file, shipped or not; return its name."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)
        return self._name

    def _open(self) -> bool:
        for name in self._complete():
            try:
                # A pipe without a writer would block.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(name, flags, dir_fd=self._directory)
            except OSError:
                continue
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.fstat(self._directory).st_uid:
                os.close(descriptor)
                continue
            self._file = os.fdopen(descriptor, "rb")
            self._name, self._offset, self._size = name, 0, status.st_size
            return True
        return False

    def _complete(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._directory) if rank_of(name) is not None)
        except OSError:
            return []
