"""Sessions end some time after the last thing that their user did, and some time after their login in any case.

What a page asks by itself is nothing that its user did.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse

Answer = Callable[[HttpRequest], HttpResponse]
SEEN, BEGAN = "seen_at", "began_at"
_STEPS = 60
"""Parts of the limit after which the time is written again."""


class IdleSessions:
    """Log out a session that has been idle for `PARLAB_SESSION_IDLE_H`, or is older than `PARLAB_SESSION_MAX_H`."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        session, idle_limit_s = request.session, settings.SESSION_IDLE_H * 3600
        if request.user.is_authenticated and (session.get(SEEN) or session.get(BEGAN)):
            idle_s = _age_s(session.get(SEEN))
            if _is_over(idle_s, idle_limit_s) or _is_over(_age_s(session.get(BEGAN)), settings.SESSION_MAX_H * 3600):
                logout(request)
            elif idle_limit_s > 0 and idle_s > idle_limit_s / _STEPS and _is_by_hand(request):
                session[SEEN] = int(time.time())
        response = self._get_response(request)
        if request.session.modified and request.user.is_authenticated:  # such as a login: it is stored in any case
            for name in (SEEN, BEGAN):
                request.session.setdefault(name, int(time.time()))
        return response


def _age_s(at: Any) -> float:
    return time.time() - at if at is not None else 0.0


def _is_over(age_s: float, limit_s: float) -> bool:
    return 0 < limit_s < age_s


def _is_by_hand(request: HttpRequest) -> bool:
    return request.method != "GET" or "HX-Request" not in request.headers
