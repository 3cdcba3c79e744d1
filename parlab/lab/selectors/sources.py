"""Imported files: their bytes and lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import zstandard

from parlab.lab.models import Source, SourceChunk

LINE_WIDTH = 400


class Line(NamedTuple):
    """One line of an imported file."""

    number: int
    text: str
    is_requested: bool
    """Whether the line was requested, rather than shown as context."""


def source_bytes(source: Source) -> Iterator[bytes]:
    """Yield the original bytes of an imported file in chunks."""
    rows = source.chunks.order_by("position").values_list("data", flat=True)
    for data in rows.iterator(chunk_size=4):
        yield zstandard.decompress(bytes(data))


async def source_stream(source_id: int) -> AsyncIterator[bytes]:
    """Yield the original bytes asynchronously; an ASGI server would first collect a plain iterator in memory."""
    position = -1
    while True:
        rows = SourceChunk.objects.filter(source_id=source_id, position__gt=position).order_by("position")
        chunk = await rows.afirst()
        if chunk is None:
            return
        position = chunk.position
        yield zstandard.decompress(bytes(chunk.data))


def source_part(source: Source, first: int, size: int) -> str | None:
    """Return `size` bytes and a little more from a line on, as text; None if the file is packed or no text."""
    part, left = b"", first - 1  # lines to pass
    for data in source_bytes(source):
        if b"\0" in data[:4096] or data.startswith(_PACKED):
            return None
        if left and (breaks := data.count(b"\n")) < left:
            left -= breaks
            continue
        part += data.split(b"\n", left)[left]
        left = 0
        if len(part) > size:
            break
    return part[: size + 1].decode("utf-8", "replace")


_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")


def source_lines(source: Source, first: int, last: int, *, around: int = 2) -> list[Line]:
    """Return lines of an imported file with their context; long lines are truncated."""
    begin, end = max(1, first - around), last + around
    lines: list[Line] = []
    number, line = 1, b""
    for data in source_bytes(source):
        breaks = data.count(b"\n")
        if number + breaks < begin:
            number += breaks
            continue
        for piece in _lines_of(data):
            line = (line + piece)[: 4 * LINE_WIDTH] if number >= begin else b""
            if not piece.endswith(b"\n"):
                continue
            if number >= begin:
                lines.append(_source_line(number, line, first, last))
            number, line = number + 1, b""
            if number > end:
                return lines
    if line and begin <= number <= end:
        lines.append(_source_line(number, line, first, last))
    return lines


def _lines_of(data: bytes) -> Iterator[bytes]:
    """Split at line feeds only, so that a redrawn progress bar is one line."""
    start = 0
    while (at := data.find(b"\n", start)) >= 0:
        yield data[start : at + 1]
        start = at + 1
    if start < len(data):
        yield data[start:]


def _source_line(number: int, line: bytes, first: int, last: int) -> Line:
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    visible = "".join(
        character if character.isprintable() or character == "\t" else "\N{MIDDLE DOT}" for character in text
    )
    if len(visible) > LINE_WIDTH:
        visible = visible[:LINE_WIDTH] + "\N{HORIZONTAL ELLIPSIS}"
    return Line(number, visible, first <= number <= last)
