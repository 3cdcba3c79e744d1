"""The sender of a request behind proxies: what X-Forwarded-* says counts only from a trusted one."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from parlab.limits import Application, Receive, Scope, Send

_FORWARDED = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port", b"forwarded")
_LOOPBACK = "127.0.0.1"
PROXY_USER, PROXY_GROUPS = "parlab.proxy_user", "parlab.proxy_groups"
"""Keys of the scope with what an authenticating proxy says of a user."""


class TrustedProxies:
    """ASGI middleware that puts the address of the sender into the scope, and drops forged headers."""

    def __init__(
        self, application: Application, networks: Sequence[str], *, user_header: str = "", groups_header: str = ""
    ) -> None:
        self._application = application
        named = {PROXY_USER: user_header, PROXY_GROUPS: groups_header}
        self._people = {header.lower().encode(): key for key, header in named.items() if header}
        self._trusted = [ipaddress.ip_network(text, strict=False) for text in networks]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = self._seen(scope)
        await self._application(scope, receive, send)

    def _seen(self, scope: Scope) -> Scope:
        forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        host, port = scope.get("client") or ("", 0)
        if forwarded and not port:
            # uvicorn without --no-proxy-headers has believed the header of a proxy on this machine.
            host = _LOOPBACK
        if not self._is_trusted(host):
            dropped = {*_FORWARDED, *self._people}
            headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
            return {**scope, "client": (host, port), "headers": headers}
        scope = self._with_person(scope)
        named = b",".join(forwarded).decode("latin1").split(",")
        for text in reversed([part.strip() for part in named if part.strip()]):
            if not _is_address(text):
                break
            host = text
            if not self._is_trusted(text):
                break
        return {**scope, "client": (host, port)}

    def _with_person(self, scope: Scope) -> Scope:
        said: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            if name in self._people:
                said.setdefault(self._people[name], []).append(value.decode("utf-8", "replace").strip())
        if len(said.get(PROXY_USER, [])) > 1:  # the proxy has added its own to that of the client
            said.clear()
        headers = [(name, value) for name, value in scope["headers"] if name not in self._people]
        return {**scope, "headers": headers, **{key: ",".join(values) for key, values in said.items()}}

    def _is_trusted(self, text: str) -> bool:
        if not _is_address(text):
            return False
        address = ipaddress.ip_address(text)
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in network for network in self._trusted)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
