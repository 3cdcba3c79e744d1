"""Lines of bounded length from files. No other module of this package opens files."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import zstandard

# Longer lines are truncated to this length, and reported.
MAX_LINE = 4 * 2**20

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class Lines:
    """The lines of an open text stream, truncated to MAX_LINE; `cut` has the numbers of lines that lack a part."""

    def __init__(self, stream: TextIO, limit: int = MAX_LINE) -> None:
        self.stream = stream
        self.limit = limit
        self.cut: dict[int, str] = {}

    def __iter__(self) -> Iterator[str]:
        readline, limit, number = self.stream.readline, self.limit, 0
        while line := readline(limit):
            number += 1
            yield line
            if len(line) >= limit and not line.endswith("\n"):
                self._skip(number)
        if is_damaged(self.stream):
            self.cut[number] = "the compressed file is truncated or damaged after this line"

    def _skip(self, number: int) -> None:
        rest = self.stream.readline(self.limit)
        if not rest or rest == "\n":
            return
        if len(self.cut) < 20:
            self.cut[number] = f"the line is longer than {MAX_LINE} characters; the rest was skipped"
        while rest and not rest.endswith("\n"):
            rest = self.stream.readline(self.limit)


def open_text(path: Path) -> TextIO:
    """Open a file as text: UTF-16 if it has a byte order mark, else UTF-8; only line feeds end a line.

    Files of gzip, bzip2, xz and zstd are decompressed; a damaged one ends where it can no longer be read.
    """
    with path.open("rb") as file:
        start = file.read(6)
    unpack = next((unpack for mark, unpack in _PACKED if start.startswith(mark)), None)
    if unpack is None:
        encoding = next((name for mark, name in _MARKS if start.startswith(mark)), "utf-8")
        return path.open(encoding=encoding, errors="replace", newline="\n")
    packed = io.BufferedReader(_Unpacked(unpack(path)), 2**16)
    start = packed.peek(4)[:4]
    encoding = next((name for mark, name in _MARKS if start.startswith(mark)), "utf-8")
    return io.TextIOWrapper(packed, encoding=encoding, errors="replace", newline="\n")


def _open_zstd(path: Path) -> Any:
    return zstandard.open(path, "rb")


_PACKED: tuple[tuple[bytes, Callable[[Path], Any]], ...] = (
    (b"\x1f\x8b", gzip.GzipFile),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", _open_zstd),
)


class _Unpacked(io.RawIOBase):
    """A decompressed file, which ends where its data is damaged or truncated."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = b""
        self.is_damaged = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            try:
                self._left = self._stream.read1(2**16)
            except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError):
                self._stream, self.is_damaged = io.BytesIO(), True
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def is_damaged(stream: TextIO) -> bool:
    """Return whether the end of a compressed file could not be read."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return isinstance(raw, _Unpacked) and raw.is_damaged
