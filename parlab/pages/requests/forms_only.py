"""A browser that opens an address which only takes a form is led back to a page with a word."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import Resolver404, resolve, reverse
from django.utils.http import url_has_allowed_host_and_scheme

Answer = Callable[[HttpRequest], HttpResponse]

WORD = "That address only takes a form, so nothing was done. Use the button on its page."
_SERVICES = ("/api/", "/ajax-api/", "/admin/", "/csp-report/")
_PAGES = frozenset(
    (
        *("run", "experiment", "experiments", "home", "account", "watches", "watch", "watch-alert", "reports", "tune"),
        *("written-report", "report-version", "study", "nodes", "node", "notifications", "dashboards", "dashboard"),
        *("import", "log-formats", "log-format", "plan", "questions", "question", "findings", "gallery", "connect"),
    )
)
"""Names of routes that a browser may open without a form."""


class FormsOnly:
    """Middleware that turns the 405 of a page into the way back; it follows that of messages."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if not (isinstance(response, HttpResponseNotAllowed) and _is_navigation(request)):
            return response
        messages.info(request, WORD)
        return HttpResponseRedirect(_way_back(request))


def _is_navigation(request: HttpRequest) -> bool:
    """Return whether a person opened the address, not a script, a figure or the API."""
    is_page = "text/html" in request.headers.get("Accept", "") and "HX-Request" not in request.headers
    return request.method == "GET" and is_page and not request.path.startswith(_SERVICES)


def _way_back(request: HttpRequest) -> str:
    """Return the page that led here, else the nearest page above the address."""
    came_from = request.headers.get("Referer", "")
    is_ours = url_has_allowed_host_and_scheme(came_from, {request.get_host()}, require_https=request.is_secure())
    if is_ours and not came_from.split("?")[0].endswith(request.path):
        return came_from
    parts = request.path.strip("/").split("/")
    above = (f"/{'/'.join(parts[:count])}/" for count in range(len(parts) - 1, 0, -1))
    return next((path for path in above if _is_page(path)), reverse("home"))


def _is_page(path: str) -> bool:
    try:
        return resolve(path).url_name in _PAGES
    except Resolver404:
        return False
