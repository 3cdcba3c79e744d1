"""JSON over HTTP to the server, over one connection that stays open."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

PAGE_SIZE = 1_000
TIMEOUT_S = 30.0
LONG_TIMEOUT_S = 3_600.0
"""For work that the server does before it answers, such as the import of a large file."""


class Unreachable(OSError):
    """The server did not answer, or cannot serve at the moment; the same request may succeed later."""


class Refused(Exception):
    """The server refused a request; sending it again unchanged does not help."""

    def __init__(self, status: int, message: str, errors: list[Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.errors = errors or []


class Connection:
    """Requests to one server. Safe from several threads: one request at a time."""

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Raise ValueError for an address that is not HTTP."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {url!r} is not the address of a server; use one like http://127.0.0.1:8000")
        self.url = url
        self.agent = ""
        """Name of the agent that acts with the token, for the audit log."""
        self._parts = parts
        self._token = token
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._prefix = ""
        self._lock = threading.Lock()

    def json(self, method: str, path: str, body: Any = None) -> Any:
        """Send and receive JSON."""
        data = None if body is None else json.dumps(body).encode()
        answer, _ = self.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        try:
            return json.loads(answer) if answer else None
        except ValueError:
            raise Unreachable(f"{self.url} answers with something that is not JSON; is it a parlab server?") from None

    def rows(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of all pages of a list."""
        number, joint = 1, "&" if "?" in path else "?"
        while True:
            answer = self.json("GET", f"{path}{joint}page_size={PAGE_SIZE}&page={number}")
            yield from answer["results"]
            if not answer["next"]:
                return
            number += 1

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, where compression costs more than it saves."""
        return self._parts.hostname in ("127.0.0.1", "localhost", "::1")

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Send one request; return the body and headers of the answer. Raises Unreachable or Refused.

        `meanwhile` is called once while the server works on the request.
        """
        sent = {"Accept": "application/json", **(headers or {})}
        if self._token:
            sent["Authorization"] = f"Token {self._token}"
        if self.agent:
            sent["Parlab-Agent"] = self.agent
        with self._lock:
            is_reused = self._connection is not None
            try:
                try:
                    status, answer, received = self._exchange(method, path, body, sent, meanwhile)
                except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                    # Servers close idle connections without notice. Every request of this client may be repeated.
                    self._close()
                    if not is_reused:
                        raise
                    status, answer, received = self._exchange(method, path, body, sent)
            except (OSError, http.client.HTTPException) as error:
                self._close()
                raise Unreachable(f"{self.url} cannot be reached: {error or type(error).__name__}") from error
        if status >= 500 or status == 429:
            raise Unreachable(f"{self.url} answered {status} to {method} {path}")
        if status >= 400:
            raise _refusal(status, answer)
        if status >= 300:
            raise Refused(
                status, f"{self.url} redirects to {received.get('Location', 'another address')}; use that address"
            )
        return answer, received

    def with_long_timeout(self) -> Connection:
        """Return another connection to the server, which waits LONG_TIMEOUT_S for answers; the caller closes it."""
        return Connection(self.url, self._token, timeout_s=LONG_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        meanwhile: Callable[[], object] | None = None,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        if self._connection is None:
            self._connection = self._connected()
        self._connection.request(method, self._prefix + path, body=body, headers=dict(headers))
        if meanwhile is not None:
            meanwhile()
        response = self._connection.getresponse()
        answer = response.read()
        received = dict(response.headers.items())
        if response.will_close:
            self._close()
        return response.status, answer, received

    def _connected(self) -> http.client.HTTPConnection:
        """Connect, through the proxy that the environment names."""
        parts = self._parts
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        proxy = urllib.request.getproxies().get(parts.scheme)
        if proxy and not urllib.request.proxy_bypass(host):
            target = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
            connection = self._connection_to(parts.scheme, target.hostname or "", target.port or 8080)
            if parts.scheme == "https":
                connection.set_tunnel(host, port, headers=_proxy_headers(target))
            else:
                self._prefix = f"http://{host}:{port}{self._prefix}"
        else:
            connection = self._connection_to(parts.scheme, host, port)
        connection.connect()
        # Header and body are separate writes; without this, the second waits for the acknowledgement of the first.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _connection_to(self, scheme: str, host: str, port: int) -> http.client.HTTPConnection:
        if scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)


def _proxy_headers(proxy: urllib.parse.SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    credentials = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


def _refusal(status: int, answer: bytes) -> Refused:
    try:
        errors = json.loads(answer)["errors"]
        message = "; ".join(f"{error['message']}; {error['remedy']}" for error in errors)
    except (ValueError, KeyError, TypeError):
        return Refused(status, f"the server answered {status}: {answer[:300].decode('utf-8', 'replace')}")
    return Refused(status, message, errors)
