"""Directories of TensorBoard event files: each directory is one run, with the metrics of all its files.

An event file is a TFRecord file: length (8 bytes, little endian), checksum (4), content, checksum (4). The content is a
protobuf message Event; the numbers of fields are those of TensorFlow's event.proto, summary.proto and tensor.proto.
Reading needs no package. A file may end within a record: what comes before is read, the rest with the next import.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from parlab.formats.exports.event_files import MARK_WITHIN, is_event_file
from parlab.lab.models import TrackedRun
from parlab.tracking.runs import Point

from .foreign import ForeignRun, Store, flattened, identity_of, milliseconds, point
from .protobuf import Damaged, fields_of

TRACKER = "tensorboard"
_FRAME = struct.Struct("<QI")
_CHECKSUM_BYTES = 4
_MAX_RECORD = 64 << 20
_MAX_TEXT = 100_000
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1, 2, 8, 9
_FLOATS = {1: "f", 2: "d", 3: "i", 9: "q"}
"""Data types of tensors whose content is one number: struct codes of DT_FLOAT, DT_DOUBLE, DT_INT32 and DT_INT64."""


def read(files: Mapping[str, Path]) -> Iterator[Store]:
    """Yield one store for all event files of a directory tree; a single file is left to the readers of logs."""
    events = [item for item in files.items() if "tfevents" in item[0].rpartition("/")[2] and _is_events(item[1])]
    names = [name for name, _ in sorted(events, key=_by_numbers)]
    if len(files) < 2 or not names:
        return
    directories: dict[str, list[str]] = defaultdict(list)
    for name in names:
        directories[name.rpartition("/")[0]].append(name)
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


def _run(directory: str, paths: Sequence[Path]) -> tuple[ForeignRun | None, int]:
    """Describe the run of a directory, and count the bytes that cannot be read; None if it has no scalars."""
    first_ms: int | None = None
    last_ms: int | None = None
    parameters: dict[str, str] = {}
    missing, has_scalars = 0, False
    for path in paths:
        events = _Events(path)
        for _, time_ms, _, values in events:
            first_ms, last_ms = first_ms or milliseconds(time_ms), milliseconds(time_ms) or last_ms
            for tag, value in values:
                if isinstance(value, str):
                    parameters |= _parameters(tag, value)
                else:
                    has_scalars = True
        missing += events.missing
    if not has_scalars:
        return None, missing
    beginning = hashlib.sha256(b"".join(path.open("rb").read(MARK_WITHIN) for path in paths[:1])).hexdigest()
    run = ForeignRun(
        identity=identity_of(TRACKER, directory, beginning),
        experiment="TensorBoard",
        name=directory or "run",
        user_name="",
        # An event file has no end: what is read is over until the directory is imported again.
        status=TrackedRun.Status.FINISHED,
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
    for _, time_ms, step, values in heapq.merge(*(iter(_Events(path)) for path in paths), key=lambda event: event[0]):
        for tag, value in values:
            logged = None if isinstance(value, str) else point(tag, value, time_ms, step)
            if logged is not None:
                yield logged


class _Events:
    """Iterates over the events of a file as (order, time, step, values); then `missing` counts the unread bytes.

    The order is the latest time so far: a clock that was set back must not break the order of a file in a merge.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.missing = 0

    def __iter__(self) -> Iterator[tuple[float, float, int, list[tuple[str, float | str]]]]:
        size, position, latest = self._path.stat().st_size, 0, 0.0
        with self._path.open("rb") as file:
            while position < size:
                head = file.read(_FRAME.size)
                length = _FRAME.unpack(head)[0] if len(head) == _FRAME.size else _MAX_RECORD + 1
                content = file.read(length + _CHECKSUM_BYTES) if length <= _MAX_RECORD else b""
                try:
                    if len(content) != length + _CHECKSUM_BYTES:
                        raise Damaged
                    event = fields_of(content[:length])
                    time_ms = _double(event.get(_WALL_TIME)) * 1_000
                    step = _signed(event.get(_STEP, [0])[-1])
                    values = [value for summary in event.get(_SUMMARY, []) for value in _values(summary)]
                except (Damaged, struct.error):
                    self.missing = size - position
                    return
                position += _FRAME.size + len(content)
                if values:
                    latest = max(latest, time_ms)
                    yield latest, time_ms, step, values


def _values(summary: Any) -> Iterator[tuple[str, float | str]]:
    for item in fields_of(summary).get(1, []):
        value = fields_of(item)
        tag = _text(value.get(_TAG, [b""])[-1])
        if _SIMPLE_VALUE in value:
            yield tag, struct.unpack("<f", value[_SIMPLE_VALUE][-1])[0]
        elif _TENSOR in value:
            tensor = _tensor(fields_of(value[_TENSOR][-1]), _plugin(value))
            if tensor is not None:
                yield tag, tensor


def _plugin(value: Mapping[int, Sequence[Any]]) -> str:
    metadata = fields_of(value[_METADATA][-1]) if _METADATA in value else {}
    return _text(fields_of(metadata[1][-1]).get(1, [b""])[-1]) if 1 in metadata else ""


def _tensor(tensor: Mapping[int, Sequence[Any]], plugin: str) -> float | str | None:
    """Return the only number or text of a tensor; None for everything else."""
    if plugin == "text" and 8 in tensor:
        return _text(tensor[8][0][:_MAX_TEXT])
    code = _FLOATS.get(tensor.get(1, [0])[-1])
    if plugin not in ("scalars", "") or code is None:
        return None
    content = tensor.get(4, [b""])[-1] or {"f": tensor.get(5, [b""]), "d": tensor.get(6, [b""])}.get(code, [b""])[-1]
    is_single = isinstance(content, bytes) and len(content) == struct.calcsize(f"<{code}")
    return float(struct.unpack(f"<{code}", content)[0]) if is_single else None


def _double(values: Sequence[Any] | None) -> float:
    content = values[-1] if values else b""
    number = struct.unpack("<d", content)[0] if isinstance(content, bytes) and len(content) == 8 else 0.0
    return number if 0 <= number < 1e11 else 0.0


def _signed(value: Any) -> int:
    return int(value) - (1 << 64) if isinstance(value, int) and value >= 1 << 63 else int(value)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
