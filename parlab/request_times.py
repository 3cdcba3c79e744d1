"""How many requests each part of the server answered, with which status, and how long they took."""

from __future__ import annotations

import asyncio
import time

from parlab.limits import Application, Message, Receive, Scope, Send
from parlab.shared_counters import counters

REQUESTS = "http_requests"
SECONDS = "http_request_seconds"
_PARTS = (
    ("mlflow", ("/api/2.0/", "/api/3.0/", "/ajax-api/")),
    ("wandb", ("/graphql", "/files/", "/wandb/")),
    ("api", ("/api/",)),
    ("static", ("/static/",)),
    ("probe", ("/health", "/ready", "/metrics")),
)
"""Part of the server -> beginnings of its paths; all other paths are pages. The first match counts."""
_STREAM = b"text/event-stream"


def part_of(path: str) -> str:
    """Return the part of the server that a path belongs to: a label with few values."""
    return next((part for part, beginnings in _PARTS if path.startswith(beginnings)), "page")


class RequestTimes:
    """ASGI middleware that counts answers. Streams of events are counted without a time."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        began, status, is_stream = time.perf_counter(), 500, False

        async def noted(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                is_stream = any(name == b"content-type" and _STREAM in value for name, value in message["headers"])
            await send(message)

        try:
            await self._application(scope, receive, noted)
        finally:
            part = part_of(scope["path"])
            counters.add(REQUESTS, (part, f"{status // 100}xx"))
            if not is_stream:
                counters.observe(SECONDS, (part,), time.perf_counter() - began)
            if counters.take_turn():
                asyncio.get_running_loop().run_in_executor(None, counters.flush)
