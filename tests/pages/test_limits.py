"""Requests that are too large are refused before anything keeps them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parlab import limits
from parlab.limits import BodyLimit, Message, Receive, Scope, Send


async def reading(_scope: Scope, receive: Receive, send: Send) -> None:
    """Read a body as Django does, and say how large it was."""
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def answer(path: str, chunks: list[bytes], *, announced: int | None = None) -> tuple[int, str, int]:
    """Send a request through the limit: status, text, and how many chunks were taken."""
    sent: list[Message] = []
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": chunks[taken - 1], "more_body": taken < len(chunks)}

    async def send(message: Message) -> None:
        sent.append(message)

    headers: list[Any] = [] if announced is None else [(b"content-length", str(announced).encode())]
    limited = BodyLimit(reading, upload_bytes=4 * 2**20, uploads=("/import/",))
    asyncio.run(limited({"type": "http", "path": path, "headers": headers}, receive, send))
    return sent[0]["status"], sent[1]["body"].decode(), taken


MIB = b"x" * 2**20


def test_an_upload_within_the_limit_comes_through() -> None:
    assert answer("/import/", [MIB] * 4, announced=4 * 2**20) == (200, str(4 * 2**20), 4)


def test_a_request_with_a_larger_announced_size_is_rejected() -> None:
    status, text, taken = answer("/import/", [MIB], announced=6 * 2**20)
    assert status == 413
    assert "larger than 4 MiB" in text
    assert "PARLAB_UPLOAD_LIMIT_MIB" in text
    assert taken == 0


def test_one_that_announces_nothing_is_stopped_on_the_way() -> None:
    status, _, taken = answer("/import/", [MIB] * 50)
    assert status == 413
    assert taken == 6


def test_other_paths_take_forms_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FORM_BYTES", 2**20)
    assert answer("/login/", [b"user=ada"])[0] == 200
    assert answer("/login/", [MIB, MIB])[0] == 413
