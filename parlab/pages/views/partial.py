"""Whether a request asks for a page or for a part of it."""

from typing import cast

from django.http import HttpRequest
from django_htmx.middleware import HtmxDetails

UNCHANGED = 204
"""The answer to a poll that has nothing new: htmx leaves the page as it is."""


def is_partial(request: HttpRequest) -> bool:
    """Say whether htmx asks for a part of the page (and not, going back in history, for the page)."""
    htmx = cast(HtmxDetails, request.htmx)  # type: ignore[attr-defined]
    return bool(htmx) and not htmx.boosted and not htmx.history_restore_request
