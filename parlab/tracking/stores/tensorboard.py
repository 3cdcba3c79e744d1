"""Directories of TensorBoard event files: each directory is one run, with the metrics of all its files.

A file may end within a record: what comes before is read, the rest with the next import.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path

from parlab.formats.exports.event_records import HYPERPARAMETERS, MARK_WITHIN, Contents, Event, event_of, is_event_file
from parlab.formats.exports.protobuf import Damaged
from parlab.tracking.point import Point

from .foreign import ForeignRun, Store, flattened, identity_of, milliseconds, point

TRACKER = "tensorboard"
_FIRST = 20
"""Events of a file among which hyperparameters are looked for."""


def read(files: Mapping[str, Path]) -> Iterator[Store]:
    """Yield one store for all event files of a directory tree; a single file is left to the readers of logs."""
    events = [item for item in files.items() if "tfevents" in item[0].rpartition("/")[2] and _is_events(item[1])]
    names = [name for name, _ in sorted(events, key=_by_numbers)]
    if len(files) < 2 or not names:
        return
    directories: dict[str, list[str]] = defaultdict(list)
    every = {name.rpartition("/")[0] for name in names}
    for name in names:
        directory = name.rpartition("/")[0]
        # Hyperparameters lie in a directory below that of their run.
        above = directory.rpartition("/")[0]
        belongs = directory and above in every and _has_hyperparameters(files[name])
        directories[above if belongs else directory].append(name)
    runs, notes = [], []
    for directory, own in directories.items():
        run, missing = _run(directory, [files[name] for name in own])
        if run is not None:
            runs.append(run)
        if missing:
            notes.append(
                f"{directory or '.'}: the last {missing:,} bytes are incomplete or damaged; what comes before was read"
            )
    if runs:
        yield Store("TensorBoard directory", TRACKER, runs, frozenset(names), notes)


def _by_numbers(item: tuple[str, Path]) -> list[tuple[int, str]]:
    """Order files as they were written: `….9` comes before `….10`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", item[0])]


def _is_events(path: Path) -> bool:
    with path.open("rb") as file:
        return is_event_file(file.read(MARK_WITHIN))


def _has_hyperparameters(path: Path) -> bool:
    first = islice(_events(Contents(path, is_checked=False)), _FIRST)
    return any(tag == HYPERPARAMETERS for event in first for tag, _ in event.values)


def _run(directory: str, paths: Sequence[Path]) -> tuple[ForeignRun | None, int]:
    """Describe the run of a directory, and count the bytes that cannot be read; None if it has no scalars."""
    first_ms: int | None = None
    last_ms: int | None = None
    parameters: dict[str, str] = {}
    missing, has_scalars = 0, False
    for path in paths:
        contents = Contents(path, is_checked=False)
        for event in _events(contents):
            time_ms = milliseconds(event.time * 1_000)
            first_ms, last_ms = first_ms or time_ms, time_ms or last_ms
            for tag, value in event.values:
                if isinstance(value, str):
                    parameters |= _parameters(tag, value)
                else:
                    has_scalars = True
        missing += contents.left
    if not has_scalars:
        return None, missing
    beginning = hashlib.sha256(b"".join(path.open("rb").read(MARK_WITHIN) for path in paths[:1])).hexdigest()
    run = ForeignRun(
        identity=identity_of(TRACKER, directory, beginning),
        experiment="TensorBoard",
        name=directory or "run",
        user_name="",
        # An event file has no end: what is read is over until the directory is imported again.
        status="FINISHED",
        start_ms=first_ms,
        end_ms=last_ms,
        parameters=parameters,
        tags={},
        points=partial(_points, paths),
        artifacts={},
    )
    return run, missing


def _parameters(tag: str, text: str) -> dict[str, str]:
    """Read a text as parameters: a JSON object (`args` of Hugging Face) contains many."""
    name = tag.removesuffix("/text_summary")
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict):
            return flattened(data)
    return flattened({name: text})


def _points(paths: Sequence[Path]) -> Iterator[Point]:
    """Read the scalars of all files in the order of their times; those of one file keep their order."""
    for _, event in heapq.merge(*map(_in_order, paths), key=itemgetter(0)):
        for tag, value in event.values:
            logged = None if isinstance(value, str) else point(tag, value, event.time * 1_000, event.step)
            if logged is not None:
                yield logged


def _in_order(path: Path) -> Iterator[tuple[float, Event]]:
    """Yield events with the latest time so far: a clock that was set back must not break the order in a merge."""
    latest = 0.0
    for event in _events(Contents(path, is_checked=False)):
        latest = max(latest, event.time)
        yield latest, event


def _events(contents: Contents) -> Iterator[Event]:
    """Yield the events that have values, up to the first that cannot be decoded."""
    with suppress(Damaged):
        for content in contents:
            event = event_of(content)
            if event.values:
                yield event
