"""TensorBoard event files as they grow: records from a position, with the standard library alone.

A record is a length (8 bytes, little endian), its checksum (4), a protobuf message Event, its checksum (4). The numbers
of fields are those of TensorFlow's event.proto, summary.proto and tensor.proto, and of TensorBoard's plugin_data.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_MARK = b"brain.Event:"
_HEAD = struct.Struct("<Q4x")
_CHECKSUM_BYTES = 4
LONGEST_RECORD = 64 << 20
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1, 2, 8, 9
# Data type of a tensor: struct code of a number in its content, and the field that otherwise holds the number.
_CODES = {1: ("<f", 5), 2: ("<d", 6)}


class Damaged(ValueError):
    """A record that no writer of event files has written."""


class Event(NamedTuple):
    """What was written together."""

    time: float
    step: int
    scalars: dict[str, float]
    settings: dict[str, Any]
    """Hyperparameters, and texts under their tags."""
    has_hyperparameters: bool


def is_event_file(path: Path) -> bool:
    """Whether a file begins as event files do."""
    try:
        with path.open("rb") as file:
            return _MARK in file.read(128)
    except OSError:
        return False


def records(path: Path, position: int, max_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield whole records from a position, with the positions after them, until about max_bytes. Raises Damaged."""
    began = position
    with path.open("rb") as file:
        file.seek(position)
        while position - began < max_bytes:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            (length,) = _HEAD.unpack(head)
            if length > LONGEST_RECORD:
                raise Damaged(f"{path} is damaged at byte {position}; what comes before was sent")
            content = file.read(length + _CHECKSUM_BYTES)
            if len(content) < length + _CHECKSUM_BYTES:
                return
            position += _HEAD.size + len(content)
            yield content[:length], position


def event_of(record: bytes) -> Event:
    """Decode a record; what is neither a scalar nor a text nor a hyperparameter is left out."""
    fields = _fields(record)
    (time,) = struct.unpack("<d", _last(fields, _WALL_TIME, bytes(8)))
    step = _last(fields, _STEP, 0)
    event = Event(time, step - (1 << 64) if step >= 1 << 63 else step, {}, {}, False)
    for summary in fields.get(_SUMMARY, []):
        for item in _fields(summary).get(1, []):
            event = _with_value(event, _fields(item))
    return event


def _with_value(event: Event, value: Mapping[int, list[Any]]) -> Event:
    tag = _text(_last(value, _TAG, b""))
    metadata = _fields(_last(value, _METADATA, b""))
    plugin = _fields(_last(metadata, 1, b""))
    name = _text(_last(plugin, 1, b""))
    if name == "hparams":
        event.settings.update(_hyperparameters(_last(plugin, 2, b"")))
        return event._replace(has_hyperparameters=True)
    if _SIMPLE_VALUE in value:
        event.scalars[tag] = struct.unpack("<f", value[_SIMPLE_VALUE][-1])[0]
    elif _TENSOR in value:
        tensor = _fields(value[_TENSOR][-1])
        if name == "text" and 8 in tensor:
            event.settings[tag[: -len("/text_summary")] if tag.endswith("/text_summary") else tag] = _text(tensor[8][0])
        elif name in ("scalars", "") and (number := _scalar(tensor)) is not None:
            event.scalars[tag] = number
    return event


def _scalar(tensor: Mapping[int, list[Any]]) -> float | None:
    """Return the only number of a tensor."""
    if _last(tensor, 1, 0) not in _CODES:
        return None
    code, field = _CODES[_last(tensor, 1, 0)]
    content = _last(tensor, 4, b"") or _last(tensor, field, b"")
    return float(struct.unpack(code, content)[0]) if len(content) == struct.calcsize(code) else None


def _hyperparameters(content: bytes) -> dict[str, Any]:
    """Return the hyperparameters of the start of a session."""
    settings: dict[str, Any] = {}
    for start in _fields(content).get(3, []):
        for entry in _fields(start).get(1, []):
            pair = _fields(entry)
            value = _fields(_last(pair, 2, b""))
            name = _text(_last(pair, 1, b""))
            if 2 in value:
                (number,) = struct.unpack("<d", value[2][-1])
                settings[name] = int(number) if number.is_integer() else number
            elif 3 in value:
                settings[name] = _text(value[3][-1])
            elif 4 in value:
                settings[name] = bool(value[4][-1])
    return settings


def _last(fields: Mapping[int, list[Any]], number: int, default: Any) -> Any:
    value = fields[number][-1] if number in fields else default
    if type(value) is not type(default):
        raise Damaged("a field of an event has another type")
    return value


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _fields(message: Any) -> dict[int, list[Any]]:
    """Split a protobuf message: {number of the field: its values}, integers or bytes. Raises Damaged."""
    if not isinstance(message, bytes):
        raise Damaged("a field of an event has another type")
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        value: Any
        if kind == 0:
            value, at = _varint(message, at)
        else:
            if kind == 2:
                size, at = _varint(message, at)
            else:
                size = {1: 8, 5: 4}.get(kind, len(message) + 1)
            value, at = message[at : at + size], at + size
            if at > len(message):
                raise Damaged("an event is cut off")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Damaged("an event is cut off")
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
