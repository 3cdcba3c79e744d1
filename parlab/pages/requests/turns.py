"""Turns of requests: a process computes for a few at a time; the others wait, without a thread and a connection.

Under more requests than a process can answer, threads would only take the processor from each other, and all of them
would hold connections to the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

_AT_ONCE = ("/health", "/ready")
"""Probes, which would take a busy process for a dead one."""


@sync_and_async_middleware
def in_turns(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Let so many requests compute at a time, in the order of their arrival.

    The body of a request has been read before its turn, and its answer is sent afterwards, so that slow clients keep
    nobody waiting. In a server without an event loop, which has its own limit, this changes nothing.
    """
    if not iscoroutinefunction(get_response):
        return get_response
    compute: Callable[[HttpRequest], Awaitable[HttpResponseBase]] = get_response
    turns = asyncio.Semaphore(settings.REQUESTS_AT_ONCE)

    async def in_turn(request: HttpRequest) -> HttpResponseBase:
        if request.path in _AT_ONCE:
            return await compute(request)
        async with turns:
            return await compute(request)

    return in_turn
