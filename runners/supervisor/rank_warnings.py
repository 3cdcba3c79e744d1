"""Warning the ranks of a run ahead of its end, so that they write a checkpoint and end by themselves."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from runners.supervisor import processes

AGAIN_S = 1.0
"""Seconds between two looks for ranks that did not handle the signal before: they were still starting."""


def rank_processes(running: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the first process of each rank among these; without ranks, the first processes.

    A launcher and what it starts on the way to a rank are left out. Parents come before their children.
    """
    ranks: dict[str, psutil.Process] = {}
    for process in running:
        with contextlib.suppress(psutil.Error, OSError):
            if rank := process.environ().get("RANK"):
                ranks.setdefault(rank, process)
    return list(ranks.values()) or list(running)


def launchers(running: Sequence[psutil.Process]) -> set[int]:
    """Return the processes that lead to ranks: they end by themselves once their ranks have ended."""
    above = set[int]()
    ranks = rank_processes(running)
    if len(ranks) == len(running):
        return above
    for rank in ranks:
        with contextlib.suppress(psutil.Error):
            above |= {parent.pid for parent in rank.parents()}
    return above & {process.pid for process in running}


class RankWarning:
    """One warning, which is sent again to ranks that were not ready for it."""

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.at = now
        self._number = signal.Signals[name]
        self._told = set[int]()
        self._next_at = now

    def turn(self, now: float) -> int:
        """Send the signal to each rank that handles it and has not got it; return the number of ranks that got it."""
        if now >= self._next_at:
            self._next_at = now + AGAIN_S
            for process in self._handling():
                if process.pid not in self._told:
                    self._told.add(process.pid)
                    processes.signal_all([process], self._number)
        return len(self._told)

    def _handling(self) -> list[psutil.Process]:
        """Return for each rank its first process that handles the signal, which would end the others."""
        running = processes.descendants()
        handling = [process for process in running if processes.catches(process.pid, self._number)]
        firsts = rank_processes(handling)
        if any("RANK" in _environment(process) for process in firsts):
            return firsts
        pids = {process.pid for process in handling}
        return [process for process in handling if not _parents(process) & pids]


def _environment(process: psutil.Process) -> Mapping[str, Any]:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ()
    return {}


def _parents(process: psutil.Process) -> set[int]:
    with contextlib.suppress(psutil.Error):
        return {parent.pid for parent in process.parents()}
    return set()
