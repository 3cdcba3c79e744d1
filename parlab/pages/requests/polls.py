"""Polls of live parts: those for which nothing changes cost next to nothing.

A poll names what its browser shows by `seen`, a digest of the content, so the answer "unchanged" holds for every
browser that shows the same. Two layers of middleware remember for a short while, each process for itself: `Looks` that
nothing had changed for a poll, `Polls` also that a session was logged in. Content is never remembered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.http import HttpRequest, HttpResponse

from parlab.lab.models.access.viewer import current_viewer
from parlab.pages.views.partial import UNCHANGED

FRESH_S, QUIET_S = 1.0, 3.0
"""How much later a change may be shown: of what changes often, and of what has not changed for a while. htmx polls
every 1 to 5 s."""
QUIET_SHARE = 0.25
"""Part of the time without changes after which it is looked again."""
KEEP_S = 60.0
LOGIN_S = 10.0
"""For how long after its end a session may still learn that nothing has changed; it never learns what has."""

Answer = Callable[[HttpRequest], HttpResponse]


class Polls:
    """Middleware that answers a poll before its session is loaded, if session and poll were both good a moment ago.

    It precedes the middleware of sessions.
    """

    # Django's own handlers may run it in either mode; a plain class is called in a thread.
    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not _is_poll(request):
            return self._get_response(request)
        session = _session_key(request)
        remembered = caches["polls"]
        sees = remembered.get(session) if session else None
        if sees and remembered.get(_key(request, sees)):
            return HttpResponse(status=UNCHANGED)
        response = self._get_response(request)
        if session and response.status_code == UNCHANGED and hasattr(response, "sees"):
            remembered.set(session, response.sees, LOGIN_S)
        return response


class Looks:
    """Middleware that answers a poll like the same poll of another browser a moment ago, if nothing had changed then.

    It follows the middleware that requires a login.
    """

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if _is_poll(request) and response.status_code == UNCHANGED:
            if not hasattr(response, "is_repeated"):
                _remember(_key(request, _sees()), time.monotonic())
            if request.user.is_authenticated:
                response.sees = _sees()  # type: ignore[attr-defined]  # for `Polls`
        return response

    def process_view(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        """Answer without the view if nothing had changed a moment ago."""
        if not _is_poll(request) or not caches["polls"].get(_key(request, _sees())):
            return None
        response = HttpResponse(status=UNCHANGED)
        response.is_repeated = True  # type: ignore[attr-defined]  # it does not prolong the moment
        return response


def _is_poll(request: HttpRequest) -> bool:
    is_of_page = "HX-Request" in request.headers and "Authorization" not in request.headers
    return request.method == "GET" and is_of_page and "seen" in request.GET


def _remember(key: str, now: float) -> None:
    """Remember that nothing has changed, for a part of the time since that was seen first."""
    remembered, since_key = caches["polls"], f"{key}.since"
    since = float(remembered.get_or_set(since_key, now, KEEP_S) or now)
    remembered.touch(since_key, KEEP_S)
    quiet_s = (now - since) * QUIET_SHARE
    remembered.set(key, True, min(max(quiet_s, FRESH_S), max(QUIET_S, FRESH_S)))


def _key(request: HttpRequest, sees: str) -> str:
    return f"poll.{sha256(f'{sees} {request.get_full_path()}'.encode()).hexdigest()}"


def _sees() -> str:
    """Return what all who see the same projects have in common: an answer to one of them holds for no other."""
    viewer = current_viewer()
    return "all" if viewer is None else viewer.key


def _session_key(request: HttpRequest) -> str:
    """Return the place where the session of a request is remembered; empty if it has none."""
    cookie = request.COOKIES.get(settings.SESSION_COOKIE_NAME, "")
    return f"poll.session.{sha256(cookie.encode()).hexdigest()}" if cookie else ""
