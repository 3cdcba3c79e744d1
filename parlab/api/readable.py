"""A check before every view. Settings name it, so it imports nothing that imports views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.exceptions import ParseError
from rest_framework.permissions import SAFE_METHODS
from rest_framework.throttling import BaseThrottle

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.views import APIView


class ReadableBody(BaseThrottle):
    """Refuses a JSON body that cannot be read, also where the view reads none.

    The REST framework asks it before every view, after authentication; it throttles nothing.
    """

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Read the body; raises ParseError."""
        if request.method not in SAFE_METHODS and request.content_type.partition(";")[0] == "application/json":
            try:
                request.data  # noqa: B018  # reading it is the check
            except RecursionError as error:
                raise ParseError("JSON parse error - the body is nested too deeply") from error
        return True
