"""Logins by an authenticating proxy, which names the user in a header.

`parlab.proxies` takes the header out of every request, and puts it into the scope for trusted proxies alone. A server
that is not run by ASGI therefore lets nobody in this way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth import login, logout
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse

from parlab.lab.services.access.signon import given_by, roles_apply
from parlab.lab.services.access.signon_accounts import named_account
from parlab.pages.requests.audit import login_record
from parlab.proxies import PROXY_GROUPS, PROXY_USER

Answer = Callable[[HttpRequest], HttpResponse]
BY_PROXY = "by_proxy"
"""Where a session keeps that the proxy has begun it."""
BACKEND = "parlab.lab.services.access.passwords.PasswordLogins"


class ProxyLogins:
    """Begin the session of whom the proxy names, and end it when it names another or nobody."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        # Scripts come with tokens, and need no session.
        if settings.PROXY_USER_HEADER and "Authorization" not in request.headers:
            _follow(request, getattr(request, "scope", {}))
        return self._get_response(request)


def _follow(request: HttpRequest, scope: Any) -> None:
    name, user = scope.get(PROXY_USER, ""), request.user
    if user.is_authenticated and (
        (name and user.get_username() != name) or (not name and request.session.get(BY_PROXY))
    ):
        logout(request)
    if name and not request.user.is_authenticated:
        groups = [group.strip() for group in scope.get(PROXY_GROUPS, "").split(",") if group.strip()]
        person = _admitted(name, groups)
        if person is not None:
            login(request, person, backend=BACKEND)
            request.session[BY_PROXY] = True
            login_record(request, person)


def _admitted(name: str, groups: list[str]) -> User | None:
    """Return the account of a person whom a proxy names, with the roles of their groups; None if it is not let in."""
    user = named_account(name, is_admitted=given_by(groups).is_admitted)
    if user is None or not user.is_active:
        return None
    return user if roles_apply(user=user, groups=groups).is_admitted else None
