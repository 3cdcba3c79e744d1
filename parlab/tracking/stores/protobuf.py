"""Protobuf messages without their schemas."""

from __future__ import annotations

from typing import Any

from .foreign import StoreError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Damaged(StoreError):
    """A record that is incomplete or cannot be decoded."""

    def __init__(self) -> None:
        super().__init__("the file contains a record that cannot be decoded; copy the file again")


def fields_of(message: Any) -> dict[int, list[Any]]:
    """Decode a protobuf message without its schema: {number: values}, as integers or bytes. Raises Damaged."""
    if not isinstance(message, bytes):
        raise Damaged
    fields: dict[int, list[Any]] = {}
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        value: Any
        if kind == _VARINT:
            value, position = _varint(message, position)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
            if kind == _BYTES:
                length, position = _varint(message, position)
            if length < 0 or position + length > len(message):
                raise Damaged
            value, position = message[position : position + length], position + length
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise Damaged
