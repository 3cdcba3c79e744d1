"""A line of a log as pages show it: without terminal commands, truncated with a note if it is long. Pure."""

import re
from typing import NamedTuple

from parlab.series.streams import NODE
from runners.wire.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX

SHOWN_CHARACTERS = 2_000
HELD_BYTES = 16 * 1024
"""Bytes of a line that are held to show it."""
# Terminal commands (CSI and OSC); control characters except tab, and marks that change the direction of text.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_UNSEEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


class Line(NamedTuple):
    """A line of any length, of which only the beginning is held."""

    beginning: bytes
    size: int
    is_whole: bool = True
    """False if the beginning of the line is not known."""
    time: float = 0.0
    """Unix time at which it was printed; 0 if unknown."""
    rank: int = NODE
    """Rank that printed it, or NODE."""

    @property
    def is_event(self) -> bool:
        return self.is_whole and self.size < EVENT_LINE_LIMIT and self.beginning.startswith(EVENT_PREFIX)

    def for_page(self) -> str:
        text = self.beginning.decode("utf-8", "replace")
        if self.size <= HELD_BYTES:
            # A progress bar overwrites itself after a carriage return: only its last state counts.
            text = text.rstrip("\r").rpartition("\r")[2]
        text = _UNSEEN.sub("", _ANSI.sub("", text))
        if self.size <= HELD_BYTES and len(text) <= SHOWN_CHARACTERS:
            return text
        length = f"{self.size:,} bytes" if self.is_whole else f"more than {self.size:,} bytes, beginning not shown"
        return f"{text[:SHOWN_CHARACTERS]} … (line of {length})"


def line_for_page(line: bytes) -> str:
    """Format a line of output for a page."""
    return Line(line[:HELD_BYTES], len(line)).for_page()
