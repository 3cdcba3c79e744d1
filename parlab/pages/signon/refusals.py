"""The page of a login by single sign-on that failed."""

from __future__ import annotations

import logging

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

logger = logging.getLogger(__name__)


def signon_refused(request: HttpRequest, text: str, *, reason: str = "") -> HttpResponse:
    """Return the page with what a person can do; the reason is for the log."""
    logger.warning(
        "login by single sign-on from %s refused: %s", request.META.get("REMOTE_ADDR"), (reason or text)[:400]
    )
    return render(request, "pages/account/signon_refused.html", {"text": text}, status=403)
