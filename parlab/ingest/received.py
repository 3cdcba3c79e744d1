"""A stream that somebody sends -> a file of our own on disk: within the limit, hashed, and no binary."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import Path
from typing import IO, Literal, NamedTuple

from parlab.formats import event_files

BLOCK = 1 << 20
HEAD_BYTES = 64 * 1024
_MAX_NAME = 200
# Bytes that no text holds, apart from tab, line feed, form feed, carriage return and escape.
_CONTROL = bytes(code for code in range(32) if code not in (9, 10, 12, 13, 27))
_BINARY_SHARE = 0.05
_HOLE = re.compile(rb"\x00{64,}")
_TEXT_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
_MAGIC = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"PK\x05\x06": "zip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_NO_ARCHIVES = {b"7z\xbc\xaf\x27\x1c": "a 7z archive", b"Rar!": "a rar archive", b"\x28\xb5\x2f\xfd": "a zstd file"}

Kind = Literal["text", "events", "gzip", "bzip2", "xz", "zip", "tar", "binary"]


class Refused(ValueError):
    """A file that is not imported; the message says why and what to do."""


class Received(NamedTuple):
    """A file of ours; `name` is what its sender called it, safe to display."""

    path: Path
    name: str
    size: int
    sha256: str
    kind: Kind


def display_name(name: str) -> str:
    """Make the name of a file safe to show: its last part, of characters that can be seen."""
    return visible(re.split(r"[/\\]", name)[-1] or name)[:_MAX_NAME] or "unnamed file"


def visible(text: str) -> str:
    """Take out control characters and marks that turn text around."""
    return "".join(character for character in text if unicodedata.category(character)[0] != "C").strip()


def receive(stream: IO[bytes], name: str, path: Path, *, limit: int) -> Received:
    """Copy a stream to `path`; raises Refused for what is empty, larger than `limit` bytes or cannot be read."""
    shown = display_name(name)
    digest, size, head = hashlib.sha256(), 0, b""
    try:
        with path.open("xb") as file:
            while block := stream.read(BLOCK):
                size += len(block)
                if size > limit:
                    raise Refused(
                        f"{shown} is larger than {limit >> 20} MiB, the limit for imports;"
                        " import a part of it, or raise PARLAB_UPLOAD_LIMIT_MIB"
                    )
                head += block[: HEAD_BYTES - len(head)]
                digest.update(block)
                file.write(block)
    except OSError as problem:
        raise Refused(f"{shown} could not be taken in ({problem.strerror or problem}); try again") from problem
    if not head.strip(b"\x00 \t\r\n"):
        raise Refused(f"{shown} is empty; choose a file that holds output of a training")
    return Received(path, shown, size, digest.hexdigest(), kind_of(head))


def kind_of(head: bytes) -> Kind:
    """Tell text from archives and other binaries by the first bytes."""
    for mark, kind in _MAGIC.items():
        if head.startswith(mark):
            return kind  # type: ignore[return-value]  # the values of _MAGIC are kinds
    if head[257:262] == b"ustar":
        return "tar"
    if event_files.is_event_file(head[: event_files.MARK_WITHIN]):
        return "events"
    if head.startswith(_TEXT_MARKS):
        return "text"
    # A crash or a rotated file leaves a stretch of NUL bytes in a log.
    head = _HOLE.sub(b"", head)
    control = len(head) - len(head.translate(None, _CONTROL))
    return "binary" if control > _BINARY_SHARE * len(head) or head.startswith(b"%PDF") else "text"


def what_is(head: bytes) -> str:
    """Name a binary that people take for an archive or a document."""
    if head.startswith(b"%PDF"):
        return "a PDF"
    return next((words for mark, words in _NO_ARCHIVES.items() if head.startswith(mark)), "a binary file")
