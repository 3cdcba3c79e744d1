"""Requests of htmx for a part of a page."""

from typing import cast

from django.http import HttpRequest
from django_htmx.middleware import HtmxDetails

UNCHANGED = 204
"""Status of a poll without changes; htmx then keeps the page."""


def is_partial(request: HttpRequest) -> bool:
    """Return whether htmx requests a part of the page, not the whole page, as when going back in history."""
    htmx = cast(HtmxDetails, request.htmx)  # type: ignore[attr-defined]
    return bool(htmx) and not htmx.boosted and not htmx.history_restore_request
