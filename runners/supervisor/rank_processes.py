"""The processes of the ranks of a node, and which of them have ended while the others go on."""

from __future__ import annotations

import contextlib
import re

import psutil

from runners.telemetry.telemetry import measured

_RANK = re.compile(rb"(?:^|\0)RANK=(\d{1,9})(?:\0|$)")


class RankProcesses:
    """The first process of each rank among the descendants of the calling process.

    `count` is the number of ranks that this node starts; None if unknown.
    """

    def __init__(self, count: int | None) -> None:
        self.count = count
        self._processes: dict[int, psutil.Process] = {}

    def look(self) -> None:
        """Look for ranks that have started since the last call."""
        if self.count is not None and len(self._processes) >= self.count:
            return
        for pid in measured():  # parents come before their children
            with contextlib.suppress(OSError, psutil.Error):
                rank = _rank_of(pid)
                if rank is not None and rank not in self._processes:
                    self._processes[rank] = psutil.Process(pid)

    def ended(self) -> list[int]:
        """Return the ranks that were seen and have ended."""
        return sorted(rank for rank, process in self._processes.items() if not _is_alive(process))


def _rank_of(pid: int) -> int | None:
    with open(f"/proc/{pid}/environ", "rb") as environment:
        match = _RANK.search(environment.read())
    return int(match[1]) if match else None


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
