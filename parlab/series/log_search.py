"""Find a text, or what looks like an error, in an attempt's raw output, and show the lines around a place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import zstandard

from parlab.series.log import line_for_page
from parlab.series.models import LogChunk
from runners.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX

MAX_FOUND = 200
SCAN_BYTES = 1 << 29
"""A search looks at no more than this much from the beginning of a log."""
ERROR = re.compile(
    rb"Traceback \(most recent call last\)|\b[A-Za-z_.]*(?:Error|Exception)\b[:(]|\b(?:ERROR|FATAL|CRITICAL)\b"
    rb"|\berror:|[Oo]ut of memory|\bKilled\b|Segmentation fault|core dumped|NCCL WARN"
)
_READ_CHUNKS = 8
_LONGEST = 64 * 1024
"""Bytes of a line that are held until its end comes; of a longer one the beginning is searched."""


class FoundLine(NamedTuple):
    """A line of the log, counted from 1 as the processes printed it, events included."""

    number: int
    text: str
    is_meant: bool = True


class Search(NamedTuple):
    lines: list[FoundLine]
    is_more: bool
    """More were found than are shown, or the log is longer than a search looks."""


def log_find(attempt_id: int, pattern: re.Pattern[bytes], *, limit: int = MAX_FOUND) -> Search:
    """Find the lines that match, the first ones first; events of engines are no text."""
    found: list[FoundLine] = []
    scanned = 0
    for first, block in _blocks(attempt_id):
        counted_to, number, last_end = 0, first, -1
        for match in pattern.finditer(block):
            if match.start() < last_end:
                continue  # the same line again
            begin = block.rfind(b"\n", 0, match.start()) + 1
            end = block.find(b"\n", match.start())
            last_end = len(block) if end < 0 else end
            if _is_event(block, begin, last_end):
                continue
            if len(found) == limit:
                return Search(found, True)
            number += block.count(b"\n", counted_to, begin)
            counted_to = begin
            found.append(FoundLine(number, line_for_page(block[begin:last_end])))
        scanned += len(block)
        if scanned > SCAN_BYTES:
            return Search(found, True)
    return Search(found, False)


def log_around(attempt_id: int, number: int, around: int = 30) -> list[FoundLine]:
    """Read the lines around one, without events."""
    lines: list[FoundLine] = []
    for first, block in _blocks(attempt_id):
        count = block.count(b"\n") + (not block.endswith(b"\n"))
        if first + count <= number - around:
            continue
        for offset, line in enumerate(block.split(b"\n")[:count]):
            at = first + offset
            if at > number + around:
                return lines
            if at >= number - around and not _is_event(line, 0, len(line)):
                lines.append(FoundLine(at, line_for_page(line), at == number))
    return lines


def text_pattern(text: str) -> re.Pattern[bytes]:
    """Match a text as it stands, in small letters or large ones."""
    return re.compile(re.escape(text.encode("utf-8", "replace")), re.IGNORECASE)


def _is_event(block: bytes, begin: int, end: int) -> bool:
    return end - begin < EVENT_LINE_LIMIT and block.startswith(EVENT_PREFIX, begin)


def _blocks(attempt_id: int) -> Iterator[tuple[int, bytes]]:
    """Yield the log in pieces that end at line ends, each with the number of its first line."""
    number, held = 1, b""
    for chunk in _chunks(attempt_id):
        data = held + chunk
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) < _LONGEST:
            held = data
            continue
        if not cut:
            # A line without end: what came of it is searched as if it ended here, and counted when it does.
            yield number, data
            held = b""
            continue
        yield number, data[:cut]
        number += data.count(b"\n", 0, cut)
        held = data[cut:]
    if held:
        yield number, held


def _chunks(attempt_id: int) -> Iterator[bytes]:
    chunks = LogChunk.objects.filter(attempt_id=attempt_id).order_by("position").values_list("position", "data")
    rows = list(chunks[:_READ_CHUNKS])
    while rows:
        for _, data in rows:
            yield zstandard.decompress(bytes(data))
        rows = list(chunks.filter(position__gt=rows[-1][0])[:_READ_CHUNKS])
