"""The events of a traced rank, in bounded memory: a timeline of intervals, and the first collectives."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .spool import Rows, Spool

EVENT = np.dtype(
    [("start", "<f8"), ("end", "<f8"), ("name", "<i4"), ("lane", "<i4"), ("kind", "i1"), ("launch", "<i4")]
)
"""`lane` is a stream or a thread; `launch` is the number of the launch of a kernel, or -1."""
LAUNCH = np.dtype([("number", "<i4"), ("at", "<f8")])
"""When a kernel was launched, on the clock of the timeline before its shift."""
MAX_MESSAGES = 20_000


class Timeline:
    """Intervals, read in the order of their start. Times are in seconds; `shift_s` is subtracted on reading."""

    def __init__(self, folder: Path | None = None, shift_s: float = 0.0) -> None:
        self._spool = Spool(EVENT, "start", folder)
        self._begin_s, self._end_s = np.inf, -np.inf
        self.folder, self.shift_s = folder, shift_s

    def __len__(self) -> int:
        return len(self._spool)

    @property
    def begin_s(self) -> float:
        """First start; 0 without events."""
        return self._begin_s - self.shift_s if len(self) else 0.0

    @property
    def end_s(self) -> float:
        return self._end_s - self.shift_s if len(self) else 0.0

    def add(self, start_s: float, end_s: float, name: int, lane: int, kind: int = 0, launch: int = -1) -> None:
        """Add an event, in any order."""
        self._spool.add(start_s, end_s, name, lane, kind, launch)
        if start_s < self._begin_s:
            self._begin_s = start_s
        if end_s > self._end_s:
            self._end_s = end_s

    def blocks(self) -> Iterator[Rows]:
        """Yield the events in the order of their start; events with the same start are in the same block."""
        for rows in self._spool.blocks():
            rows["start"] -= self.shift_s
            rows["end"] -= self.shift_s
            yield rows


class Message(NamedTuple):
    """A collective of one rank."""

    group: str
    name: str
    sequence: int
    """Number within its group and name; from the trace where it has one, else counted."""
    begin_s: float
    end_s: float
    bytes: float
    group_size: int


class Messages:
    """The first MAX_MESSAGES collectives of a rank, and how many there are."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[tuple[str, str, int | None, float, float, float, int]] = []
        self._texts: dict[str, str] = {}

    def add(
        self, group: str, name: str, number: int | None, begin_s: float, end_s: float, size: float, ranks: int
    ) -> None:
        """Add a collective, in any order."""
        # Each event has its own copy of these texts.
        group, name = self._texts.setdefault(group, group), self._texts.setdefault(name, name)
        self._first.append((group, name, number, begin_s, end_s, size, ranks))
        self.count += 1
        if len(self._first) >= 2 * MAX_MESSAGES:
            self._keep()

    def numbered(self, shift_s: float) -> list[Message]:
        """Number those of each group and name in the order of their start, unless the trace numbers them."""
        self._keep()
        counted: dict[tuple[str, str], int] = {}
        messages = []
        for group, name, number, begin_s, end_s, size, ranks in self._first:
            place = counted[group, name] = counted.get((group, name), -1) + 1
            times = begin_s - shift_s, end_s - shift_s
            messages.append(Message(group, name, place if number is None else number, *times, size, ranks))
        return messages

    def _keep(self) -> None:
        self._first.sort(key=itemgetter(3))
        del self._first[MAX_MESSAGES:]
