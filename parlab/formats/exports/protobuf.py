"""Protobuf messages without their schemas."""

from __future__ import annotations

from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WORD = (1 << 64) - 1


class Damaged(ValueError):
    """A record that is incomplete or cannot be decoded."""


def fields_of(message: Any) -> dict[int, list[Any]]:
    """Decode a protobuf message without its schema: {number: values}, as integers or bytes. Raises Damaged."""
    if not isinstance(message, bytes):
        raise Damaged
    fields: dict[int, list[Any]] = {}
    position = 0
    while position < len(message):
        tag, position = varint(message, position)
        kind = tag & 7
        value: Any
        if kind == _VARINT:
            value, position = varint(message, position)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
            if kind == _BYTES:
                length, position = varint(message, position)
            if length < 0 or position + length > len(message):
                raise Damaged
            value, position = message[position : position + length], position + length
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def varint(message: bytes, position: int) -> tuple[int, int]:
    """Decode the integer at a position; returns it with the position after it. Raises Damaged."""
    value = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value & _WORD, position
    raise Damaged
