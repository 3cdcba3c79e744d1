"""Tokens for figures, their numbers, reports and feeds: scripts read them without a session."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from parlab.lab.services.access.request_limits import TooManyRequests, bad_token_count
from parlab.lab.services.access.tokens import token_find

_FILES = re.compile(r"^/(?!admin/|shared/|static/).+\.(?:atom|csv|gz|json|md)$")
_TEXT = "text/plain; charset=utf-8"
_SCHEME = re.compile(r"(?:Token|Bearer) +(\S{1,200})")

Answer = Callable[[HttpRequest], HttpResponse]


class FigureTokens:
    """Authenticate requests for files by `Authorization: Token ...`; no other page accepts a token."""

    # Django's own handlers may run it in either mode; a plain class is called in a thread.
    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        header = request.headers.get("Authorization", "")
        if header and request.method in ("GET", "HEAD") and _FILES.match(request.path):
            match = _SCHEME.fullmatch(header.strip())
            token = token_find(match[1]) if match else None
            if token is None or not token.user.is_active:
                try:
                    bad_token_count(str(request.META.get("REMOTE_ADDR", "")))
                except TooManyRequests as error:
                    headers = {"Retry-After": str(error.wait_s)}
                    return HttpResponse(f"{error}\n", status=429, headers=headers, content_type=_TEXT)
                text = "Invalid token: check it, or create a new one on your account page.\n"
                return HttpResponse(text, status=401, content_type=_TEXT)
            if not token.allows("read"):
                text = f"Token {token.name} has no scope read: create another one on your account page.\n"
                return HttpResponse(text, status=403, content_type=_TEXT)
            request.user = token.user
            request.auth = token  # type: ignore[attr-defined]  # as REST framework does
        return self._get_response(request)
