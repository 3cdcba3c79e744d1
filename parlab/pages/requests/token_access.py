"""Tokens for figures, their numbers, reports and feeds: scripts read them without a session."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from parlab.lab.services.access.request_limits import TooManyRequests
from parlab.lab.services.access.token_requests import TokenRefused, token_admit

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
            address = str(request.META.get("REMOTE_ADDR", ""))
            try:
                token = token_admit(secret=match[1] if match else "", scope="read", address=address)
            except TooManyRequests as error:
                headers = {"Retry-After": str(error.wait_s)}
                return HttpResponse(f"{error}\n", status=429, headers=headers, content_type=_TEXT)
            except TokenRefused as refused:
                remedy = refused.remedy or "create a new one on your account page"
                return HttpResponse(f"{refused.message}; {remedy}\n", status=refused.status, content_type=_TEXT)
            request.user = token.user
            request.auth = token  # type: ignore[attr-defined]  # as REST framework does
        return self._get_response(request)
