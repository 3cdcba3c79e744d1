"""Polls of live parts: of many that nothing has changed for, one a second is looked into."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse

from parlab.pages.views.partial import UNCHANGED

FRESH_S = 1.0
"""How much later a change may be shown; htmx polls every 1 to 5 s."""


class Polls:
    """Middleware that answers a poll like the same poll of another browser a moment ago, if nothing had changed then.

    A poll names what its browser shows by `seen`, a digest of the content, so the answer "unchanged" holds for every
    browser that shows the same. It follows the middleware that requires a login.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if _is_poll(request) and response.status_code == UNCHANGED and not hasattr(response, "is_repeated"):
            cache.set(_key(request), True, FRESH_S)
        return response

    def process_view(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        """Answer without the view if nothing had changed a moment ago."""
        if not _is_poll(request) or not cache.get(_key(request)):
            return None
        response = HttpResponse(status=UNCHANGED)
        response.is_repeated = True  # type: ignore[attr-defined]  # it does not prolong the moment
        return response


def _is_poll(request: HttpRequest) -> bool:
    return request.method == "GET" and "HX-Request" in request.headers and "seen" in request.GET


def _key(request: HttpRequest) -> str:
    return f"poll.{sha256(request.get_full_path().encode()).hexdigest()}"
