"""Logins of `parlab login`: codes expire, work once, are limited, and only a POST of a logged-in user confirms them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from parlab.client.version import VERSION
from parlab.lab.models import ApiToken, AuditEntry, DeviceLogin
from parlab.lab.services.access.device_logins import LIFETIME, MAX_WAITING
from parlab.lab.services.access.tokens import MAX_TOKENS, token_create

pytestmark = pytest.mark.django_db

BEGIN, COLLECT, PAGE = "/api/login/device/", "/api/login/device/token/", "/device/"
JSON = "application/json"


@pytest.fixture
def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def begin(**body: Any) -> dict[str, Any]:
    answer = Client().post(BEGIN, {"host": "gpu-box", **body}, JSON)
    assert answer.status_code == 201, answer.content
    return dict(answer.json())


def collect(login: dict[str, Any]) -> Any:
    """Ask for the token, as if some seconds had passed since the last time."""
    DeviceLogin.objects.update(polled_at=None)
    return Client().post(COLLECT, {"device_code": login["device_code"]}, JSON)


def answer(browser: Client, login: dict[str, Any], text: str) -> Any:
    return browser.post(PAGE, {"code": login["user_code"], "answer": text})


def test_a_confirmed_code_becomes_a_token_with_the_scopes_that_the_page_has_shown(browser: Client, user: User) -> None:
    login = begin(scopes=["write"])
    assert login["verification_uri_complete"] == f"http://testserver{PAGE}?code={login['user_code']}"
    assert (collect(login).status_code, ApiToken.objects.count()) == (202, 0)

    page = browser.get(PAGE, {"code": login["user_code"].lower().replace("-", " ")})
    assert "<b>gpu-box</b> (address 127.0.0.1)" in page.content.decode()
    assert "<b>write</b>" in page.content.decode()
    assert "<b>launch</b>" not in page.content.decode()
    assert collect(login).status_code == 202  # looking at the page confirms nothing

    assert "now gets its token" in answer(browser, login, "confirm").content.decode()
    collected = collect(login)
    token = ApiToken.objects.get()
    assert (collected.status_code, collected["Cache-Control"]) == (200, "no-store")
    assert (collected.json()["username"], token.user, token.scope_names) == (user.username, user, ["write"])
    assert timedelta(days=89) < token.expires_at - timezone.now() < timedelta(days=91)  # type: ignore[operator]
    headers = {"Authorization": f"Token {collected.json()['secret']}"}
    assert Client().post("/api/experiments/", {}, JSON, headers=headers).status_code != 401
    assert Client().get("/api/experiments/", headers=headers).status_code == 403
    assert AuditEntry.objects.get().action == AuditEntry.Action.ACCESS


def test_a_code_works_once_on_both_sides(browser: Client) -> None:
    login = begin()
    answer(browser, login, "confirm")
    assert collect(login).status_code == 200
    again = collect(login)
    assert (again.status_code, again.json()["errors"][0]["remedy"]) == (410, "run parlab login again")
    assert answer(browser, login, "confirm").status_code == 404
    assert ApiToken.objects.count() == 1


def test_a_denied_code_gives_no_token(browser: Client) -> None:
    login = begin()
    assert "gets no token" in answer(browser, login, "deny").content.decode()
    assert "denied in the browser" in collect(login).json()["errors"][0]["message"]
    assert answer(browser, login, "confirm").status_code == 404
    assert not ApiToken.objects.exists()


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_code_expires(browser: Client, is_confirmed: bool) -> None:
    login = begin()
    if is_confirmed:
        answer(browser, login, "confirm")
    DeviceLogin.objects.update(expires_at=timezone.now())
    assert collect(login).status_code == 410
    assert answer(browser, login, "confirm").status_code == 404
    assert not ApiToken.objects.exists()


def test_nobody_confirms_without_a_login_or_from_another_site(user: User) -> None:
    login = begin()
    assert answer(Client(), login, "confirm")["Location"].startswith("/login/")
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(user)
    assert answer(strict, login, "confirm").status_code == 403
    assert collect(login).status_code == 202


def test_a_token_of_the_api_confirms_nothing(user: User) -> None:
    login, headers = begin(), {"Authorization": f"Token {token_create(user=user, name='a script', by=user)[1]}"}
    sent = Client().post(PAGE, {"code": login["user_code"], "answer": "confirm"}, headers=headers)
    assert sent["Location"].startswith("/login/")
    assert collect(login).status_code == 202


def test_an_address_begins_a_limited_number_of_logins_in_ten_minutes() -> None:
    for _ in range(MAX_WAITING):
        begin()
    refused = Client().post(BEGIN, {"host": "gpu-box"}, JSON)
    assert (refused.status_code, refused["Retry-After"]) == (429, "600")
    assert Client(REMOTE_ADDR="10.0.0.9").post(BEGIN, {"host": "other"}, JSON).status_code == 201
    DeviceLogin.objects.update(created_at=timezone.now() - LIFETIME)
    begin()


def test_a_client_that_asks_too_often_waits() -> None:
    login = begin()
    assert collect(login).status_code == 202
    assert Client().post(COLLECT, {"device_code": login["device_code"]}, JSON).status_code == 429


def test_a_user_who_guesses_codes_waits(browser: Client) -> None:
    login = begin()
    for _ in range(6):
        guessed = browser.get(PAGE, {"code": "BBBB-BBBB"})
    assert guessed.status_code == 429
    assert answer(browser, login, "confirm").status_code == 429
    assert collect(login).status_code == 202


def test_an_account_that_was_disabled_meanwhile_gets_no_token(browser: Client, user: User) -> None:
    login = begin()
    answer(browser, login, "confirm")
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert collect(login).status_code == 410


def test_a_user_with_too_many_tokens_is_told_and_can_revoke_one(browser: Client, user: User) -> None:
    for number in range(MAX_TOKENS):
        token_create(user=user, name=f"token {number}", by=user)
    login = begin()
    answer(browser, login, "confirm")
    refused = collect(login)
    assert (refused.status_code, refused.json()["errors"][0]["remedy"]) == (400, "revoke one that is no longer used")
    ApiToken.objects.filter(name="token 0").update(revoked_at=timezone.now())
    assert collect(login).status_code == 200


@pytest.mark.parametrize("body", [{}, {"host": ""}, {"host": "a", "scopes": ["root"]}, {"host": "a", "scopes": []}])
def test_an_invalid_request_is_refused(body: dict[str, Any]) -> None:
    assert Client().post(BEGIN, body, JSON).status_code == 400


def test_old_logins_are_forgotten() -> None:
    begin()
    DeviceLogin.objects.update(expires_at=timezone.now() - timedelta(days=2))
    begin()
    assert DeviceLogin.objects.count() == 1


def test_the_host_is_shown_as_text(browser: Client) -> None:
    login = begin(host="<script>x</script>")
    assert "&lt;script&gt;x" in browser.get(PAGE, {"code": login["user_code"]}).content.decode()


def test_the_version_needs_a_login(browser: Client) -> None:
    assert reverse("api:server-version") == "/api/version"
    assert Client().get("/api/version").status_code == 401
    assert browser.get("/api/version").json() == {"version": VERSION}
