"""Files that a script logs: written beside the spool of its process, and sent as artifacts of its run."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

MAX_PATH = 500
BINS = 64
MAX_PIXELS = 1 << 26
_COUNTER = re.compile(r"(\d{12})-(.+)")


class Files:
    """Files that wait in a directory, in the order in which they were logged; a later one of a path replaces it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "files"

    def add(self, path: str, content: bytes | Path) -> None:
        """Keep a copy under the path that the artifact shall have."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        number = max((number for number, _, _ in self._numbered()), default=0) + 1
        draft = self._directory / f".{number}"
        if isinstance(content, Path):
            shutil.copyfile(content, draft)
        else:
            draft.write_bytes(content)
        draft.replace(self._directory / f"{number:012d}-{quote(path, safe='')}")

    def waiting(self) -> list[tuple[str, Path]]:
        """Return (path of the artifact, file) of all that wait."""
        return [(path, file) for _, path, file in self._numbered()]

    def _numbered(self) -> list[tuple[int, str, Path]]:
        try:
            files = sorted(self._directory.iterdir())
        except OSError:
            return []
        matches = [(_COUNTER.fullmatch(file.name), file) for file in files]
        return [(int(match[1]), unquote(match[2]), file) for match, file in matches if match]


def clean_path(path: Any) -> str:
    """Return a relative path that a server accepts, empty where nothing is left of it."""
    parts = [part.strip() for part in re.sub(r"[\x00-\x1f\\\x7f]", "_", str(path)).split("/")]
    # A quoted name in the directory has at most 255 bytes.
    kept = "/".join(part for part in parts if part not in ("", ".", ".."))[-MAX_PATH:].lstrip("/")
    while len(quote(kept, safe="")) > 230:
        kept = kept[1:].lstrip("/")
    return kept


def picture(image: Any) -> tuple[bytes, str]:
    """Return an image as the bytes of a file, with its suffix.

    A path, bytes, a figure of matplotlib, an image of PIL, or an array or tensor of numbers: height x width, with 1, 3
    or 4 channels last or first; floats are from 0 to 1. Raises ValueError for anything else.
    """
    if isinstance(image, (str, Path)):
        return Path(image).read_bytes(), Path(image).suffix.lower() or ".png"
    if isinstance(image, (bytes, bytearray)):
        return bytes(image), ".png"
    for method, keyword in (("savefig", "format"), ("save", "format")):
        if hasattr(image, method):
            buffer = io.BytesIO()
            getattr(image, method)(buffer, **{keyword: "png"})
            return buffer.getvalue(), ".png"
    return _png(_nested(image)), ".png"


def _nested(values: Any) -> Any:
    """Return the nested lists of an array or tensor of any library."""
    for method in ("detach", "cpu"):
        if hasattr(values, method):
            values = getattr(values, method)()
    return values.tolist() if hasattr(values, "tolist") else values


def _png(rows: Any) -> bytes:
    """Write rows of pixels as PNG."""
    pixels = _pixels(rows)
    channels, width = len(pixels[0][0]), len(pixels[0])
    kind = {1: 0, 2: 4, 3: 2, 4: 6}.get(channels)
    if kind is None or width * len(pixels) > MAX_PIXELS:
        raise ValueError(
            f"the image has {channels} channels and {width} x {len(pixels)} pixels; use 1, 3 or 4 channels"
        )
    flat = [value for row in pixels for pixel in row for value in pixel]
    scale = 255.0 if any(isinstance(value, float) for value in flat) else 1.0
    data = bytes(_byte(value * scale) for value in flat)
    stride = width * channels
    lines = b"".join(b"\0" + data[at : at + stride] for at in range(0, len(data), stride))
    header = struct.pack(">IIBBBBB", width, len(pixels), 8, kind, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in parts)


def _pixels(rows: Any) -> list[list[list[Any]]]:
    """Return rows of pixels with their channels last. Raises ValueError."""
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], list) or not rows[0]:
        raise ValueError(
            "the image has no rows of pixels; use a path, PIL, matplotlib or an array of 2 or 3 dimensions"
        )
    if not isinstance(rows[0][0], list):
        return [[[value] for value in row] for row in rows]
    if len(rows) in (1, 3, 4) and len(rows[0][0]) not in (1, 3, 4):
        return [[list(channels) for channels in zip(*(channel[at] for channel in rows))] for at in range(len(rows[0]))]
    return rows


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _byte(value: float) -> int:
    return 0 if value != value else max(0, min(255, round(value)))


def table(columns: Sequence[Any] | None, rows: Any) -> bytes:
    """Return rows as CSV: sequences, mappings, or a frame of pandas or polars."""
    if hasattr(rows, "to_csv"):
        return str(rows.to_csv(index=False)).encode()
    if hasattr(rows, "write_csv"):
        return str(rows.write_csv()).encode()
    rows = list(rows)
    if columns is None and rows and isinstance(rows[0], Mapping):
        columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text)
    if columns is not None:
        writer.writerow(columns)
    writer.writerows([row.get(name, "") for name in columns or ()] if isinstance(row, Mapping) else row for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def histogram(values: Any, bins: int = BINS) -> bytes:
    """Return a histogram as JSON of edges and counts, of numbers or of a pair (counts, edges)."""
    values = _nested(values)
    if isinstance(values, tuple) and len(values) == 2:
        counts, edges = (list(map(float, _nested(part))) for part in values)
        if len(edges) == len(counts) + 1:
            return json.dumps({"counts": counts, "edges": edges, "not_finite": 0}).encode()
    numbers = [float(value) for value in _leaves(values)]
    finite = [number for number in numbers if math.isfinite(number)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    width = (high - low) / bins or 1.0
    sums = [0] * bins
    for number in finite:
        sums[min(int((number - low) / width), bins - 1)] += 1
    edges = [low + width * at for at in range(bins + 1)]
    return json.dumps({"counts": sums, "edges": edges, "not_finite": len(numbers) - len(finite)}).encode()


def _leaves(values: Any) -> Iterable[Any]:
    if isinstance(values, (list, tuple)):
        for value in values:
            yield from _leaves(_nested(value))
    else:
        yield values
