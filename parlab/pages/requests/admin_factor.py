"""The administration, where a setting asks for a second factor there."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from parlab.lab.services.access.passwords import has_second_factor
from parlab.lab.services.access.sessions import ID_TOKEN
from parlab.pages.signon.proxy_logins import BY_PROXY

Answer = Callable[[HttpRequest], HttpResponse]


class AdminFactor:
    """Lead from the administration to the page where a second factor is added."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.ADMIN_SECOND_FACTOR and _is_admin(request) and _lacks_factor(request):
            messages.error(request, "The administration needs a second factor (PARLAB_ADMIN_SECOND_FACTOR). Add one.")
            return redirect("mfa_index")
        return self._get_response(request)


def _is_admin(request: HttpRequest) -> bool:
    return request.path.startswith(reverse("admin:index")) and request.user.is_authenticated


def _lacks_factor(request: HttpRequest) -> bool:
    is_from_elsewhere = bool(request.session.get(ID_TOKEN) or request.session.get(BY_PROXY))
    return not is_from_elsewhere and not has_second_factor(request.user)
