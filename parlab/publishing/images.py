"""Uploaded pictures: told by their content, and written anew, so that nothing but pixels is kept."""

from __future__ import annotations

import io
import warnings
from typing import IO, NamedTuple

from PIL import Image, ImageOps, UnidentifiedImageError

from parlab.charts.format import quantity

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
MAX_PIXELS = 50_000_000
_OPAQUE = ("L", "RGB")


class Clean(NamedTuple):
    """A picture as it is kept."""

    data: bytes
    media_type: str
    width: int
    height: int


def cleaned(file: IO[bytes], *, name: str, size: int, limit: int) -> Clean:
    """Check an uploaded picture and write it anew. Raises ValueError with what it is and what to do."""
    if size > limit:
        raise ValueError(
            f"{name} is {quantity(size, 'B')}, above the limit of {quantity(limit, 'B')}; make it smaller,"
            " or save it as JPEG"
        )
    data = file.read(limit + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return _rewritten(data, name)
    except UnidentifiedImageError as problem:
        raise ValueError(f"{name} is no PNG, JPEG or WebP picture{_like(data)}") from problem
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as problem:
        raise ValueError(f"{name} would unpack to more pixels than {MAX_PIXELS:,}; make it smaller") from problem
    except (OSError, SyntaxError, ValueError, EOFError) as problem:
        if isinstance(problem, ValueError) and str(problem).startswith(name):
            raise
        raise ValueError(f"{name} is damaged and cannot be read: export it again") from problem


def _rewritten(data: bytes, name: str) -> Clean:
    with Image.open(io.BytesIO(data), formats=list(FORMATS)) as picture:
        kind = str(picture.format)
        if picture.width * picture.height > MAX_PIXELS:
            raise ValueError(f"{name} has {picture.width} x {picture.height} pixels, too many; make it smaller")
        upright = ImageOps.exif_transpose(picture)
        has_alpha = "A" in upright.getbands() or "transparency" in upright.info
        plain = upright if upright.mode in _OPAQUE else upright.convert("RGBA" if has_alpha else "RGB")
        if kind == "JPEG" and plain.mode == "RGBA":
            plain = plain.convert("RGB")
        # A copy of the pixels alone: comments, places and previews stay behind.
        bare = Image.new(plain.mode, plain.size)
        bare.paste(plain)
    stream = io.BytesIO()
    if kind == "PNG":
        bare.save(stream, "PNG", optimize=True)
    else:
        bare.save(stream, kind, quality=92)
    return Clean(stream.getvalue(), FORMATS[kind], bare.width, bare.height)


def _like(data: bytes) -> str:
    """Say what the file looks like instead."""
    head = data[:1_000].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in head:
        return ": it is an SVG drawing, which may hold programs. Export it as PNG"
    if head.startswith((b"<!doctype html", b"<html", b"<script", b"<head", b"<body")):
        return ": it is a web page, whatever its name says"
    if head.startswith((b"gif8",)):
        return ": it is a GIF. Export it as PNG"
    if head.startswith((b"%pdf",)):
        return ": it is a PDF. Export the page as PNG"
    return "; whatever its name says, it does not begin like one" if data else ": it is empty"
