"""Half requests: connections that send nothing more are closed, and hold up nobody meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from parlab import slow_requests
from parlab.slow_requests import BodyTime, Protocol


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the size of the body, or end where the client goes."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": f"{size:4}".encode()})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(slow_requests, "HEADERS_S", 0.5)
    monkeypatch.setattr(slow_requests, "BODY_S", 0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    config = uvicorn.Config(BodyTime(echo), port=number, http=Protocol, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield number
    server.should_exit = True
    thread.join()


def opened(port: int, text: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    connection.sendall(text)
    return connection


WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
HALVES = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX: ", WHOLE + b"GET / HT")
SLOW_BODY = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\nabc"


@pytest.mark.slow
def test_half_requests_are_ended_and_hold_up_nobody(port: int) -> None:
    halves = [opened(port, text) for text in HALVES for _ in range(40)]
    halves += [opened(port, SLOW_BODY) for _ in range(40)]
    with opened(port, WHOLE) as client:
        assert b"200 OK" in client.recv(1_000)
    for half in halves:
        while half.recv(1_000):
            pass
        half.close()


def test_a_body_that_keeps_coming_is_read(port: int) -> None:
    body = bytes(4_096)
    with opened(port, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8192\r\n\r\n" + body) as client:
        time.sleep(0.9)  # longer than BODY_S, within the four seconds more for what has come
        client.sendall(body)
        answer = b""
        while b"8192" not in answer:
            piece = client.recv(1_000)
            assert piece
            answer += piece
