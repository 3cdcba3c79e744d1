"""Snappy's raw format."""

from __future__ import annotations

_LITERAL, _SHORT_COPY, _COPY = 0, 1, 2


class BadSnappy(ValueError):
    """Data that cannot be uncompressed."""


def uncompressed(data: bytes, limit: int) -> bytes:
    """Uncompress a raw Snappy stream of at most `limit` bytes. Raises BadSnappy."""
    length, at = _length(data)
    if length > limit:
        raise BadSnappy(f"{length} uncompressed bytes")
    output = bytearray()
    while at < len(data):
        tag = data[at]
        kind, at = tag & 3, at + 1
        if kind == _LITERAL:
            size = (tag >> 2) + 1
            if size > 60:
                extra = size - 60
                size, at = int.from_bytes(data[at : at + extra], "little") + 1, at + extra
            output += data[at : at + size]
            at += size
        else:
            if kind == _SHORT_COPY:
                size, width, high = (tag >> 2 & 7) + 4, 1, tag >> 5 << 8
            else:
                size, width, high = (tag >> 2) + 1, 2 if kind == _COPY else 4, 0
            offset = high | int.from_bytes(data[at : at + width], "little")
            at += width
            start = len(output) - offset
            if not offset or start < 0:
                raise BadSnappy("a copy from outside of the data")
            pattern = output[start : start + size]
            # A copy may overlap with what it writes: then it repeats.
            output += (pattern * (size // len(pattern) + 1))[:size]
        if len(output) > length:
            break
    if len(output) != length:
        raise BadSnappy(f"{len(output)} instead of {length} uncompressed bytes")
    return bytes(output)


def _length(data: bytes) -> tuple[int, int]:
    value = 0
    for at, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return value, at + 1
    raise BadSnappy("the length is missing")
