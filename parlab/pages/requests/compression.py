"""Compression of text responses. Pictures and downloads are not compressed again."""

from __future__ import annotations

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

TEXTS = frozenset({"text/html", "application/json", "text/csv", "text/markdown"})


class TextCompression(GZipMiddleware):
    """GZipMiddleware limited to text responses; it pads them, which hides the length of pages that contain a secret."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        return super().process_response(request, response) if kind in TEXTS else response
