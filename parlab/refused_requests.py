"""Refused requests in the server's log: once a minute at most for each sender, and with who and what."""

from __future__ import annotations

import logging
from typing import Any

from django.utils.functional import SimpleLazyObject

from runners.wire.refusals import OncePerMinute, more


class RefusedRequests(logging.Filter):
    """A filter of Django's loggers of requests; errors of the server are always logged."""

    def __init__(self) -> None:
        super().__init__()
        self._admitted = OncePerMinute()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a refusal is logged, and add its sender to the line."""
        status, request = getattr(record, "status_code", None), getattr(record, "request", None)
        if not isinstance(status, int) or not 400 <= status < 500:
            return True
        if getattr(record, "has_sender", False):
            return True  # by another filter: where logging is configured twice, there are two
        who = _who(request)
        record.exc_info = record.exc_text = None  # a refusal is one line, not where Django noticed it
        count = self._admitted.admit((who, status))
        if count is None:
            return False
        method = getattr(request, "method", "")
        record.has_sender = True
        record.msg, record.args = f"%s, status %d, {method} of %s%s", (record.getMessage(), status, who, more(count))
        return True


def _who(request: Any) -> str:
    """Name the user of a request, without a query, and the address."""
    meta = getattr(request, "META", None)
    if meta is None:  # of the ASGI server, before Django
        return "unknown sender"
    user = getattr(request, "_cached_user", None) or request.__dict__.get("user")
    name = "" if user is None or isinstance(user, SimpleLazyObject) else user.get_username()
    return f"{name or 'nobody'} at {meta.get('REMOTE_ADDR', '')}"
