"""A stream of its own for each rank of a node, so that the lines of ranks never mix.

The supervisor makes a FIFO per rank, named by the global rank. A rank opens its own as standard output and error once
it knows its number: engines when they are imported, other programs through `-m runners.node.launch.ranks COMMAND` or,
under torchrun, `-m runners.supervisor.streams SCRIPT`. A rank without a FIFO, for example one started by hand, keeps
its output.

The data of a killed rank stay in the FIFO until the supervisor has read them. If the supervisor has exited, nothing
reads the FIFO, and writing to it fails like writing to a closed pipe instead of blocking.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
from pathlib import Path
from typing import NamedTuple

from parlab.client.journal import NODE

VARIABLE = "PARLAB_STREAMS"
"""Variable with the directory of the FIFOs."""
DIRECTORY = "streams"
"""Its name in the run directory."""
MAX_RANKS = 256
"""More ranks on one node share the stream of the node: each FIFO takes a descriptor and memory of the kernel."""
READ_BYTES = 256 << 10
_BUFFERS_BYTES = 8 << 20
"""Memory of the FIFOs of a node together; one has 64 KiB to 1 MiB."""


def take(rank: int | None) -> bool:
    """Redirect standard output and error to the stream of a rank; return whether there is one."""
    directory = os.environ.get(VARIABLE, "")
    if not directory or rank is None:
        return False
    try:
        # Opening a FIFO would block while no process reads it.
        stream = os.open(f"{directory}/{rank}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    os.set_blocking(stream, True)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.close(stream)
    return True


def own_rank() -> int | None:
    """Return the rank of this process as torch's launchers name it; None without one."""
    number = os.environ.get("RANK", "")
    return int(number) if number.isascii() and number.isdecimal() else None


class Piece(NamedTuple):
    """Bytes that were read at once from one stream; none at the end of the launcher's output."""

    rank: int
    data: bytes


class Outputs:
    """The outputs of a run on this node: the pipe of its launcher, and a FIFO per rank."""

    def __init__(self, directory: Path, ranks: range, *, has_others: bool = False) -> None:
        """Open everything; without FIFOs (an unusual file system) all ranks share the pipe.

        A run of one rank needs no FIFO; with `has_others` the run has ranks on other nodes.
        """
        self.directory = directory / DIRECTORY
        self._poll = select.poll()
        self._streams: dict[int, int] = {}
        # The run may have put something else in the place of the directory when its files are deleted.
        self._opened, self._names = -1, list[str]()
        reader, self.writer = os.pipe()
        self._add(reader, NODE, 1 << 20)
        self.has_ranks = (0 if has_others else 1) < len(ranks) <= MAX_RANKS and self._make(ranks)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that ranks need to find their streams."""
        return {VARIABLE: str(self.directory)} if self.has_ranks else {}

    @property
    def is_open(self) -> bool:
        return bool(self._streams)

    @property
    def has_launcher(self) -> bool:
        """Whether the pipe of the launcher is still open."""
        return NODE in self._streams.values()

    def has_data(self) -> bool:
        """Return whether there is something to read now."""
        return bool(self._poll.poll(0))

    def read(self, within_s: float) -> list[Piece]:
        """Wait for output and read it: at most one piece per stream. A closed pipe of the launcher ends with b""."""
        pieces = []
        for descriptor, _ in self._poll.poll(within_s * 1e3):
            rank = self._streams[descriptor]
            data = os.read(descriptor, READ_BYTES)
            if not data:
                self._remove(descriptor)
            pieces.append(Piece(rank, data))
        return pieces

    def close(self) -> list[int]:
        """Close everything that is still open; return its ranks."""
        ranks = list(self._streams.values())
        for descriptor in list(self._streams):
            self._remove(descriptor)
        for name in self._names:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._opened)
        return ranks

    def _make(self, ranks: range) -> bool:
        size = max(64 << 10, min(1 << 20, _BUFFERS_BYTES // len(ranks)))
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            self._opened = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            for rank in ranks:
                path = self.directory / str(rank)
                os.mkfifo(path, 0o600)
                self._names.append(str(rank))
                # Also open for writing: a FIFO that the last rank has closed would count as ended.
                self._add(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), rank, size)
        except OSError:
            for descriptor in [stream for stream, rank in self._streams.items() if rank != NODE]:
                self._remove(descriptor)
            return False
        return True

    def _add(self, descriptor: int, rank: int, size: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, size)
        self._streams[descriptor] = rank
        self._poll.register(descriptor, select.POLLIN)

    def _remove(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._streams[descriptor]
        os.close(descriptor)


def main(argv: list[str]) -> None:
    """Replace this process by a Python script whose output is the stream of its rank."""
    take(own_rank())
    python = os.environ.get("PYTHON_EXEC") or sys.executable  # as torchrun chooses it
    os.execv(python, [python, "-u", *argv])


if __name__ == "__main__":
    main(sys.argv[1:])
