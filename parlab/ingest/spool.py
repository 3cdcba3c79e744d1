"""A file for points that may not fit into memory."""

from __future__ import annotations

from tempfile import SpooledTemporaryFile

from django.conf import settings

_MEMORY_BYTES = 32 << 20


def spooled() -> SpooledTemporaryFile[bytes]:
    """Return a temporary file that is held in memory until it is large, then in the directory of uploads."""
    return SpooledTemporaryFile(max_size=_MEMORY_BYTES, dir=str(settings.FILE_UPLOAD_TEMP_DIR))
