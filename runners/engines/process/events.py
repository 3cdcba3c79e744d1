"""Print the output of an engine: events, one JSON object per line, and plain log lines. See docs/understand/engines.md.

Ranks share one pipe. The kernel writes at most PIPE_BUF (4,096) bytes to a pipe atomically, so each line is
shorter and written by one os.write; Python's own buffer would split lines wherever it is full.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Iterable, Sequence
from typing import Any

MAX_LINE_BYTES = 4095
"""Longest line, including the newline."""
STDOUT = 1
CUT = " [...] "


class Printer:
    """Prints the events of one rank, by default to standard output."""

    def __init__(self, rank: int, fd: int = STDOUT) -> None:
        self.rank = rank
        self._fd = fd

    def emit(self, event: str, **fields: Any) -> None:
        """Print one event; a text that is too long loses its middle, and a number that is not finite becomes null.

        Raises ValueError if the event is too long and has no text to shorten.
        """
        head = {"parlab": 1, "t": round(time.time(), 3), "rank": self.rank, "event": event}
        content = {**head, **{name: _finite(value) for name, value in fields.items()}}
        line = _encode(content)
        while len(line) > MAX_LINE_BYTES:
            name = max((n for n in fields if isinstance(content[n], str)), key=lambda n: len(content[n]), default="")
            excess = len(line) - MAX_LINE_BYTES
            if not name or len(json.dumps(content[name])) <= excess + 2 * len(CUT):
                raise ValueError(f"event {event} has {len(line)} bytes; use at most {MAX_LINE_BYTES}")
            content[name] = _without_middle(content[name], excess)
            line = _encode(content)
        self._write(line)

    def emit_operations(self, step: int, operations: Iterable[Sequence[Any]]) -> None:
        """Print operations [name, micro_batch, begin_s, end_s] in as many `operations` events as necessary."""
        room = MAX_LINE_BYTES - 200  # leaves 200 bytes for the fields before the list
        part, size, entries = 0, 0, list[Sequence[Any]]()
        for operation in operations:
            width = len(json.dumps(operation)) + 2
            if size + width > room:
                self.emit("operations", step=step, part=part, operations=entries)
                part, size, entries = part + 1, 0, []
            entries.append(operation)
            size += width
        if entries:
            self.emit("operations", step=step, part=part, operations=entries)

    def log(self, text: str) -> None:
        """Print one plain line."""
        self._write(text.encode()[: MAX_LINE_BYTES - 1] + b"\n")

    def _write(self, line: bytes) -> None:
        while line:
            try:
                line = line[os.write(self._fd, line) :]
            except BlockingIOError:  # the parent process made the pipe non-blocking, and it is full
                select.select([], [self._fd], [])


def _encode(content: dict[str, Any]) -> bytes:
    # ASCII only: each byte is a character, so no reader can cut a character in half.
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _finite(value: Any) -> Any:
    """Return the value, or None for infinity and nan (the loss of a diverged run), which JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_middle(text: str, excess: int) -> str:
    """Shorten a text by about `excess` bytes of JSON and at least one character, keeping its start and end."""
    encoded = len(json.dumps(text))
    keep = max(min(len(text) * (encoded - excess) // encoded, len(text) - 1) - len(CUT), 0)
    return text[: keep // 2] + CUT + text[len(text) - (keep - keep // 2) :]
