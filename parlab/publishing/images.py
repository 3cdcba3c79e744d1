"""Uploaded pictures: recognised by their content and re-encoded, so that only pixels are stored."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

from PIL import Image, ImageOps, UnidentifiedImageError

from parlab.charts.format import quantity
from parlab.ingest.confined import Unreadable, confined

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
MAX_PIXELS = 50_000_000
_OPAQUE = ("L", "RGB")


class Clean(NamedTuple):
    """A picture as it is stored."""

    data: bytes
    media_type: str
    width: int
    height: int


def cleaned(file: IO[bytes], *, name: str, size: int, limit: int) -> Clean:
    """Check and re-encode an uploaded picture. Raises ValueError with the reason and the remedy."""
    if size > limit:
        raise ValueError(
            f"{name} has {quantity(size, 'B')}, more than the limit of {quantity(limit, 'B')}; make it smaller,"
            " or save it as JPEG"
        )
    with TemporaryDirectory(prefix="parlab-picture-") as directory:
        path = Path(directory) / "picture"
        path.write_bytes(file.read(limit + 1))
        try:
            media_type, width, height = confined("parlab.publishing.images:rewrite", str(path), name)
        except Unreadable as problem:
            raise ValueError(str(problem) if str(problem).startswith(name) else f"{name}: {problem}") from problem
        return Clean(path.read_bytes(), media_type, width, height)


def rewrite(path: str, name: str) -> tuple[str, int, int]:
    """Replace a file by the picture in it, in a child; return its type, width and height."""
    file = Path(path)
    data = file.read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            clean = _rewritten(data, name)
    except UnidentifiedImageError as problem:
        raise ValueError(f"{name} is not a PNG, JPEG or WebP picture{_actual_type(data)}") from problem
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as problem:
        raise ValueError(f"{name} has more than {MAX_PIXELS:,} pixels; make it smaller") from problem
    except (OSError, SyntaxError, ValueError, EOFError) as problem:
        if isinstance(problem, ValueError) and str(problem).startswith(name):
            raise
        raise ValueError(f"{name} is damaged and cannot be read; export it again") from problem
    file.write_bytes(clean.data)
    return clean.media_type, clean.width, clean.height


def _rewritten(data: bytes, name: str) -> Clean:
    with Image.open(io.BytesIO(data), formats=list(FORMATS)) as picture:
        kind = str(picture.format)
        if picture.width * picture.height > MAX_PIXELS:
            raise ValueError(f"{name} has {picture.width} x {picture.height} pixels; make it smaller")
        upright = ImageOps.exif_transpose(picture)
        has_alpha = "A" in upright.getbands() or "transparency" in upright.info
        plain = upright if upright.mode in _OPAQUE else upright.convert("RGBA" if has_alpha else "RGB")
        if kind == "JPEG" and plain.mode == "RGBA":
            plain = plain.convert("RGB")
        # Copy only the pixels: comments, locations and thumbnails are dropped.
        bare = Image.new(plain.mode, plain.size)
        bare.paste(plain)
    stream = io.BytesIO()
    if kind == "PNG":
        bare.save(stream, "PNG", optimize=True)
    else:
        bare.save(stream, kind, quality=92)
    return Clean(stream.getvalue(), FORMATS[kind], bare.width, bare.height)


def _actual_type(data: bytes) -> str:
    """Return a description of the actual file type, as the end of a sentence."""
    head = data[:1_000].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in head:
        return ": it is an SVG drawing, which may contain scripts. Export it as PNG"
    if head.startswith((b"<!doctype html", b"<html", b"<script", b"<head", b"<body")):
        return ": it is a web page"
    if head.startswith((b"gif8",)):
        return ": it is a GIF. Export it as PNG"
    if head.startswith((b"%pdf",)):
        return ": it is a PDF. Export the page as PNG"
    return ": its content is not recognised" if data else ": it is empty"
