"""A limit of the requests of each user who is logged in."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from parlab.lab.services.access.request_limits import TooManyRequests, request_count

Answer = Callable[[HttpRequest], HttpResponse]


class RequestLimits:
    """Answer 429 with Retry-After to a user above the limit; requests with tokens are counted where these are read."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            if not hasattr(request, "auth"):
                request_count(request.user.pk)
        except TooManyRequests as error:
            headers = {"Retry-After": str(error.wait_s)}
            text = f"{error}.\n"
            return HttpResponse(text, status=429, headers=headers, content_type="text/plain; charset=utf-8")
        return self._get_response(request)
