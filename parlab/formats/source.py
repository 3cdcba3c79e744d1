"""Lines of bounded length from files. No other module of this package opens files."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zipfile
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
    """Open a file as text: UTF-16 if it has a byte order mark or zeros for it, else UTF-8; only line feeds end a line.

    Files of gzip, bzip2, xz and zstd, and the logs in a zip archive, are decompressed; a damaged one ends where it can
    no longer be read.
    """
    with path.open("rb") as file:
        start = file.read(_HEAD)
    unpack = next((unpack for mark, unpack in _PACKED if start.startswith(mark)), None)
    if unpack is None:
        return path.open(encoding=_encoding(start), errors="replace", newline="\n")
    packed = io.BufferedReader(_Unpacked(unpack(path)), 2**16)
    return io.TextIOWrapper(packed, encoding=_encoding(packed.peek(_HEAD)[:_HEAD]), errors="replace", newline="\n")


_HEAD = 512
# Share of zeros among every second byte of a text in UTF-16 that is mostly ASCII.
_ZEROS = 0.7


def _encoding(start: bytes) -> str:
    """Return the encoding of a text that begins with these bytes."""
    marked = next((name for mark, name in _MARKS if start.startswith(mark)), None)
    if marked is not None:
        return marked
    low, high = start[::2], start[1::2]
    if high and high.count(0) >= _ZEROS * len(high) and not low.count(0):
        return "utf-16-le"
    return "utf-16-be" if low and low.count(0) >= _ZEROS * len(low) and not high.count(0) else "utf-8"


# Files of a log; others in an archive, as the arrays of a checkpoint, are no text.
_TEXTS = frozenset({"", ".log", ".txt", ".out", ".err", ".md", ".csv", ".tsv", ".json", ".jsonl", ".rst"})


class _Archive:
    """The texts of a zip archive, one behind the other."""

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError):
            self._members: list[zipfile.ZipInfo] = []
            self._file: Any = path.open("rb")
            return
        members = [member for member in self._zip.infolist() if not member.is_dir()]
        is_text = bool(members) and all(Path(member.filename).suffix.lower() in _TEXTS for member in members)
        self._members = members if is_text else []
        self._file = io.BytesIO() if is_text else path.open("rb")

    def read1(self, size: int) -> bytes:
        """Return some bytes of the texts; of an archive with other files, those of the archive."""
        while True:
            data: bytes = self._file.read(size)
            if data or not self._members:
                return data
            self._file = self._zip.open(self._members.pop(0))

    def close(self) -> None:
        self._file.close()


def _open_zstd(path: Path) -> Any:
    return zstandard.open(path, "rb")


_PACKED: tuple[tuple[bytes, Callable[[Path], Any]], ...] = (
    (b"\x1f\x8b", gzip.GzipFile),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", _open_zstd),
    (b"PK\x03\x04", _Archive),
)


# Also of a zip archive that is encrypted, or packed in an unknown way.
_DAMAGES = (
    OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, zipfile.BadZipFile, RuntimeError,
    NotImplementedError,
)  # fmt: skip


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
            except _DAMAGES:
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
