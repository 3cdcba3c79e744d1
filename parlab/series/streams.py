"""Streams within the output of a node: who printed which part of a chunk, so that lines of ranks do not mix. Pure.

Output of a stream is split at line ends, except lines that are longer than a record of the spool. Where such a line
continues after output of another stream, BROKEN marks its continuation.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

NODE = -1
"""Stream of the launcher and the supervisor of a node."""
BROKEN = b"[...] "
MAX_RANK = 2**30 - 2
_DTYPE = np.dtype("<i4")


class Mark(NamedTuple):
    """Where the output of a stream begins."""

    offset: int
    rank: int
    is_continued: bool = False
    """Whether it begins inside a line."""


class Span(NamedTuple):
    """Output of one stream in one piece: data[begin:end]."""

    begin: int
    end: int
    rank: int
    is_continued: bool


def marks_of(streams: Sequence[tuple[int, int, bool]], size: int) -> list[Mark]:
    """Return the valid marks of a batch in order; others are ignored, because their output is in the log anyway."""
    marks: list[Mark] = []
    for offset, rank, is_continued in streams:
        begin = marks[-1].offset if marks else -1
        if begin < offset < size and NODE <= rank <= MAX_RANK:
            marks.append(Mark(offset, rank, is_continued))
    return marks


def extended(marks: Sequence[Mark], size: int, added: Sequence[Mark]) -> list[Mark]:
    """Return the marks of data of a size and of what follows it; output without a mark is the node's."""
    if marks and marks[-1].rank != NODE and (not added or added[0].offset > 0):
        added = [Mark(0, NODE), *added]
    return [*marks, *(mark._replace(offset=size + mark.offset) for mark in added)]


def pack(marks: Sequence[Mark], begin: int, size: int) -> bytes:
    """Pack the marks of the chunk [begin, begin + size); it begins with the stream that it continues."""
    before = [mark for mark in marks if mark.offset <= begin]
    inside = [mark._replace(offset=mark.offset - begin) for mark in marks if begin < mark.offset < begin + size]
    if before:
        # In the same stream, a chunk continues the previous one without a gap.
        inside.insert(0, Mark(0, before[-1].rank, before[-1].is_continued and before[-1].offset == begin))
    if not inside:
        return b""
    rows = [(mark.offset, (mark.rank + 1) * 2 + mark.is_continued) for mark in inside]
    return zlib.compress(np.array(rows, _DTYPE).T.tobytes(), 1)


def unpack(data: bytes | memoryview) -> list[Mark]:
    if not data:
        return []
    offsets, codes = np.frombuffer(zlib.decompress(bytes(data)), _DTYPE).reshape(2, -1).tolist()
    return [Mark(offset, code // 2 - 1, bool(code % 2)) for offset, code in zip(offsets, codes, strict=True)]


def spans(marks: Sequence[Mark], size: int) -> list[Span]:
    """Divide data into its streams; what is before the first mark belongs to the node."""
    if not marks or marks[0].offset > 0:
        marks = [Mark(0, NODE), *marks]
    ends = [mark.offset for mark in marks[1:]] + [size]
    return [Span(mark.offset, end, mark.rank, mark.is_continued) for mark, end in zip(marks, ends, strict=True)]


def divided(parts: Sequence[Span], offsets: Sequence[int]) -> list[Span]:
    """Divide spans further at offsets, for example where another record begins."""
    divisions: list[Span] = []
    for part in parts:
        inside = offsets[bisect_right(offsets, part.begin) : bisect_left(offsets, part.end)]
        bounds = [part.begin, *inside, part.end]
        for begin, end in pairwise(bounds):
            divisions.append(Span(begin, end, part.rank, part.is_continued and begin == part.begin))
    return divisions


class Joiner:
    """Join the spans of several streams to text in which no line has parts of two streams."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._is_inside_line = False

    def add(self, text: bytes, span: Span) -> bytes:
        """Return the text of a span, separated from that of another stream before it."""
        prefix = b""
        if span.rank != self._rank:
            prefix = (b"\n" if self._is_inside_line else b"") + (BROKEN if span.is_continued else b"")
        self._rank = span.rank
        if text:
            self._is_inside_line = not text.endswith(b"\n")
        return prefix + text if prefix else text


def joined(data: bytes, marks: Sequence[Mark]) -> bytes:
    """Return output of several streams as whole lines that each belong to one of them."""
    joiner = Joiner()
    text = b"".join(joiner.add(data[span.begin : span.end], span) for span in spans(marks, len(data)))
    return text if text.endswith(b"\n") else text + b"\n"
