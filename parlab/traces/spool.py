"""Rows of a fixed layout, read in the order of one column, in bounded memory: an external merge sort.

Rows come in any order. RUN_ROWS of them at a time are sorted and written to a temporary file; reading merges these
runs. The order is exact however far apart the rows of a moment are in the file: Kineto writes operations of the
processor first, launches and kernels by buffer, and annotations of the GPU last.
"""

from __future__ import annotations

import os
import struct
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

RUN_ROWS = 1 << 14
BLOCK_ROWS = 1 << 13
Rows = NDArray[Any]
"""Of a structured type."""


class Spool:
    """Rows of a structured type, sorted by one of its columns; rows with the same key are in order of arrival."""

    def __init__(self, layout: np.dtype[Any], key: str, folder: Path | None = None) -> None:
        """`folder` is where rows are written that do not fit into memory; by default that of temporary files."""
        self._layout, self._key, self._folder = layout, key, folder
        self._pack = struct.Struct("<" + "".join(layout[name].char for name in layout.names or ())).pack
        self._buffer = bytearray()
        self._run_bytes = RUN_ROWS * layout.itemsize
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[Any, int, int]] = []
        """(first key, place of the first row in the file, number of rows)."""

    def __len__(self) -> int:
        return sum(count for *_, count in self._runs) + len(self._buffer) // self._layout.itemsize

    def add(self, *values: float) -> None:
        """Add a row. Raises struct.error or OverflowError for a value of a wrong type, and adds nothing."""
        self._buffer += self._pack(*values)
        if len(self._buffer) >= self._run_bytes:
            self._flush()

    def extend(self, rows: Rows) -> None:
        """Add several rows."""
        self._buffer += rows.tobytes()
        if len(self._buffer) >= self._run_bytes:
            self._flush()

    def blocks(self) -> Iterator[Rows]:
        """Yield all rows in order, about BLOCK_ROWS at a time; rows with the same key are in the same block."""
        ready: list[Rows] = []
        for rows in self._merged():
            ready.append(rows)
            if sum(map(len, ready)) >= BLOCK_ROWS:
                yield np.concatenate(ready)
                ready = []
        if ready:
            yield np.concatenate(ready)

    def _flush(self) -> None:
        if self._file is None:
            number, name = tempfile.mkstemp(prefix="parlab-spool-", dir=self._folder)
            os.unlink(name)  # it ends with this object, or with the process
            self._file = os.fdopen(number, "w+b")
            weakref.finalize(self, self._file.close)
        rows = self._sorted(np.frombuffer(bytes(self._buffer), self._layout))
        first = sum(count for *_, count in self._runs)
        self._file.write(rows.tobytes())
        self._file.flush()
        self._runs.append((rows[self._key][0], first, len(rows)))
        self._buffer = bytearray()

    def _sorted(self, rows: Rows) -> Rows:
        keys = np.ascontiguousarray(rows[self._key])
        if (keys[1:] >= keys[:-1]).all():
            return rows
        chosen: Rows = rows[np.argsort(keys, kind="stable")]
        return chosen

    def _merged(self) -> Iterator[Rows]:
        """Yield rows in order: all that come before the first key which more rows of a run may follow."""
        last = self._sorted(np.frombuffer(bytes(self._buffer), self._layout))
        runs = [_Run(place, *run, last[:0], self._file) for place, run in enumerate(self._runs)]
        runs += [_Run(len(runs), last[self._key][0], 0, 0, last)] if len(last) else []
        waiting = sorted(runs, key=lambda run: run.key, reverse=True)
        active: list[_Run] = []
        ahead = BLOCK_ROWS
        while active or waiting:
            for run in active:
                run.hold(max(1, ahead // len(active)))
            first = min((run.rows[self._key][0] for run in active), default=None)
            # A run takes part when the order comes to its first row: runs of a file in order follow each other.
            if waiting and (first is None or waiting[-1].key <= first):
                active.append(waiting.pop())
                active.sort(key=lambda run: run.place)
                continue
            open_keys = [run.rows[self._key][-1] for run in active if run.left] + [run.key for run in waiting[-1:]]
            limit = min(open_keys, default=None)
            rows = np.concatenate([run.take(self._key, limit) for run in active])
            # Without rows all of a run that are in memory have the same key.
            ahead = BLOCK_ROWS if len(rows) else 2 * ahead
            active = [run for run in active if run.left or len(run.rows)]
            if len(rows):
                yield self._sorted(rows)


class _Run:
    """Sorted rows, of which the next ones are in memory."""

    def __init__(self, place: int, key: Any, first: int, left: int, rows: Rows, file: IO[bytes] | None = None) -> None:
        self.place, self.key = place, key
        """Order of arrival, and the key of the first row."""
        self.left = left
        """Number of rows that are not in memory yet."""
        self.rows = rows
        self._file, self._next = file, first

    def hold(self, count: int) -> None:
        """Have the next `count` rows in memory, or all that are left."""
        missing = min(count - len(self.rows), self.left)
        if missing <= 0 or self._file is None:
            return
        size = self.rows.dtype.itemsize
        block = os.pread(self._file.fileno(), missing * size, self._next * size)
        self.rows = np.concatenate([self.rows, np.frombuffer(block, self.rows.dtype)])
        self._next, self.left = self._next + missing, self.left - missing

    def take(self, key: str, limit: Any) -> Rows:
        """Return and release the rows in front of a key; all of them without one."""
        count = len(self.rows) if limit is None else int(np.searchsorted(self.rows[key], limit, side="left"))
        taken, self.rows = self.rows[:count], self.rows[count:]
        return taken
