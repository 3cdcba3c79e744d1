"""The page on which a user confirms a login of `parlab login`."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from parlab.lab.models import SCOPE_TEXTS
from parlab.lab.services.access.device_logins import TOKEN_DAYS, TooMany, device_login_answer, device_login_find

_UNKNOWN = "No login waits with this code: it may have expired or have been answered. Run parlab login again."


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def device_login(request: HttpRequest) -> HttpResponse:
    """Show what a client asks for by its code; only a POST confirms or denies it."""
    fields = request.POST if request.method == "POST" else request.GET
    code, answer = fields.get("code", "").strip()[:40], request.POST.get("answer", "")
    if not code:
        return _page(request, status=400 if request.method == "POST" else 200)
    user, address = cast(User, request.user), str(request.META.get("REMOTE_ADDR", ""))
    try:
        login = device_login_find(code=code, user=user, address=address)
    except TooMany as error:
        return _page(request, status=429, code=code, problem=f"Too many wrong codes. Try again in {error.wait_s} s.")
    if login is None:
        return _page(request, status=404, code=code, problem=_UNKNOWN)
    if answer in ("confirm", "deny"):
        if not device_login_answer(login=login, user=user, is_confirmed=answer == "confirm"):
            return _page(request, status=404, code=code, problem=_UNKNOWN)
        return _page(request, login=login, answer=answer)
    scopes = [(scope, SCOPE_TEXTS[scope]) for scope in login.scope_names]
    return _page(request, login=login, scopes=scopes, days=TOKEN_DAYS)


def _page(request: HttpRequest, *, status: int = 200, **context: Any) -> HttpResponse:
    return render(request, "pages/account/device_login.html", {"section": "account", **context}, status=status)
