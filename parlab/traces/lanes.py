"""The events of a rank as lanes that do not overlap, with levels of detail: stored as columns, read by window.

A lane is a stream of a GPU, or one nesting depth of a thread. Level 0 holds its events in order; a group of level k is
FACTOR groups of level k - 1 in a row, with their beginning, end, busy time and the name of the longest. A window reads
the finest level that has at most as many groups in it as a screen can show, so its cost does not grow with the trace.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .intervals import Times
from .kinds import class_of
from .reading import Events, RankTrace

FACTOR = 4
COARSEST = 128
"""Events of the longest lane at which no coarser level follows."""
MAX_DEPTH = 24
RESOLUTION_S = 5e-10
MAX_NAME = 200
META = "lanes.json"
MAX_MATCHES = 30
EXPORT_ROWS = 50_000
"""Events that an export holds in memory."""
_COLUMNS = ("starts", "ends", "names", "busy")

Numbers = NDArray[np.int64]


class Level(NamedTuple):
    """Groups of all lanes, lane after lane."""

    starts: Times
    ends: Times
    names: NDArray[np.int32]
    busy: NDArray[np.float32]
    firsts: Numbers
    """Where each lane begins, and the number of groups at the end."""


class Lane(NamedTuple):
    """A lane with its title."""

    title: str
    kind: str
    """stream, operations or phases."""
    depth: int


class Bars(NamedTuple):
    """What a window shows of a lane."""

    lane: int
    starts: list[float]
    ends: list[float]
    names: list[int]
    busy: list[float]
    """Seconds in which something runs; shorter than the bar for a group of events."""
    is_exact: bool
    """Each bar is one event."""


class Match(NamedTuple):
    """A name that a search matches."""

    name: str
    calls: int
    total_s: float
    occurrences: list[tuple[int, float, float]]
    """(lane, start, end) of the first ones after the position of the search."""


def store(trace: RankTrace, directory: Path) -> None:
    """Write the lanes of a rank; the directory appears when it is complete."""
    lanes, level = _lanes(trace)
    draft = directory.with_name(f".{directory.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    firsts = []
    number = 0
    while True:
        columns: tuple[Any, ...] = (level.starts, level.ends, level.names, level.busy)
        for name, column in zip(_COLUMNS, columns, strict=True):
            np.save(draft / f"{name}{number}.npy", column)
        firsts.append(level.firsts.tolist())
        if not len(lanes) or np.diff(level.firsts).max() <= COARSEST:
            break
        level, number = _coarser(level), number + 1
    meta = {
        "names": [name[:MAX_NAME] for name in trace.names],
        "lanes": lanes,
        "firsts": firsts,
        "begin_s": min((float(column.min()) for column in (level.starts,) if len(column)), default=0.0),
        "end_s": max((float(column.max()) for column in (level.ends,) if len(column)), default=0.0),
    }
    (draft / META).write_text(json.dumps(meta))
    shutil.rmtree(directory, ignore_errors=True)
    draft.rename(directory)


def _lanes(trace: RankTrace) -> tuple[list[Lane], Level]:
    """Return the lanes of a rank, phases first, and their events."""
    lanes: list[Lane] = []
    parts: list[tuple[Times, Times, NDArray[np.int32]]] = []
    main = Events(trace.starts, trace.ends, trace.streams, trace.name_ids)
    groups = [("phases", trace.spans), ("stream" if trace.is_gpu else "operations", main)]
    groups += [("operations", trace.operations)] if trace.is_gpu else []
    for kind, events in groups:
        for number in np.unique(events.lanes).tolist():
            of_lane = events.lanes == number
            for depth, chosen in _by_depth(events.starts[of_lane], events.ends[of_lane]):
                rows = np.flatnonzero(of_lane)[chosen]
                parts.append((events.starts[rows], events.ends[rows], events.names[rows]))
                title = f"stream {number}" if kind == "stream" else f"thread {number}" if kind == "operations" else kind
                lanes.append(Lane(title, kind, depth))
    counts = [len(part[0]) for part in parts]
    firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if not parts:
        return lanes, Level(np.empty(0), np.empty(0), np.empty(0, np.int32), np.empty(0, np.float32), firsts)
    starts, ends, names = (np.concatenate(column) for column in zip(*parts, strict=True))
    return lanes, Level(starts, ends, names, (ends - starts).astype(np.float32), firsts)


def _by_depth(starts: Times, ends: Times) -> Iterator[tuple[int, Numbers]]:
    """Yield the nesting depths of a thread with the places of their events, in order."""
    order = np.lexsort((-ends, starts))
    # Events that began before, without those that ended before, contain this one; times are rounded to nanoseconds.
    depths = np.arange(len(order)) - np.searchsorted(np.sort(ends), starts[order] + RESOLUTION_S, side="right")
    depths = np.clip(depths, 0, MAX_DEPTH)
    for depth in np.unique(depths).tolist():
        yield depth, order[depths == depth]


def _coarser(level: Level) -> Level:
    """Return the next level: FACTOR groups in a row become one."""
    pieces, counts = [], []
    for first, last in zip(level.firsts[:-1].tolist(), level.firsts[1:].tolist(), strict=True):
        pieces.append(np.arange(first, last, FACTOR))
        counts.append(len(pieces[-1]))
    places = np.concatenate(pieces)
    lengths = level.ends - level.starts
    longest = np.maximum.reduceat(lengths, places)
    group = np.repeat(np.arange(len(places)), np.diff(np.append(places, len(lengths))))
    candidates = np.flatnonzero(lengths == longest[group])
    first_of = np.searchsorted(group[candidates], np.arange(len(places)))
    return Level(
        level.starts[places],
        np.maximum.reduceat(level.ends, places),
        level.names[candidates[first_of]],
        np.add.reduceat(level.busy, places),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


class StoredLanes:
    """The stored lanes of a rank; columns are mapped, so that a window reads only what it shows."""

    def __init__(self, directory: Path) -> None:
        """Open them; raises FileNotFoundError where they are not stored."""
        self._directory = directory
        self._meta: dict[str, Any] = json.loads((directory / META).read_text())
        self.names: list[str] = self._meta["names"]
        self.lanes = [Lane(*row) for row in self._meta["lanes"]]
        self.begin_s, self.end_s = float(self._meta["begin_s"]), float(self._meta["end_s"])
        self._firsts = [np.array(row, np.int64) for row in self._meta["firsts"]]

    @property
    def events(self) -> int:
        """Number of events."""
        return int(self._firsts[0][-1])

    def classes(self) -> list[str]:
        """Return the class of each name."""
        return [class_of(name) for name in self.names]

    def window(self, begin_s: float, end_s: float, *, most: int) -> list[Bars]:
        """Return at most about `most` bars of each lane between two times."""
        return [self._bars(lane, begin_s, end_s, most) for lane in range(len(self.lanes))]

    def _bars(self, lane: int, begin_s: float, end_s: float, most: int) -> Bars:
        for number, firsts in enumerate(self._firsts):
            part = slice(int(firsts[lane]), int(firsts[lane + 1]))
            starts, ends = self._column("starts", number)[part], self._column("ends", number)[part]
            first = int(np.searchsorted(ends, begin_s, side="right"))
            last = int(np.searchsorted(starts, end_s, side="left"))
            if last - first <= most or number == len(self._firsts) - 1:
                break
        chosen = slice(part.start + first, part.start + max(first, last))
        starts, ends, names, busy = (self._column(name, number)[chosen].tolist() for name in _COLUMNS)
        return Bars(lane, starts, ends, names, busy, is_exact=number == 0)

    def search(self, text: str, after_s: float, *, most: int = 50) -> list[Match]:
        """Return the names that contain a text, the longest in total first."""
        text = text.lower()
        matches = [number for number, name in enumerate(self.names) if text in name.lower()]
        if not matches or not self.events:
            return []
        is_match = np.zeros(len(self.names), np.bool_)
        is_match[matches] = True
        names = self._column("names", 0)
        places = np.flatnonzero(is_match[names])
        chosen = np.asarray(names[places])
        starts, busy = np.asarray(self._column("starts", 0)[places]), np.asarray(self._column("busy", 0)[places])
        counts = np.bincount(chosen, minlength=len(self.names))
        totals = np.bincount(chosen, busy, len(self.names))
        rows = []
        for number in sorted((number for number in matches if counts[number]), key=lambda number: -totals[number]):
            own = np.flatnonzero(chosen == number)
            own = own[np.argsort(starts[own], kind="stable")]
            at = int(np.searchsorted(starts[own], after_s, side="right"))
            following = np.concatenate([own[at : at + most], own[: max(0, min(at, most - (len(own) - at)))]])
            occurrences = self._at(places[following])
            rows.append(Match(self.names[number], int(counts[number]), float(totals[number]), occurrences))
            if len(rows) == MAX_MATCHES:
                break
        return rows

    def _at(self, places: Numbers) -> list[tuple[int, float, float]]:
        lanes = np.searchsorted(self._firsts[0], places, side="right") - 1
        starts, ends = self._column("starts", 0), self._column("ends", 0)
        return [
            (int(lane), float(starts[place]), float(ends[place])) for lane, place in zip(lanes, places, strict=True)
        ]

    def exported(self, rank: int, shift_s: float) -> Iterator[bytes]:
        """Yield the events as a Chrome trace writes them, one a line without commas: process rank, thread lane."""
        yield _json({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        yield _json({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        threads = _threads(self.lanes)
        for thread, title in enumerate(dict.fromkeys(lane.title for lane in self.lanes)):
            yield _json({"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": title}})
        columns = [self._column(name, 0) for name in ("starts", "ends", "names")]
        for lane, thread in enumerate(threads):
            category = self.lanes[lane].kind
            for first in range(int(self._firsts[0][lane]), int(self._firsts[0][lane + 1]), EXPORT_ROWS):
                last = min(first + EXPORT_ROWS, int(self._firsts[0][lane + 1]))
                starts, ends, names = (column[first:last].tolist() for column in columns)
                for start, end, name in zip(starts, ends, names, strict=True):
                    yield _json(
                        {"ph": "X", "cat": category, "name": self.names[name], "pid": rank, "tid": thread,
                         "ts": round(1e6 * (start + shift_s), 3), "dur": round(1e6 * (end - start), 3)}
                    )  # fmt: skip

    def _column(self, name: str, level: int) -> Any:
        return np.load(self._directory / f"{name}{level}.npy", mmap_mode="r")


def _threads(lanes: Sequence[Lane]) -> list[int]:
    """Return the thread of each lane in an export: nesting depths of a thread are one."""
    numbers = {title: number for number, title in enumerate(dict.fromkeys(lane.title for lane in lanes))}
    return [numbers[lane.title] for lane in lanes]


def _json(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()
