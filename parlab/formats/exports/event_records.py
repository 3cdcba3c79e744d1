"""The events in TensorBoard event files: the scalars and texts of a step.

An event file is a TFRecord file: length (8 bytes, little endian), checksum (4), content, checksum (4). The content is a
protobuf message Event; the numbers of fields are those of TensorFlow's event.proto, summary.proto and tensor.proto.
Reading needs no package. A file may end within a record: what comes before is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from parlab.formats.exports.crc32c import crc32c
from parlab.formats.exports.protobuf import Damaged, fields_of, varint

# The first record of every event file says `brain.Event:2`.
_MARK = b"brain.Event:"
MARK_WITHIN = 128
_HEAD = struct.Struct("<Q4s")
_CHECKSUM_BYTES = 4
_MAX_CONTENT = 256 << 20
_MAX_TEXT = 1_000_000
_LATEST = 1e11
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1, 2, 8, 9
_DTYPE, _CONTENT, _TEXTS = 1, 4, 8
# Data type of a tensor: struct code of a number in its content, and the field that otherwise holds the number.
_CODES = {1: ("<f", 5), 2: ("<d", 6), 3: ("<i", 7), 9: ("<q", 10)}
_INTEGERS = (3, 9)
_SESSION_START = "_hparams_/session_start_info"
HYPERPARAMETERS = "hparams"
"""Tag of the hyperparameters of a run, a JSON object, and the name of their plugin."""


class Event(NamedTuple):
    """The scalars and texts that were written together."""

    time: float
    """Unix seconds; 0 if the file states no time."""
    step: int
    values: list[tuple[str, float | str]]
    """Tag and value, in the order of the file."""


def is_event_file(start: bytes) -> bool:
    """Return whether the first bytes are those of an event file."""
    return _MARK in start[:MARK_WITHIN]


class Contents:
    """Iterates over the encoded events of a file; after the last one, `left` is the number of bytes that are damaged.

    The checksums of contents take as long as decoding them, so they are compared on request only.
    """

    def __init__(self, path: Path, *, is_checked: bool) -> None:
        self._path = path
        self._is_checked = is_checked
        self.left = path.stat().st_size

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while (content := self._next(file)) is not None:
                yield content
                self.left -= _HEAD.size + len(content) + _CHECKSUM_BYTES

    def _next(self, file: BinaryIO) -> bytes | None:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        length, checksum = _HEAD.unpack(head)
        if _packed(head[:8]) != checksum or length > _MAX_CONTENT:
            return None
        content, checksum = file.read(length), file.read(_CHECKSUM_BYTES)
        is_whole = len(content) == length and len(checksum) == _CHECKSUM_BYTES
        return content if is_whole and not (self._is_checked and _packed(content) != checksum) else None


def _packed(data: bytes) -> bytes:
    return crc32c(data).to_bytes(_CHECKSUM_BYTES, "little")


def event_of(content: bytes) -> Event:
    """Decode an event. Raises Damaged."""
    event = fields_of(content)
    try:
        (time,) = struct.unpack("<d", event[_WALL_TIME][-1]) if _WALL_TIME in event else (0.0,)
        values = [value for summary in event.get(_SUMMARY, []) for value in _values(summary)]
    except (struct.error, TypeError) as problem:
        raise Damaged from problem
    return Event(time if 0 <= time < _LATEST else 0.0, _signed(event.get(_STEP, [0])[-1]), values)


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
        elif tag == _SESSION_START and (settings := _hyperparameters(value)):
            yield HYPERPARAMETERS, json.dumps(settings)


def _hyperparameters(value: Mapping[int, Sequence[Any]]) -> dict[str, Any]:
    """Return the settings of a session's start; the numbers of fields are those of plugin_data.proto."""
    metadata = fields_of(value[_METADATA][-1]) if _METADATA in value else {}
    plugin = fields_of(metadata[1][-1]) if 1 in metadata else {}
    settings: dict[str, Any] = {}
    for start in fields_of(plugin[2][-1]).get(3, []) if 2 in plugin else []:
        for entry in fields_of(start).get(1, []):
            pair = fields_of(entry)
            stated = fields_of(pair[2][-1]) if 2 in pair else {}
            name = _text(pair.get(1, [b""])[-1])
            if 2 in stated:
                (number,) = struct.unpack("<d", stated[2][-1])
                settings[name] = int(number) if number.is_integer() else number if isfinite(number) else str(number)
            elif 3 in stated:
                settings[name] = _text(stated[3][-1])[:_MAX_TEXT]
            elif 4 in stated:
                settings[name] = bool(stated[4][-1])
    return settings


def _plugin(value: Mapping[int, Sequence[Any]]) -> str:
    metadata = fields_of(value[_METADATA][-1]) if _METADATA in value else {}
    return _text(fields_of(metadata[1][-1]).get(1, [b""])[-1]) if 1 in metadata else ""


def _tensor(tensor: Mapping[int, Sequence[Any]], plugin: str) -> float | str | None:
    """Return the only number or the first text of a tensor; None for everything else."""
    if plugin == "text" and _TEXTS in tensor:
        return _text(tensor[_TEXTS][0][:_MAX_TEXT])
    dtype = tensor.get(_DTYPE, [0])[-1]
    if plugin not in ("scalars", "") or dtype not in _CODES:
        return None
    code, field = _CODES[dtype]
    content, numbers = tensor.get(_CONTENT, [b""])[-1], tensor.get(field, [b""])[-1]
    if dtype in _INTEGERS and numbers:
        number, end = varint(numbers, 0)
        return float(_signed(number)) if end == len(numbers) else None
    content = content or numbers
    return float(struct.unpack(code, content)[0]) if len(content) == struct.calcsize(code) else None


def _signed(value: Any) -> int:
    if not isinstance(value, int):
        raise Damaged
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
