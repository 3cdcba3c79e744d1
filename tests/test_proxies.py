"""The sender behind proxies: X-Forwarded-For counts only from those that the setting lists."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parlab.proxies import TrustedProxies


def seen(peer: tuple[str, int], *headers: tuple[bytes, bytes], trusted: list[str]) -> tuple[str, list[bytes]]:
    """Return the address and the names of the headers that the application sees."""
    scopes: list[dict[str, Any]] = []

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        scopes.append(scope)

    scope = {"type": "http", "client": peer, "headers": list(headers)}
    asyncio.run(TrustedProxies(application, trusted)(scope, None, None))  # type: ignore[arg-type]
    return scopes[0]["client"][0], [name for name, _ in scopes[0]["headers"]]


FORGED = (b"x-forwarded-for", b"192.0.2.1")


@pytest.mark.parametrize("trusted", [[], ["10.0.0.0/8"]])
def test_headers_of_others_are_dropped(trusted: list[str]) -> None:
    headers = [FORGED, (b"x-forwarded-proto", b"https"), (b"host", b"parlab")]
    assert seen(("198.51.100.7", 4), *headers, trusted=trusted) == ("198.51.100.7", [b"host"])


def test_the_sender_is_the_last_address_that_is_no_trusted_proxy() -> None:
    chain = (b"x-forwarded-for", b"203.0.113.9, 192.0.2.1, 10.0.0.5")
    for peer in ("10.0.0.4", "::ffff:10.0.0.4"):
        assert seen((peer, 4), FORGED, chain, trusted=["10.0.0.0/8"]) == ("192.0.2.1", [b"x-forwarded-for"] * 2)
    assert seen(("10.0.0.4", 4), (b"x-forwarded-for", b"nonsense"), trusted=["10.0.0.0/8"])[0] == "10.0.0.4"
    assert seen(("10.0.0.4", 4), trusted=["10.0.0.0/8"])[0] == "10.0.0.4"


def test_what_uvicorn_has_believed_by_itself_does_not_count() -> None:
    assert seen(("192.0.2.1", 0), FORGED, trusted=[])[0] == "127.0.0.1"
    assert seen(("192.0.2.1", 0), FORGED, trusted=["127.0.0.1"])[0] == "192.0.2.1"
