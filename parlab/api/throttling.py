"""The limit of requests of a user who sends a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework import exceptions, throttling

from parlab.lab.models import ApiToken
from parlab.lab.services.access.request_limits import TooManyRequests, request_count

if TYPE_CHECKING:
    # REST framework imports this module while its own views are incomplete.
    from rest_framework.request import Request
    from rest_framework.views import APIView


class TokenThrottle(throttling.BaseThrottle):
    """Count the requests of a user who sends a token; those of sessions are counted with the pages."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        if isinstance(request.auth, ApiToken):
            try:
                request_count(request.auth.user_id)
            except TooManyRequests as error:
                raise exceptions.Throttled(error.wait_s, str(error)) from error
        return True
