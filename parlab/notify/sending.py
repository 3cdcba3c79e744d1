"""One request to an address that a user chose: bounded in time and size, and only to places that a setting allows.

The name is resolved once and the connection goes to the address that was checked: a second look-up could return another
one. Redirects are not followed and proxies of the environment are not used, because both could lead anywhere.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from parlab.whole_numbers import whole_number

MAX_URL = 2_000
MAX_ANSWER_BYTES = 4_096
TIMEOUT_S = 10.0

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Forbidden(ValueError):
    """An address that parlab does not send to; the message names value and remedy."""


class Answer(NamedTuple):
    """What became of a request."""

    status: int | None
    """HTTP status; None without an answer."""
    text: str
    took_ms: int
    retry_after_s: float | None = None
    is_forbidden: bool = False
    """Whether nothing was sent, because the address is not allowed."""


def check_url(url: str) -> SplitResult:
    """Split an address; raises Forbidden for one that no request can be sent to."""
    if len(url) > MAX_URL:
        raise Forbidden(f"url of {len(url)} characters is too long; use at most {MAX_URL}")
    if not url.isascii() or any(letter <= " " or letter == "\x7f" for letter in url):
        raise Forbidden(f"url {url[:80]!r} contains spaces or letters beyond ASCII; encode them with % or punycode")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Forbidden(f"url {url[:80]!r} is invalid ({error}); use https://host/path") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Forbidden(f"url {url[:80]!r} is no web address; use https://host/path")
    if parts.username is not None or parts.password is not None:
        raise Forbidden("url contains a user name or password; use a secret path, or check the signature")
    if port == 0:
        raise Forbidden(f"url {url[:80]!r} has port 0; use another port or none")
    return parts


def addresses_of(
    host: str, port: int, allowed: Sequence[Network], setting: str = "PARLAB_WEBHOOK_NETWORKS"
) -> list[str]:
    """Resolve a host; raises Forbidden if any of its addresses is neither public nor in an allowed network."""
    rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(row[4][0]) for row in rows))
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        if not is_allowed(address, allowed):
            raise Forbidden(
                f"url resolves to {text}, which is no public address; add its network to {setting} to allow it"
            )
    return addresses


def check_literal(parts: SplitResult, allowed: Sequence[Network]) -> None:
    """Raise Forbidden for an address in figures, or this machine, that nothing may be sent to; names are not asked."""
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
    with suppress(socket.gaierror):
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
        addresses_of(host, port_of(parts), allowed)


def is_allowed(address: Address, allowed: Sequence[Network]) -> bool:
    """Return whether requests may go to an address; one that wraps an IPv4 address counts as that one."""
    if isinstance(address, ipaddress.IPv6Address):
        wrapped = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            wrapped = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_allowed(wrapped, allowed)
    if any(address in network for network in allowed if network.version == address.version):
        return True
    return address.is_global and not address.is_multicast


class _Connection(http.client.HTTPConnection):
    """A connection to an address that was checked, whatever the host's name resolves to now."""

    def __init__(self, parts: SplitResult, address: str, timeout_s: float) -> None:
        self._is_secure = parts.scheme == "https"
        super().__init__(parts.hostname or "", port_of(parts), timeout=timeout_s)
        self._address = address
        # http.client forgets its socket while the answer is still being read.
        self.live_socket: socket.socket | None = None

    def connect(self) -> None:
        self.sock = self.live_socket = socket.create_connection((self._address, self.port), self.timeout)
        if self._is_secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)
            self.live_socket = self.sock


def port_of(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, allowed: Sequence[Network], timeout_s: float = TIMEOUT_S
) -> Answer:
    """Send a POST request and return its answer, or why there is none; never raises."""
    began = time.monotonic()

    def answer(status: int | None, text: str, retry_after_s: float | None = None, *, forbidden: bool = False) -> Answer:
        return Answer(status, text[:300], round(1000 * (time.monotonic() - began)), retry_after_s, forbidden)

    try:
        parts = check_url(url)
        addresses = addresses_of(parts.hostname or "", port_of(parts), allowed)
    except Forbidden as problem:
        return answer(None, str(problem), forbidden=True)
    except (OSError, UnicodeError) as problem:
        return answer(None, f"the host cannot be resolved: {problem}")
    connection = _Connection(parts, addresses[0], timeout_s)
    # A timeout of the socket counts from byte to byte; this one ends the request as a whole.
    is_over = threading.Event()
    watchdog = threading.Timer(timeout_s, _interrupt, [connection, is_over])
    watchdog.daemon = True
    watchdog.start()
    try:
        target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        host = parts.netloc.rpartition("@")[2]
        connection.request("POST", target, body, {"Host": host, "Connection": "close", **headers})
        response = connection.getresponse()
        if is_over.is_set():  # the end of the connection looks like the end of the headers
            raise TimeoutError
        text = response.read(MAX_ANSWER_BYTES).decode("utf-8", "replace").replace("\x00", "")
        return answer(response.status, text, _retry_after_s(response.headers.get("Retry-After", "")))
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as problem:
        is_late = is_over.is_set() or isinstance(problem, TimeoutError)
        why = f"complete answer within {timeout_s:g} s" if is_late else f"answer: {problem or type(problem).__name__}"
        return answer(None, f"no {why}")
    finally:
        watchdog.cancel()
        connection.close()


def _interrupt(connection: _Connection, is_over: threading.Event) -> None:
    is_over.set()
    if connection.live_socket is not None:
        with suppress(OSError):  # it may have ended in the meantime
            connection.live_socket.shutdown(socket.SHUT_RDWR)


def _retry_after_s(text: str) -> float | None:
    number = whole_number(text.strip(), 6)
    return None if number is None else float(number)
