"""A Chrome trace (JSON, gz) -> lists of its events, in memory of one chunk.

Source of the layout: Kineto, output_json.cpp: one object with properties of the trace and the array `traceEvents`; an
event begins on a line of its own. Files of other writers may be compact, or a plain array.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any

import orjson

CHUNK_BYTES = 64 << 10
"""Parsed events take about twenty times their text; small pieces also stay in the cache of the processor."""
MAX_HEADER_BYTES = 32 << 20
"""Longest text before the events; device properties and process groups of large jobs are below 10 MiB."""
DAMAGED_BYTES = 4 << 20
"""Text without a whole event that counts as damaged; events with long stacks are below 1 MiB."""
_MARK = b"\xef\xbb\xbf"
"""Of UTF-8, which some editors write at the start of a file."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_KINETO = b"\n  },\n  {"
_NEXT = re.compile(rb"\}\s*,\s*(?=\{)")
_TRIES = 8
_GZIP = 31
"""Window bits of zlib for a gzip header."""
_PACKED_BYTES = 64 << 10

Event = dict[str, Any]


class BadTrace(ValueError):
    """A file that is no trace; the message names the reason and the remedy."""


class TraceFile:
    """The events of one file, chunk by chunk. `properties` and `problems` are complete after the last chunk."""

    def __init__(self, file: IO[bytes]) -> None:
        self._source = _Bytes(file)
        self.properties: Event = {}
        self.problems: list[str] = []
        self.bytes_read = 0
        self._damaged = 0

    def chunks(self) -> Iterator[list[Event]]:
        """Yield lists of events. Raises BadTrace if the file has none."""
        pending = self._header()
        while True:
            # A piece without the end of an event is read again with as much more: its cost stays linear.
            block = self._next_block(max(CHUNK_BYTES, len(pending)))
            if not block:
                break
            pending += block
            cut, events = _parsed(pending)
            if not cut and len(pending) > DAMAGED_BYTES:
                cut, events = self._salvaged(pending)
            if cut:
                pending = pending[cut:]
                yield events
            elif len(pending) > MAX_HEADER_BYTES:
                self.problems.append(f"an event of more than {len(pending) >> 20} MiB ends the reading")
                return
        yield self._rest(pending)

    def _next_block(self, size: int = CHUNK_BYTES) -> bytes:
        block = self._source.read(size)
        if not block and self._source.problem:
            self.problems.append(self._source.problem)
            self._source.problem = ""
        self.bytes_read += len(block)
        return block

    def _header(self) -> bytes:
        """Read up to the first event."""
        head = b""
        while True:
            block = self._next_block(max(CHUNK_BYTES, len(head)))
            head = (head + block).removeprefix(_MARK)
            if head.lstrip()[:1] == b"[":
                return head.lstrip()[1:]
            match = _ARRAY.search(head)
            if match:
                self.properties |= _properties(head[: match.start()].rstrip().rstrip(b",") + b"}")
                return head[match.end() :]
            if not block or len(head) > MAX_HEADER_BYTES:
                raise BadTrace(
                    "the file has no traceEvents; export it with torch.profiler's export_chrome_trace"
                    if not self.problems
                    else self.problems[0]
                )

    def _rest(self, pending: bytes) -> list[Event]:
        """Return the last events, and read the properties after them."""
        events: list[Event] = []
        end = _last_event_end(pending)
        last = _loads(pending[:end])
        if last is None or _ARRAY.search(pending, end):  # another trace may follow in the file
            cut, events = self._salvaged(pending)
            pending = pending[cut:]
            end = _last_event_end(pending)
            last = _loads(pending[:end])
        tail = pending[end:].lstrip()
        if self._damaged:
            self.problems.append(f"{self._damaged} events are not valid JSON and are left out: the file is damaged")
        if last is None:
            self.problems.append("the file ends within an event; the events before it are used")
        elif tail.startswith(b"]"):
            self.properties |= _properties(b"{" + tail[1:].lstrip().lstrip(b","))
        elif not self.problems:
            self.problems.append("the file ends before the end of its list of events; it is truncated")
        return events + (last or [])

    def _salvaged(self, text: bytes) -> tuple[int, list[Event]]:
        """Return the length of a damaged text up to the beginning of its last event, and the valid events in it."""
        events: list[Event] = []
        boundaries = list(_NEXT.finditer(text))
        start = place = 0
        while place < len(boundaries):
            valid, count = _next_valid(text, start, boundaries[place : place + _TRIES])
            events += valid
            self._damaged += not valid
            place += count
            start = boundaries[place - 1].end()
        return start, events


class _Bytes:
    """The bytes of a file, inflated if it is gzipped; a damaged file yields what comes before the damage."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        start = file.read(2)
        file.seek(0)
        self._inflate = zlib.decompressobj(_GZIP) if start == b"\x1f\x8b" else None
        self.problem = ""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; empty at the end."""
        if self._inflate is None:
            return self._file.read(size)
        block = b""
        while not block and not self.problem:
            packed = self._inflate.unconsumed_tail or self._inflate.unused_data or self._file.read(_PACKED_BYTES)
            if not packed:
                if not self._inflate.eof:
                    self.problem = "the compressed file is truncated; the events before its end are used"
                break
            if self._inflate.eof:  # the next member of a file of several
                self._inflate = zlib.decompressobj(_GZIP)
            try:
                block = self._inflate.decompress(packed, size)
            except zlib.error as error:
                self.problem = f"the compressed file is damaged ({error}); the events before the damage are used"
        return block


def _parsed(text: bytes) -> tuple[int, list[Event]]:
    """Return the length of the whole events at the start of a text, and these events; 0 if none is whole."""
    cut = text.rfind(_KINETO)
    if cut > 0:
        events = _loads(text[: cut + 4])
        if events is not None:
            return cut + 5, events
    end = len(text)
    for _ in range(_TRIES):
        cut = text.rfind(b"}", 0, end)
        if cut <= 0:
            return 0, []
        match = _NEXT.match(text, cut)
        if match:
            events = _loads(text[: cut + 1])
            if events is not None:
                return match.end(), events
        end = cut
    matches = list(_NEXT.finditer(text))
    for match in reversed(matches[-_TRIES:]):
        events = _loads(text[: match.start() + 1])
        if events is not None:
            return match.end(), events
    return 0, []


def _next_valid(text: bytes, start: int, boundaries: Sequence[re.Match[bytes]]) -> tuple[list[Event], int]:
    """Return the events in front of a boundary, and which one it is; none and 1 if they are damaged.

    A boundary may also be one of objects within an event.
    """
    for count, boundary in enumerate(boundaries, 1):
        events = _loads(text[start : boundary.start() + 1])
        if events:
            return events, count
    return [], 1


def _loads(text: bytes) -> list[Event] | None:
    text = text.strip().strip(b",")
    try:
        events = orjson.loads(b"[" + text + b"]")
    except orjson.JSONDecodeError:
        return None
    return [event for event in events if isinstance(event, dict)]


def _last_event_end(text: bytes) -> int:
    """Return where the list of events ends: before its closing bracket, or at the end of a truncated text."""
    end = len(text)
    while (end := text.rfind(b"]", 0, end)) >= 0:
        if _loads(text[:end]) is not None:
            return end
    return len(text)


def _properties(text: bytes) -> Event:
    """Read the properties around the events; Kineto leaves a comma too many where a trace has no devices."""
    cleaned = re.sub(rb",\s*,", b",", re.sub(rb",\s*\}$", b"}", text.strip()))
    try:
        properties = orjson.loads(cleaned)
    except orjson.JSONDecodeError:
        return {}
    return properties if isinstance(properties, dict) else {}
