"""Logins by the header of an authenticating proxy: from a trusted address alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http.cookies import SimpleCookie
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.test import Client

from parlab.lab.models import AuditEntry, Project
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.service_accounts import service_account_create
from parlab.proxies import TrustedProxies

PROXY, ELSEWHERE = "10.0.0.1", "10.9.9.9"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ask(settings: Any) -> Callable[..., int]:
    """Send a request as uvicorn hands it on: ask(PROXY, user="ada"); returns the status of the account page."""
    groups_refresh()
    settings.PROXY_USER_HEADER, settings.PROXY_GROUPS_HEADER = "Remote-User", "Remote-Groups"
    settings.SIGNON_GROUPS = {"research": "operator"}
    application = TrustedProxies(
        get_asgi_application(), [PROXY], user_header="Remote-User", groups_header="Remote-Groups"
    )
    cookies: SimpleCookie = SimpleCookie()

    async def sent(host: str, headers: list[tuple[bytes, bytes]], path: str) -> int:
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
                 "headers": headers, "client": (host, 1234), "server": ("testserver", 80), "scheme": "http",
                 "http_version": "1.1", "asgi": {"version": "3.0"}, "root_path": ""}  # fmt: skip
        got: list[Mapping[str, Any]] = []
        bodies = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not bodies:
                await asyncio.sleep(3600)
            return bodies.pop()

        async def send(message: Mapping[str, Any]) -> None:
            got.append(message)

        await application(scope, receive, send)
        for name, value in got[0]["headers"]:
            if name.lower() == b"set-cookie":
                cookies.load(value.decode())
        return int(got[0]["status"])

    def asked(host: str, path: str = "/account/", /, groups: str = "research", **who: str) -> int:
        headers = [(b"host", b"testserver")]
        headers += [(b"remote-user", name.encode()) for name in who.values()]
        headers += [(b"remote-groups", groups.encode())] if who else []
        jar = "; ".join(f"{name}={cookie.value}" for name, cookie in cookies.items())
        return asyncio.run(sent(host, [*headers, (b"cookie", jar.encode())], path))

    return asked


def test_the_proxy_names_who_comes(ask: Callable[..., int]) -> None:
    assert ask(PROXY, user="ada") == 200
    user = User.objects.get()
    assert (user.username, [group.name for group in user.groups.all()]) == ("ada", ["operator"])
    assert ask(PROXY, user="ada") == 200
    assert [(row.username, row.action) for row in AuditEntry.objects.all()] == [("ada", "login")]


def test_the_header_of_another_address_is_dropped(ask: Callable[..., int]) -> None:
    assert ask(ELSEWHERE, user="ada") == 302
    assert not User.objects.exists()


def test_a_header_that_came_through_the_proxy_with_its_own_lets_nobody_in(ask: Callable[..., int]) -> None:
    User.objects.create_superuser("root")
    assert ask(PROXY, forged="root", own="ada") == 302


def test_a_server_that_is_not_behind_the_check_lets_nobody_in(settings: Any) -> None:
    settings.PROXY_USER_HEADER = "Remote-User"
    User.objects.create_superuser("root")
    assert Client(headers={"Remote-User": "root"}).get("/account/").status_code == 302


def test_a_session_ends_when_the_proxy_names_another_or_nobody(ask: Callable[..., int]) -> None:
    assert ask(PROXY, user="ada") == 200
    assert ask(PROXY, user="bob") == 200
    assert list(AuditEntry.objects.values_list("username", flat=True).order_by("pk")) == ["ada", "bob"]
    assert ask(PROXY) == 302


@pytest.mark.parametrize("name", ["a b", "a/b", "x" * 200, " "])
def test_an_invalid_name_lets_nobody_in(ask: Callable[..., int], name: str) -> None:
    assert ask(PROXY, user=name) == 302
    assert not User.objects.exists()


def test_who_is_in_no_group_disabled_or_a_service_stays_out(ask: Callable[..., int]) -> None:
    assert ask(PROXY, user="eve", groups="football") == 302
    assert not User.objects.exists()
    User.objects.create_user("ada", is_active=False)
    assert ask(PROXY, user="ada") == 302
    owner = User.objects.create_user("owner")
    project = Project.objects.get_or_create(is_shared=True, defaults={"name": "Shared", "slug": "shared"})[0]
    service = service_account_create(project=project, name="nightly", by=owner)
    assert ask(PROXY, user=service.user.username) == 302
