"""A stream or a file on disk -> a described file: size within the limit, digest, and the kind of its content."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal, NamedTuple

from parlab.formats.exports.event_records import is_event_file

BLOCK = 1 << 20
HEAD_BYTES = 64 * 1024
_MAX_NAME = 200
# Control characters that do not occur in text: all but tab, line feed, form feed, carriage return and escape.
_CONTROL = bytes(code for code in range(32) if code not in (9, 10, 12, 13, 27))
_BINARY_SHARE = 0.05
_HOLE = re.compile(rb"\x00{64,}")
_TEXT_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
_MAGIC = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"PK\x05\x06": "zip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz",
          b"\x28\xb5\x2f\xfd": "zstd"}  # fmt: skip
_NO_ARCHIVES = {b"7z\xbc\xaf\x27\x1c": "a 7z archive", b"Rar!": "a rar archive"}

Kind = Literal["text", "events", "gzip", "bzip2", "xz", "zstd", "zip", "tar", "binary"]


PictureLookup = Callable[[str], bytes | None]
"""Return the picture that a page refers to, or None if there is none beside the page."""


class Refused(ValueError):
    """The file cannot be imported; the message says why and what to do."""


class Received(NamedTuple):
    """A file on our disk; `name` is the sender's name for it, safe to display."""

    path: Path
    name: str
    size: int
    sha256: str
    kind: Kind
    pictures: PictureLookup | None = None


def display_name(name: str) -> str:
    """Make the name of a file safe to display: its last part, without invisible characters."""
    return visible(re.split(r"[/\\]", name)[-1] or name)[:_MAX_NAME] or "unnamed file"


def visible(text: str) -> str:
    """Remove control characters and marks that reverse the direction of text."""
    return "".join(character for character in text if unicodedata.category(character)[0] != "C").strip()


def copied(stream: IO[bytes], name: str, path: Path, *, limit: int) -> Received:
    """Copy a stream to `path`. Raises Refused if it is empty, larger than `limit` bytes or cannot be read."""
    label = display_name(name)
    size = 0
    try:
        with path.open("xb") as file:
            while block := stream.read(BLOCK):
                size += len(block)
                if size > limit:
                    raise Refused(
                        f"{label} is larger than {limit >> 20} MiB, the limit for imports;"
                        " import a part of it, or raise PARLAB_UPLOAD_LIMIT_MIB"
                    )
                file.write(block)
    except OSError as problem:
        raise Refused(f"{label} could not be received ({problem.strerror or problem}); try again") from problem
    return described(path, name)


def described(path: Path, name: str) -> Received:
    """Describe a file on disk. Raises Refused if it is empty."""
    label = display_name(name)
    digest, size, head = hashlib.sha256(), 0, b""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size += len(block)
            head += block[: HEAD_BYTES - len(head)]
            digest.update(block)
    if not head.strip(b"\x00 \t\r\n"):
        raise Refused(f"{label} is empty; choose a file that contains training output")
    return Received(path, label, size, digest.hexdigest(), kind_of(head))


def readable(received: Received) -> Received:
    """Return a file that the readers can open. Raises Refused for any other binary."""
    if received.kind == "binary":
        with received.path.open("rb") as file:
            description = _binary_kind(file.read(HEAD_BYTES))
        raise Refused(
            f"{received.name} is {description}, not text; import the log or page as text, or pack it as zip or tar.gz"
        )
    return received


def kind_of(head: bytes) -> Kind:
    """Recognise text, archives and other binaries by their first bytes."""
    for mark, kind in _MAGIC.items():
        if head.startswith(mark):
            return kind  # type: ignore[return-value]  # the values of _MAGIC are kinds
    if head[257:262] == b"ustar":
        return "tar"
    if is_event_file(head):
        return "events"
    if head.startswith(_TEXT_MARKS):
        return "text"
    # A crash or a log rotation leaves a run of NUL bytes in a log.
    head = _HOLE.sub(b"", head)
    control = len(head) - len(head.translate(None, _CONTROL))
    return "binary" if control > _BINARY_SHARE * len(head) or head.startswith(b"%PDF") else "text"


def _binary_kind(head: bytes) -> str:
    """Name the kind of a binary file: formats that are often mistaken for an archive or a document."""
    if head.startswith(b"%PDF"):
        return "a PDF"
    return next((kind for mark, kind in _NO_ARCHIVES.items() if head.startswith(mark)), "a binary file")
