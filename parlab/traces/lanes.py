"""The events of a rank as lanes that do not overlap, with levels of detail: stored as columns, read by window.

A lane is a stream of a GPU, or one nesting depth of a thread. Level 0 holds its events in order; a group of level k is
FACTOR groups of level k - 1 in a row, with their beginning, end, busy time and the name of the longest. A window reads
the finest level that has at most as many groups in it as a screen can show, so its cost does not grow with the trace.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .events import Timeline
from .intervals import Times, distinct
from .kinds import class_of
from .reading import RankTrace

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
PIECE_ROWS = 1 << 14
_PART = struct.Struct("<4i")
"""Group, number, depth and length of a part of a lane."""
_NONE = np.empty(0)
_COLUMNS: dict[str, np.dtype[Any]] = {
    "starts": np.dtype("<f8"), "ends": np.dtype("<f8"), "names": np.dtype("<i4"), "busy": np.dtype("<f4"),
}  # fmt: skip

Numbers = NDArray[np.int64]


class Groups(NamedTuple):
    """Groups of a level, or events, in order."""

    starts: Times
    ends: Times
    names: NDArray[np.int32]
    busy: NDArray[np.floating[Any]]


class Lane(NamedTuple):
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
    groups = [("phases", trace.spans), ("stream" if trace.is_gpu else "operations", trace.timeline)]
    groups += [("operations", trace.operations)] if trace.is_gpu else []
    draft = directory.with_name(f".{directory.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    lanes, level = _first_level(groups, draft)
    firsts, number = [level.firsts], 0
    while lanes and np.diff(level.firsts).max() > COARSEST:
        number += 1
        coarser = _coarser(level, draft, number)
        firsts.append(coarser.firsts)
        level.close()
        level = coarser
    level.close()
    timelines = [events for _, events in groups if len(events)]
    meta = {
        "names": [name[:MAX_NAME] for name in trace.names],
        "lanes": lanes,
        "firsts": [places.tolist() for places in firsts],
        "begin_s": min((events.begin_s for events in timelines), default=0.0),
        "end_s": max((events.end_s for events in timelines), default=0.0),
    }
    (draft / META).write_text(json.dumps(meta))
    shutil.rmtree(directory, ignore_errors=True)
    draft.rename(directory)


class _Column:
    """A column of a level in a file, as numpy.save writes it, in any order."""

    def __init__(self, path: Path, dtype: np.dtype[Any], count: int) -> None:
        self._file, self._type = path.open("w+b"), dtype
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._offset = self._file.tell()
        self.close = self._file.close

    def write(self, at: int, values: NDArray[Any]) -> None:
        self._file.seek(self._offset + at * self._type.itemsize)
        self._file.write(values.astype(self._type).tobytes())

    def read(self, first: int, last: int) -> NDArray[Any]:
        self._file.seek(self._offset + first * self._type.itemsize)
        return np.frombuffer(self._file.read((last - first) * self._type.itemsize), self._type)


class _Level:
    """Groups of all lanes, lane after lane."""

    def __init__(self, folder: Path, number: int, counts: Sequence[int]) -> None:
        self.firsts: Numbers = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        """Where each lane begins, and the number of groups at the end."""
        total = int(self.firsts[-1])
        self._columns = [_Column(folder / f"{name}{number}.npy", dtype, total) for name, dtype in _COLUMNS.items()]

    def close(self) -> None:
        for column in self._columns:
            column.close()

    def write(self, at: int, groups: Groups) -> None:
        for name, column in zip(_COLUMNS, self._columns, strict=True):
            column.write(at, getattr(groups, name))

    def read(self, first: int, last: int) -> Groups:
        return Groups(*(column.read(first, last) for column in self._columns))


def _first_level(groups: Sequence[tuple[str, Timeline]], folder: Path) -> tuple[list[Lane], _Level]:
    """Write the events of all lanes, phases first; all are counted before the place of the first one is clear."""
    counts: dict[tuple[int, int, int], int] = {}
    with tempfile.TemporaryFile(dir=folder) as file:
        for place, (_, events) in enumerate(groups):
            for part in _by_depth(events):
                key = (place, part.number, part.depth)
                counts[key] = counts.get(key, 0) + len(part.starts)
                file.write(_PART.pack(*key, len(part.starts)))
                for values in part[2:]:
                    file.write(values.tobytes())
        ordered = sorted(counts)
        level = _Level(folder, 0, [counts[key] for key in ordered])
        next_of = dict(zip(ordered, level.firsts.tolist(), strict=False))
        file.seek(0)
        while head := file.read(_PART.size):
            place, number, depth, count = _PART.unpack(head)
            starts, ends = (np.frombuffer(file.read(8 * count), np.float64) for _ in range(2))
            names = np.frombuffer(file.read(4 * count), np.int32)
            level.write(next_of[place, number, depth], Groups(starts, ends, names, ends - starts))
            next_of[place, number, depth] += count
    titles = {"stream": "stream {}", "operations": "thread {}", "phases": "phases"}
    lanes = []
    for place, number, depth in ordered:
        kind = groups[place][0]
        lanes.append(Lane(titles[kind].format(number), kind, depth))
    return lanes, level


class _Part(NamedTuple):
    """The next events of a stream or thread with one nesting depth, in order."""

    number: int
    depth: int
    starts: Times
    ends: Times
    names: NDArray[np.int32]


def _by_depth(events: Timeline) -> Iterator[_Part]:
    """Yield the events of each stream or thread by nesting depth."""
    open_ends: dict[int, Times] = {}
    for rows in events.blocks():
        columns = [np.ascontiguousarray(rows[name]) for name in ("start", "end", "name")]
        lanes = np.ascontiguousarray(rows["lane"])
        for number in distinct(lanes).tolist():
            chosen = np.flatnonzero(lanes == number)
            starts, ends, names = (column[chosen] for column in columns)
            before = open_ends.get(number, _NONE)
            open_ends[number] = ends[-1:]
            if (np.append(before.max(initial=-np.inf), ends[:-1]) <= starts + RESOLUTION_S).all():
                yield _Part(number, 0, starts, ends, names)
                continue
            order = np.lexsort((-ends, starts))
            starts, ends, names = starts[order], ends[order], names[order]
            # Events that began before, without those that ended before, contain this one; times are rounded to
            # nanoseconds.
            all_ends = np.sort(np.concatenate([before, ends]))
            ended = np.searchsorted(all_ends, starts + RESOLUTION_S, side="right")
            depths = np.clip(len(before) + np.arange(len(starts)) - ended, 0, MAX_DEPTH)
            open_ends[number] = all_ends[ended[-1] :]
            for depth in distinct(depths).tolist():
                at = np.flatnonzero(depths == depth)
                yield _Part(number, depth, starts[at], ends[at], names[at])


def _coarser(level: _Level, folder: Path, number: int) -> _Level:
    """Write the next level: FACTOR groups in a row become one."""
    counts = np.diff(level.firsts)
    coarser = _Level(folder, number, (-(-counts // FACTOR)).tolist())
    at = 0
    for begin, end in pairwise(level.firsts.tolist()):
        for first in range(begin, end, FACTOR * PIECE_ROWS):
            groups = _joined(level.read(first, min(first + FACTOR * PIECE_ROWS, end)))
            coarser.write(at, groups)
            at += len(groups.starts)
    return coarser


def _joined(groups: Groups) -> Groups:
    """Join FACTOR groups in a row; the longest one gives its name."""
    places = np.arange(0, len(groups.starts), FACTOR)
    lengths = groups.ends - groups.starts
    longest = np.maximum.reduceat(lengths, places)
    group = np.arange(len(lengths)) // FACTOR
    candidates = np.flatnonzero(lengths == longest[group])
    first_of = np.searchsorted(group[candidates], np.arange(len(places)))
    return Groups(
        groups.starts[places],
        np.maximum.reduceat(groups.ends, places),
        groups.names[candidates[first_of]],
        np.add.reduceat(groups.busy, places),
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
        self._columns: dict[str, Any] = {}
        """Mapped already."""

    @property
    def events(self) -> int:
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
        key = f"{name}{level}.npy"
        if key not in self._columns:
            self._columns[key] = np.load(self._directory / key, mmap_mode="r")
        return self._columns[key]


def _threads(lanes: Sequence[Lane]) -> list[int]:
    """Return the thread of each lane in an export: nesting depths of a thread are one."""
    numbers = {title: number for number, title in enumerate(dict.fromkeys(lane.title for lane in lanes))}
    return [numbers[lane.title] for lane in lanes]


def _json(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()
