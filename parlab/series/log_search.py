"""Search the raw output of an attempt for a text or for errors, and return the lines around a position."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from parlab.series.log import read_log
from parlab.series.log_lines import line_for_page
from runners.wire.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX

MAX_FOUND = 200
SCAN_BYTES = 1 << 29
"""Maximum number of bytes at the beginning of a log that a search scans."""
ERROR = re.compile(
    rb"Traceback \(most recent call last\)|\b[A-Za-z_.]*(?:Error|Exception)\b[:(]|\b(?:ERROR|FATAL|CRITICAL)\b"
    rb"|\berror:|[Oo]ut of memory|\bKilled\b|Segmentation fault|core dumped|NCCL WARN"
)
_LONGEST = 64 * 1024
"""Bytes of an unfinished line that are held until its end; longer lines are searched in parts."""


class FoundLine(NamedTuple):
    """A line of the log with its number, from 1, including events."""

    number: int
    text: str
    is_meant: bool = True


class Search(NamedTuple):
    lines: list[FoundLine]
    is_more: bool
    """There are more matches than `limit`, or the log is longer than SCAN_BYTES."""


def log_find(
    attempt_id: int,
    pattern: re.Pattern[bytes],
    *,
    limit: int = MAX_FOUND,
    node_rank: int | None = None,
    rank: int | None = None,
) -> Search:
    """Return the first lines that match, of one node or rank if given; events of engines are not searched."""
    lines: list[FoundLine] = []
    scanned = 0
    for first, block in _blocks(attempt_id, node_rank, rank):
        counted_to, number, last_end = 0, first, -1
        for match in pattern.finditer(block):
            if match.start() < last_end:
                continue  # another match in the same line
            begin = block.rfind(b"\n", 0, match.start()) + 1
            end = block.find(b"\n", match.start())
            last_end = len(block) if end < 0 else end
            if _is_event(block, begin, last_end):
                continue
            if len(lines) == limit:
                return Search(lines, True)
            number += block.count(b"\n", counted_to, begin)
            counted_to = begin
            lines.append(FoundLine(number, line_for_page(block[begin:last_end])))
        scanned += len(block)
        if scanned > SCAN_BYTES:
            return Search(lines, True)
    return Search(lines, False)


def log_around(
    attempt_id: int, number: int, around: int = 30, *, node_rank: int | None = None, rank: int | None = None
) -> list[FoundLine]:
    """Return the lines around a line number, without events."""
    lines: list[FoundLine] = []
    for first, block in _blocks(attempt_id, node_rank, rank):
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


def numbered_lines(attempt_id: int, scan_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines at the beginning of a log with their numbers, from 1, as a search counts them."""
    scanned = 0
    for first, block in _blocks(attempt_id, None, None):
        for offset, line in enumerate(block.removesuffix(b"\n").split(b"\n")):
            yield first + offset, line
        scanned += len(block)
        if scanned >= scan_bytes:
            return


def text_pattern(text: str) -> re.Pattern[bytes]:
    """Match a literal text, ignoring case."""
    return re.compile(re.escape(text.encode("utf-8", "replace")), re.IGNORECASE)


def _is_event(block: bytes, begin: int, end: int) -> bool:
    return end - begin < EVENT_LINE_LIMIT and block.startswith(EVENT_PREFIX, begin)


def _blocks(attempt_id: int, node_rank: int | None, rank: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the log in blocks that end at line ends, each with the number of its first line."""
    number, held = 1, b""
    for chunk in read_log(attempt_id, node_rank=node_rank, rank=rank):
        data = held + chunk
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) < _LONGEST:
            held = data
            continue
        if not cut:
            # A very long line: its part so far is searched as a line, and counted when the line ends.
            yield number, data
            held = b""
            continue
        yield number, data[:cut]
        number += data.count(b"\n", 0, cut)
        held = data[cut:]
    if held:
        yield number, held
