"""Files that ranks write into the run directory, and their way into the spool.

A rank writes a file under a hidden name and renames it when it is complete. The supervisor appends it to the spool
piece by piece, so that output waits for at most one piece, and deletes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from parlab.client.journal import MAX_RECORD_BYTES
from runners.supervisor.spool import SpoolWriter

DIRECTORY = "files"
"""Its name in the run directory, which is the working directory of the ranks."""
PIECE_BYTES = MAX_RECORD_BYTES - 1024
_TRACE = re.compile(r"trace-rank(\d{1,7})\.json\.gz")


def trace_name(rank: int) -> str:
    """Return the name of the file with the trace of a rank."""
    return f"trace-rank{rank}.json.gz"


def rank_of(name: str) -> int | None:
    """Return the rank of a trace; None for another name."""
    match = _TRACE.fullmatch(name)
    return int(match[1]) if match else None


class FileFeed:
    """Feeds the files of a run to its spool."""

    def __init__(self, run_directory: Path, spool: SpoolWriter) -> None:
        self._directory = run_directory / DIRECTORY
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._spool = spool
        self._file: BinaryIO | None = None
        self._path = self._directory
        self._offset = self._size = 0

    def turn(self) -> bool:
        """Append the next piece; return whether there was one. Raises OSError if the disk or the limit is full."""
        if self._file is None and not self._open():
            return False
        assert self._file is not None
        self._file.seek(self._offset)
        data = self._file.read(PIECE_BYTES)
        rank = rank_of(self._path.name) or 0
        self._spool.append_file(self._path.name, rank, self._offset, self._size, data)
        self._offset += len(data)
        if self._offset >= self._size or not data:
            self.drop()
        return True

    def drop(self) -> str:
        """Delete the current file, shipped or not; return its name."""
        name = self._path.name
        if self._file is not None:
            self._file.close()
            self._file = None
            self._path.unlink(missing_ok=True)
        return name

    def _open(self) -> bool:
        for path in self._complete():
            try:
                # Not through a link: the run could name a file of the node's user that is not its own.
                self._file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
            except OSError:
                continue
            self._path, self._offset, self._size = path, 0, os.fstat(self._file.fileno()).st_size
            return True
        return False

    def _complete(self) -> Iterator[Path]:
        try:
            names = sorted(os.listdir(self._directory))
        except OSError:
            return
        for name in names:
            if rank_of(name) is not None and (self._directory / name).is_file():
                yield self._directory / name
