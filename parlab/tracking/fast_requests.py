"""The short road for what scripts report: requests that come many times a second skip Django's middleware.

Under ASGI, Django runs every synchronous middleware in another thread and opens a connection to the database for each
request, which takes ten times as long as storing ten points. The views of the routes below need none of it: they
authenticate by token or signature, and answer in JSON. Their threads keep their connections.

Batches of parlab's client, and those that pods post, that arrive while others are being stored are stored together, in
one transaction: the busier the server is, the less each batch costs.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple, Protocol

from django.contrib.auth.models import AnonymousUser
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.exception import response_for_exception
from django.core.signals import request_started
from django.db import OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.security import SecurityMiddleware

from parlab.lab.models.access.viewer import Viewer
from parlab.limits import Application, Receive, Scope, Send

from .mlflow import runs as mlflow
from .mlflow.protocol import endpoint
from .mlflow.urls import PREFIXES
from .spool_views import WaitingSpool, spool_received, spools_store
from .stream_views import Waiting, batches_store, received

logger = logging.getLogger(__name__)

View = Callable[..., HttpResponseBase]

MAX_BODY_BYTES = 4 << 20
"""Larger bodies, and all beyond HELD_BYTES, take the long road, which keeps them on disk."""
HELD_BYTES = 64 << 20
TOGETHER = 64
TOGETHER_BYTES = 8 << 20
"""Batches, and their bytes, that one transaction stores."""
_ENDPOINTS = {
    "runs/log-batch": mlflow.log_batch,
    "runs/log-metric": mlflow.log_metric,
    "runs/log-parameter": mlflow.log_parameter,
    "runs/set-tag": mlflow.set_tag,
}
_VIEWS = {
    f"/{prefix}/{name}": endpoint("POST", function) for prefix in PREFIXES for name, function in _ENDPOINTS.items()
}
_SPOOL = re.compile(r"/api/spools/(\d{1,18})/(\d{1,9})/")
_STREAM = re.compile(r"/api/runs/([^/]+)/streams/([^/]+)/")
_TOKEN = re.compile(rb"(?i:bearer|token) +\S{1,200}")


Senders = dict[str, Viewer]
"""Those of requests that arrived together, by their tokens."""


class BatchView(Protocol):
    """Checks a batch; the response may wait for it to be stored."""

    def __call__(self, request: HttpRequest, *, senders: Senders) -> HttpResponse:
        """Answer a request."""


class _Arrival(NamedTuple):
    """A batch whose client waits for the response."""

    scope: Scope
    body: bytes
    view: BatchView
    response: asyncio.Future[HttpResponse]

    def respond(self, response: HttpResponse) -> None:
        """Hand the response to the loop of the request, unless the client or the server has gone."""

        def respond() -> None:
            if not self.response.done():
                self.response.set_result(response)

        with suppress(RuntimeError):
            self.response.get_loop().call_soon_threadsafe(respond)


class ReportRoad:
    """ASGI middleware that answers the requests of scripts in threads of its own."""

    def __init__(self, application: Application) -> None:
        self._application = application
        # SQLite has one writer at a time; the second thread works while the first one refreshes findings.
        self.pool = ThreadPoolExecutor(2 if connection.vendor == "sqlite" else 4, thread_name_prefix="reports")
        self._held = 0
        self._arrivals = deque[_Arrival]()
        self._lock = threading.Lock()
        self._is_storing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer, size = self._answer_of(scope), _size(scope)
        if answer is None or not 0 <= size <= MAX_BODY_BYTES or self._held + size > HELD_BYTES:
            await self._application(scope, receive, send)
            return
        self._held += size
        try:
            body = await _body(receive)
            if body is None:
                return
            response = await answer(body)
        finally:
            self._held -= size
        headers = [(name.encode("ascii"), value.encode("latin1")) for name, value in response.items()]
        headers.append((b"Content-Length", str(len(response.content)).encode()))
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": response.content})

    def _answer_of(self, scope: Scope) -> Callable[[bytes], Awaitable[HttpResponse]] | None:
        """Return what answers a request here, given its body."""
        if not _is_post(scope):
            return None
        if match := _SPOOL.fullmatch(scope["path"]):
            return partial(self._stored, scope, partial(spool_received, run=int(match[1]), attempt=int(match[2])))
        if not _has_token(scope):
            return None
        view = _VIEWS.get(scope["path"])
        if view is not None:
            return partial(self._answered, view, scope)
        match = _STREAM.fullmatch(scope["path"])
        return partial(self._stored, scope, partial(received, run=match[1], key=match[2])) if match else None

    async def _answered(self, view: View, scope: Scope, body: bytes) -> HttpResponse:
        return await asyncio.get_running_loop().run_in_executor(self.pool, _answer, view, scope, body)

    def _stored(self, scope: Scope, view: BatchView, body: bytes) -> asyncio.Future[HttpResponse]:
        """Return the response to a batch, which is stored with those that wait at the same time."""
        response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._arrivals.append(_Arrival(scope, body, view, response))
            if not self._is_storing:
                self._is_storing = True
                self.pool.submit(self._store)
        return response

    def _store(self) -> None:
        """Store batches until none waits."""
        while arrivals := self._next_arrivals():
            try:
                responses = _answers(arrivals)
            except Exception:
                logger.exception("%d batches are not stored; their clients send them again", len(arrivals))
                responses = [HttpResponse(status=500)] * len(arrivals)
            for arrival, response in zip(arrivals, responses, strict=True):
                arrival.respond(response)

    def _next_arrivals(self) -> list[_Arrival]:
        arrivals, size = list[_Arrival](), 0
        with self._lock:
            while self._arrivals and len(arrivals) < TOGETHER and size < TOGETHER_BYTES:
                arrivals.append(self._arrivals.popleft())
                size += len(arrivals[-1].body)
            self._is_storing = bool(arrivals)
        return arrivals


def _answers(arrivals: Sequence[_Arrival]) -> list[HttpResponse]:
    """Check each batch, store all that are valid together, and return the responses."""
    senders: Senders = {}
    responses = [_answer(partial(arrival.view, senders=senders), arrival.scope, arrival.body) for arrival in arrivals]
    failed: dict[int, HttpResponse] = {}
    for kind, keep in _KINDS:
        failed |= _store([response for response in responses if isinstance(response, kind)], keep)
    return [failed.get(id(response), response) for response in responses]


_KINDS: tuple[tuple[type[Waiting] | type[WaitingSpool], Callable[[Sequence[Any]], None]], ...] = (
    (Waiting, batches_store),
    (WaitingSpool, spools_store),
)
"""Responses that wait -> what stores their batches."""


def _store(waiting: Sequence[Any], keep: Callable[[Sequence[Any]], None]) -> dict[int, HttpResponse]:
    """Store batches together; return the responses to those that cannot be stored, by the ids of those that waited."""
    try:
        if waiting:
            keep(waiting)
    except Exception as error:
        # One batch that cannot be stored holds up no other, unless it is the database that fails.
        if len(waiting) == 1 or isinstance(error, OperationalError):
            return {id(each): _failure(each, error) for each in waiting}
        return {key: failure for each in waiting for key, failure in _store([each], keep).items()}
    return {}


def _failure(response: Any, error: Exception) -> HttpResponse:
    failure: Any = response_for_exception(response.request, error)
    return failure  # type: ignore[no-any-return]  # responses to exceptions are whole


def _is_post(scope: Scope) -> bool:
    """Return whether a request posts something under the usual path."""
    return scope["type"] == "http" and scope["method"] == "POST" and not scope.get("root_path")


def _has_token(scope: Scope) -> bool:
    # A password takes a tenth of a second to check, and counts as an attempt to log in.
    return bool(_TOKEN.fullmatch(_header(scope, b"authorization")))


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


def _size(scope: Scope) -> int:
    """Return the stated size of the body; -1 where it is not stated."""
    text = _header(scope, b"content-length")
    return int(text) if text.isdigit() and len(text) < 12 else -1


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
