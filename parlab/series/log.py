"""Raw output of an attempt: append, read, and the last lines for a page. All other data derives from it."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import zstandard

from parlab.series.models import LogChunk
from runners.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX

CHUNK_BYTES = 256 * 1024
SHOWN_CHARACTERS = 2_000
TAIL_SCAN_BYTES = 16 << 20
"""Maximum number of bytes at the end of a log that a page scans."""

_READ_CHUNKS = 8
_STORED_CHUNKS = 64
_HELD_BYTES = 16 * 1024
# Terminal commands (CSI and OSC); control characters except tab, and marks that change the direction of text.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_UNSEEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def append_log(attempt_id: int, data: bytes) -> bytes:
    """Append output to the log of an attempt; return the `unfinished_line` before the new data."""
    last = LogChunk.objects.filter(attempt_id=attempt_id).order_by("-position").first()
    held = b"" if last is None else zstandard.decompress(bytes(last.data))
    unfinished = unfinished_line(_with_chunk_before(last, held))
    if not data:
        return unfinished
    position = 0 if last is None else last.position
    if len(held) >= CHUNK_BYTES:
        position, held = position + len(held), b""
    output = held + data
    # Event lines compress better at this level than at the default, in half the time.
    compressor = zstandard.ZstdCompressor(level=1)
    pieces = ((at, output[at : at + CHUNK_BYTES]) for at in range(0, len(output), CHUNK_BYTES))
    LogChunk.objects.bulk_create(
        [
            LogChunk(attempt_id=attempt_id, position=position + at, size=len(piece), data=compressor.compress(piece))
            for at, piece in pieces
        ],
        update_conflicts=True,
        unique_fields=["attempt", "position"],
        update_fields=["size", "data"],
    )
    return unfinished


def store_log(attempt_id: int, rows: Iterable[tuple[int, int, bytes]]) -> None:
    """Replace the log of an attempt by packed chunks: position, size and zstd data of each CHUNK_BYTES."""
    LogChunk.objects.filter(attempt_id=attempt_id).delete()
    chunks = (LogChunk(attempt_id=attempt_id, position=at, size=size, data=data) for at, size, data in rows)
    while batch := list(islice(chunks, _STORED_CHUNKS)):
        LogChunk.objects.bulk_create(batch)


def _with_chunk_before(last: LogChunk | None, held: bytes) -> bytes:
    if last is None or not last.position or len(held) >= EVENT_LINE_LIMIT or b"\n" in held:
        return held
    # All chunks except the last are full, so the previous chunk is longer than any event.
    before = LogChunk.objects.get(attempt_id=last.attempt_id, position=last.position - CHUNK_BYTES)
    return zstandard.decompress(bytes(before.data)) + held


def unfinished_line(output: bytes) -> bytes:
    """Return the text after the last newline; a NUL byte stands for a line that is too long for an event."""
    line = output[output.rfind(b"\n") + 1 :]
    return line if len(line) < EVENT_LINE_LIMIT else b"\0"


def read_log(attempt_id: int) -> Iterator[bytes]:
    """Yield the output of an attempt from its beginning, chunk by chunk."""
    position = -1
    while True:
        chunks = LogChunk.objects.filter(attempt_id=attempt_id, position__gt=position).order_by("position")
        rows = list(chunks.values_list("position", "data")[:_READ_CHUNKS])
        for _, data in rows:
            yield zstandard.decompress(bytes(data))
        if len(rows) < _READ_CHUNKS:
            return
        position = rows[-1][0]


def log_size(attempt_id: int) -> int:
    """Return the size of the output of an attempt in bytes."""
    last = LogChunk.objects.filter(attempt_id=attempt_id).order_by("-position").values_list("position", "size").first()
    return sum(last) if last else 0


def log_tail(attempt_id: int, lines: int = 200) -> list[str]:
    """Return the last lines of the log that are not events, for a page.

    Colors and control characters are removed, long lines are truncated with a note of their length. Scans at most
    the last TAIL_SCAN_BYTES, so that a page stays fast for any output.
    """
    text = (line.for_page() for line in _text_from_end(attempt_id))
    return list(islice(text, lines))[::-1]


class _Line(NamedTuple):
    """A line of any length, of which only the beginning is held."""

    beginning: bytes
    size: int
    is_whole: bool = True
    """False if the scan did not reach the beginning of the line."""

    def for_page(self) -> str:
        text = self.beginning.decode("utf-8", "replace")
        if self.size <= _HELD_BYTES:
            # A progress bar overwrites itself after a carriage return: only its last state counts.
            text = text.rstrip("\r").rpartition("\r")[2]
        text = _UNSEEN.sub("", _ANSI.sub("", text))
        if self.size <= _HELD_BYTES and len(text) <= SHOWN_CHARACTERS:
            return text
        length = f"{self.size:,} bytes" if self.is_whole else f"more than {self.size:,} bytes, beginning not shown"
        return f"{text[:SHOWN_CHARACTERS]} … (line of {length})"


def line_for_page(line: bytes) -> str:
    """Format a line of output for a page: without terminal commands, truncated with a note if it is long."""
    return _Line(line[:_HELD_BYTES], len(line)).for_page()


def _text_from_end(attempt_id: int) -> Iterator[_Line]:
    """Yield the lines that are not events, the last one first."""
    beginning, size, scanned = b"", 0, 0
    for chunk in _chunks_from_end(attempt_id):
        # The final newline of the log does not start another line.
        lines = (chunk if scanned else chunk.removesuffix(b"\n")).split(b"\n")
        scanned += len(chunk)
        if len(lines) > 1:
            beginning, size = (lines[-1] + beginning)[:_HELD_BYTES], len(lines[-1]) + size
            if not _is_event(beginning, size):
                yield _Line(beginning, size)
            for line in reversed(lines[1:-1]):
                # Most lines are events; a function call for each would dominate the time.
                if not line.startswith(EVENT_PREFIX) or len(line) >= EVENT_LINE_LIMIT:
                    yield _Line(line[:_HELD_BYTES], len(line))
            beginning, size = b"", 0
        beginning, size = (lines[0] + beginning)[:_HELD_BYTES], len(lines[0]) + size
        if scanned >= TAIL_SCAN_BYTES:
            if size >= TAIL_SCAN_BYTES // 2:
                yield _Line(beginning, size, is_whole=False)
            return
    if scanned and not _is_event(beginning, size):
        yield _Line(beginning, size)


def _is_event(beginning: bytes, size: int) -> bool:
    return size < EVENT_LINE_LIMIT and beginning.startswith(EVENT_PREFIX)


def _chunks_from_end(attempt_id: int) -> Iterator[bytes]:
    chunks = LogChunk.objects.filter(attempt_id=attempt_id).order_by("-position").values_list("position", "data")
    rows = list(chunks[:_READ_CHUNKS])
    while rows:
        for _, data in rows:
            yield zstandard.decompress(bytes(data))
        rows = list(chunks.filter(position__lt=rows[-1][0])[:_READ_CHUNKS])
