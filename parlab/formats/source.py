"""Lines of bounded length from files. No other module of this package opens files."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

# Longer lines are truncated to this length, and reported.
MAX_LINE = 4 * 2**20

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class Lines:
    """The lines of an open text stream, truncated to MAX_LINE; `cut` has the numbers of truncated lines."""

    def __init__(self, stream: TextIO, limit: int = MAX_LINE) -> None:
        self.stream = stream
        self.limit = limit
        self.cut: list[int] = []

    def __iter__(self) -> Iterator[str]:
        readline, limit, number = self.stream.readline, self.limit, 0
        while line := readline(limit):
            number += 1
            yield line
            if len(line) >= limit and not line.endswith("\n"):
                self._skip(number)

    def _skip(self, number: int) -> None:
        rest = self.stream.readline(self.limit)
        if not rest or rest == "\n":
            return
        if len(self.cut) < 20:
            self.cut.append(number)
        while rest and not rest.endswith("\n"):
            rest = self.stream.readline(self.limit)


def open_text(path: Path) -> TextIO:
    """Open a file as text: UTF-16 if it has a byte order mark, else UTF-8; only line feeds end a line."""
    with path.open("rb") as file:
        start = file.read(4)
    encoding = next((name for mark, name in _MARKS if start.startswith(mark)), "utf-8")
    return path.open(encoding=encoding, errors="replace", newline="\n")
