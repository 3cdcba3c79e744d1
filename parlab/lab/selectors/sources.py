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
    is_meant: bool
    """Not one of those around it."""


def source_bytes(source: Source) -> Iterator[bytes]:
    """Read an imported file as it was, piece by piece."""
    rows = source.chunks.order_by("position").values_list("data", flat=True)
    for data in rows.iterator(chunk_size=4):
        yield zstandard.decompress(bytes(data))


async def source_stream(source_id: int) -> AsyncIterator[bytes]:
    """Read an imported file as it was for an ASGI server, which would collect a plain iterator in memory first."""
    position = -1
    while True:
        rows = SourceChunk.objects.filter(source_id=source_id, position__gt=position).order_by("position")
        chunk = await rows.afirst()
        if chunk is None:
            return
        position = chunk.position
        yield zstandard.decompress(bytes(chunk.data))


def source_lines(source: Source, first: int, last: int, *, around: int = 2) -> list[Line]:
    """Read some lines of an imported file with those around them; long ones are cut."""
    begin, end = max(1, first - around), last + around
    found: list[Line] = []
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
                found.append(_source_line(number, line, first, last))
            number, line = number + 1, b""
            if number > end:
                return found
    if line and begin <= number <= end:
        found.append(_source_line(number, line, first, last))
    return found


def _lines_of(data: bytes) -> Iterator[bytes]:
    """Split at line feeds only: a progress bar that was drawn again is one line."""
    start = 0
    while (at := data.find(b"\n", start)) >= 0:
        yield data[start : at + 1]
        start = at + 1
    if start < len(data):
        yield data[start:]


def _source_line(number: int, line: bytes, first: int, last: int) -> Line:
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    shown = "".join(
        character if character.isprintable() or character == "\t" else "\N{MIDDLE DOT}" for character in text
    )
    if len(shown) > LINE_WIDTH:
        shown = shown[:LINE_WIDTH] + "\N{HORIZONTAL ELLIPSIS}"
    return Line(number, shown, first <= number <= last)
