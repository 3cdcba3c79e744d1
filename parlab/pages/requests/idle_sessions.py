"""Sessions end some time after the last thing that their user did; what a page asks by itself is no such thing."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.conf import settings
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse

Answer = Callable[[HttpRequest], HttpResponse]
SEEN = "seen_at"
_STEPS = 60
"""Parts of the limit after which the time is written again."""


class IdleSessions:
    """Log out a session that has been idle for `PARLAB_SESSION_IDLE_H`."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        limit_s = settings.SESSION_IDLE_H * 3600
        seen_at = request.session.get(SEEN) if limit_s > 0 and request.user.is_authenticated else None
        if seen_at is not None:
            idle_s = time.time() - seen_at
            if idle_s > limit_s:
                logout(request)
            elif idle_s > limit_s / _STEPS and _is_by_hand(request):
                request.session[SEEN] = int(time.time())
        response = self._get_response(request)
        if request.session.modified and SEEN not in request.session and request.user.is_authenticated:
            request.session[SEEN] = int(time.time())  # a login: the session is stored in any case
        return response


def _is_by_hand(request: HttpRequest) -> bool:
    return request.method != "GET" or "HX-Request" not in request.headers
