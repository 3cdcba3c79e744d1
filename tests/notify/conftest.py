"""A real HTTP server that records requests and answers as a test wishes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import User

from parlab.lab.models import Experiment
from parlab.notify import services
from parlab.notify.models import Subscription


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers with the statuses of `answers` in order, then with 204; `handle` replaces the answer."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.handle: Callable[[BaseHTTPRequestHandler], None] | None = None
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                receiver.requests.append(Request(self.path, dict(self.headers), body))
                if receiver.handle is not None:
                    receiver.handle(self)
                    return
                status, headers = receiver.answers.pop(0) if receiver.answers else (204, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook?from=parlab"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def loopback_allowed(settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = ["127.0.0.0/8"]


@pytest.fixture
def subscribe(admin: User, receiver: Receiver, loopback_allowed: None) -> Callable[..., Subscription]:
    """Subscribe the administrator's webhook: subscribe(topics=["failed"], experiment=...)."""

    def make(topics: tuple[str, ...] = ("ended",), experiment: Experiment | None = None) -> Subscription:
        return services.subscription_create(
            user=admin,
            channel="webhook",
            url=receiver.url,
            topics=topics,
            experiment=experiment,
            base_url="http://parlab.test/",
        )

    return make


@pytest.fixture
def mailer(admin: User, settings: Any) -> User:
    """The administrator, with a mail address, on a server that sends mail."""
    settings.SENDS_MAIL = True
    admin.email = "ada@example.org"
    admin.save()
    return admin
