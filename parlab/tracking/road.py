"""The short road for what scripts report: requests that come many times a second skip Django's middleware.

Under ASGI, Django runs every synchronous middleware in another thread and opens a connection to the database for each
request, which takes ten times as long as storing ten points. The views of the routes below need none of it: they
authenticate by token, and answer in JSON. Their threads keep their connections.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.exception import response_for_exception
from django.core.signals import request_started
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.security import SecurityMiddleware

from parlab.limits import Application, Receive, Scope, Send

from .mlflow import runs as mlflow
from .mlflow.protocol import endpoint
from .mlflow.urls import PREFIXES
from .stream_views import stream

View = Callable[..., HttpResponseBase]

MAX_BODY_BYTES = 4 << 20
"""Larger bodies, and all beyond HELD_BYTES, take the long road, which keeps them on disk."""
HELD_BYTES = 64 << 20
_ENDPOINTS = {
    "runs/log-batch": mlflow.log_batch,
    "runs/log-metric": mlflow.log_metric,
    "runs/log-parameter": mlflow.log_parameter,
    "runs/set-tag": mlflow.set_tag,
}
_VIEWS = {
    f"/{prefix}/{name}": endpoint("POST", function) for prefix in PREFIXES for name, function in _ENDPOINTS.items()
}
_STREAM = re.compile(r"/api/runs/([^/]+)/streams/([^/]+)/")
_TOKEN = re.compile(rb"(?i:bearer|token) +\S{1,200}")


class ReportRoad:
    """ASGI middleware that answers the requests of scripts in threads of its own."""

    def __init__(self, application: Application) -> None:
        self._application = application
        # SQLite has one writer at a time; the second thread works while the first one refreshes findings.
        self.pool = ThreadPoolExecutor(2 if connection.vendor == "sqlite" else 4, thread_name_prefix="reports")
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        view = _view_of(scope)
        size = _size(scope) if view is not None else 0
        if view is None or not 0 < size <= MAX_BODY_BYTES or self._held + size > HELD_BYTES:
            await self._application(scope, receive, send)
            return
        self._held += size
        try:
            body = await _body(receive)
            if body is None:
                return
            work = partial(_answer, view, scope, body)
            response = await asyncio.get_running_loop().run_in_executor(self.pool, work)
        finally:
            self._held -= size
        headers = [(name.encode("ascii"), value.encode("latin1")) for name, value in response.items()]
        headers.append((b"Content-Length", str(len(response.content)).encode()))
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": response.content})


def _view_of(scope: Scope) -> View | None:
    """Return the view that serves a request here: a report with a token, under the usual path."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope.get("root_path"):
        return None
    # A password takes a tenth of a second to check, and counts as an attempt to log in.
    if not _TOKEN.fullmatch(_header(scope, b"authorization")):
        return None
    view = _VIEWS.get(scope["path"])
    if view is not None:
        return view
    match = _STREAM.fullmatch(scope["path"])
    return (lambda request: stream(request, match[1], match[2])) if match else None


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


def _size(scope: Scope) -> int:
    text = _header(scope, b"content-length")
    return int(text) if text.isdigit() and len(text) < 12 else 0


async def _body(receive: Receive) -> bytes | None:
    """Return the whole body; None where the client has gone."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _answer(view: View, scope: Scope, body: bytes) -> HttpResponse:
    """Call a view as Django does, with its checks of host and encryption and its response to an exception."""
    request_started.send(sender=ReportRoad, scope=scope)

    def answered(request: HttpRequest) -> HttpResponseBase:
        try:
            request.get_host()
            return view(request)
        except Exception as error:
            return response_for_exception(request, error)

    request: Any = ASGIRequest(scope, BytesIO(body))
    request.user = AnonymousUser()
    response: Any = SecurityMiddleware(answered)(request)
    response.close()
    return response  # type: ignore[no-any-return]  # these views answer without streams
