"""Requests that do not come: a connection whose request is not complete in time is closed, and holds up no other.

uvicorn limits only the time between requests: `--http parlab.slow_requests:Protocol` limits that of the headers, too.
"""

from __future__ import annotations

import asyncio
import resource
import time

from uvicorn.protocols.http.h11_impl import H11Protocol

from parlab.limits import Application, Message, Receive, Scope, Send

HEADERS_S = 30.0
"""From the first byte of a request, or from the connection, to the end of the headers."""
BODY_S = 30.0
LEAST_BYTES_PER_S = 1_024
"""A body may take BODY_S, and a second more for each of these."""
FILES = 65_536


class Protocol(H11Protocol):
    """HTTP/1.1 with a limit of time for the headers of a request."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADERS_S, self._end)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


class BodyTime:
    """ASGI middleware that ends a request whose body comes too slowly."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        began, received, has_more = time.monotonic(), 0, True
        is_late = is_answered = False

        async def timely() -> Message:
            nonlocal received, has_more, is_late
            if not has_more:
                return await receive()
            left_s = began + BODY_S + received / LEAST_BYTES_PER_S - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), max(left_s, 0.001))
            except TimeoutError:
                has_more, is_late = False, True
                return {"type": "http.disconnect"}
            received += len(message.get("body", b""))
            has_more = bool(message.get("more_body"))
            return message

        async def watched(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        await self._application(scope, timely, watched)
        if is_late and not is_answered:
            await send({"type": "http.response.start", "status": 408, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": b""})


def files_allow() -> None:
    """Let this process open as many files and connections as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
