"""The account page: tokens that are shown once, password, permissions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from parlab.lab.models import ApiToken
from parlab.lab.services.access import tokens
from parlab.lab.services.access.tokens import token_create, token_find

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.fixture
def browser(user: User) -> Client:
    user.set_password(PASSWORD)
    user.save()
    client = Client()
    client.force_login(user)
    return client


def test_a_token_is_shown_once_works_and_ends_when_it_is_revoked(browser: Client, user: User) -> None:
    made = browser.post(reverse("token-make"), {"name": " nightly  import ", "scopes": ["read"]})
    secret = re.findall(r"parlab_[\w-]{43}", made.content.decode())[0]
    headers = {"Authorization": f"Token {secret}"}
    assert "no-store" in made["Cache-Control"]
    assert Client().get("/api/experiments/", headers=headers).status_code == 200

    page = browser.get(reverse("account")).content.decode()
    assert "nightly import" in page
    assert secret not in page
    first = user.api_tokens.get()
    token_create(user=user, name="made with it", by=user, created_with=first)
    answer = browser.post(reverse("token-revoke", args=[first.pk]), follow=True)

    assert "Revoked nightly import and 1 that it had created." in answer.content.decode()
    assert Client().get("/api/experiments/", headers=headers).status_code == 401
    assert not user.api_tokens.filter(revoked_at=None).exists()


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        (" ", 400, "name is empty"),
        ("\0 <i>", 400, "already"),
        ("<script>", 200, "&lt;script&gt;"),
        ("x" * 500, 200, "x" * 80 + ":"),
    ],
)
def test_names_of_tokens(browser: Client, user: User, name: str, status: int, message: str) -> None:
    token_create(user=user, name="\0 <i>", by=user)
    answer = browser.post(reverse("token-make"), {"name": name, "scopes": ["read"]})
    assert answer.status_code == status
    assert message in answer.content.decode()
    assert "<i>" not in answer.content.decode()


def test_a_person_has_not_more_tokens_than_they_can_look_after(
    browser: Client, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 1)
    token_create(user=user, name="first", by=user)
    page = browser.post(reverse("token-make"), {"name": "second", "scopes": ["read"]})
    assert page.status_code == 400
    assert "revoke one that is no longer used" in page.content.decode()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "scopes are empty"),
        ({"scopes": ["read", "root"]}, "scopes root; choose some of read, report, write, launch, admin"),
        ({"scopes": ["read"], "days": "soon"}, "is not a number"),
        ({"scopes": ["read"], "days": "99999"}, "days 99999 is out of range"),
    ],
)
def test_a_token_needs_scopes_and_a_lifetime(browser: Client, user: User, fields: dict[str, Any], message: str) -> None:
    page = browser.post(reverse("token-make"), {"name": "odd", **fields})
    assert page.status_code == 400
    assert message in page.content.decode()
    assert not user.api_tokens.exists()


def test_an_expired_token_is_refused_and_its_name_is_free_again(browser: Client, user: User) -> None:
    browser.post(reverse("token-make"), {"name": "for a month", "scopes": ["read"], "days": "30"})
    token = user.api_tokens.get()
    assert (token.scopes, token.is_expired) == ("read", False)
    assert token.expires_at is not None
    assert timedelta(days=29) < token.expires_at - timezone.now() < timedelta(days=31)
    again, secret = token_create(user=user, name="short", by=user, days=1)
    ApiToken.objects.update(expires_at=timezone.now())
    assert token_find(secret) is None
    assert Client().get("/api/experiments/", headers={"Authorization": f"Token {secret}"}).status_code == 401
    assert "expired" in browser.get(reverse("account")).content.decode()
    assert token_create(user=user, name="short", by=user)[0] != again


def test_users_cannot_revoke_tokens_of_others(browser: Client, admin_user: User) -> None:
    token, secret = token_create(user=admin_user, name="theirs", by=admin_user)
    assert browser.post(reverse("token-revoke", args=[token.pk])).status_code == 404
    assert token_find(secret) == token


def test_the_time_of_use_is_written_at_most_once_a_minute(user: User, django_assert_num_queries: Any) -> None:
    token, secret = token_create(user=user, name="often", by=user)
    token_find(secret)
    token.refresh_from_db()
    first = token.last_used_at
    assert first is not None
    with django_assert_num_queries(1):
        token_find(secret)
    assert ApiToken.objects.get().last_used_at == first


def test_the_password_is_changed_by_who_knows_it(browser: Client, user: User) -> None:
    url = reverse("password")
    new = {"new_password1": "another staple 7", "new_password2": "another staple 7"}
    refused = browser.post(url, {"old_password": "guess", **new})
    assert refused.status_code == 400
    assert "entered incorrectly" in refused.content.decode()
    short = browser.post(
        url, {"old_password": PASSWORD, "new_password1": "staple 7890", "new_password2": "staple 7890"}
    )
    assert "at least 12 characters" in short.content.decode()
    assert browser.post(url, {"old_password": PASSWORD, **new}).status_code == 302
    user.refresh_from_db()
    assert user.check_password("another staple 7")
    assert browser.get(reverse("account")).status_code == 200


def test_who_may_only_look_reads_that_here(browser: Client) -> None:
    page = browser.get(reverse("account")).content.decode()
    assert "Not in any group" in page
    assert "<b>Yes</b>" not in page


@pytest.mark.parametrize("page", ["account", "notifications", "audit"])
def test_pages_of_the_account_are_not_kept_by_browsers(browser: Client, user: User, page: str) -> None:
    User.objects.filter(pk=user.pk).update(is_superuser=True)
    assert "no-store" in browser.get(reverse(page))["Cache-Control"]


def logged_in(user: User) -> Client:
    user.set_password(PASSWORD)
    user.save()
    client = Client()
    assert client.post(reverse("login"), {"username": user.username, "password": PASSWORD}).status_code == 302
    return client


def test_a_session_ends_when_its_user_does_nothing(user: User, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    client, began = logged_in(user), time.time()
    later = {"h": 0.0}
    monkeypatch.setattr("parlab.pages.requests.idle_sessions.time.time", lambda: began + 3600 * later["h"])
    poll = {"HX-Request": "true"}
    for hours, headers, is_in in ((70, {}, True), (140, poll, True), (143, {}, False), (143, {}, False)):
        later["h"] = hours
        assert (client.get(reverse("account"), headers=headers).status_code == 200) is is_in


def test_a_session_ends_some_time_after_its_login_whatever_its_user_does(
    user: User, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.SESSION_IDLE_H = 0
    client, began = logged_in(user), time.time()
    later = {"h": 0.0}
    monkeypatch.setattr("parlab.pages.requests.idle_sessions.time.time", lambda: began + 3600 * later["h"])
    for hours, is_in in ((200, True), (335, True), (337, False)):
        later["h"] = hours
        assert (client.get(reverse("account")).status_code == 200) is is_in
    settings.SESSION_MAX_H = 0
    client = logged_in(user)
    later["h"] = 10_000
    assert client.get(reverse("account")).status_code == 200


def test_cookies_are_bound_to_the_host_under_https() -> None:
    """In a process of its own: the names are settings."""
    code = "from parlab import settings as s; print(s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.SHARED_NODE_KEY)"
    for https, names in (("1", "__Host-sessionid __Host-csrftoken"), ("0", "sessionid csrftoken")):
        environment = {**os.environ, "PARLAB_HTTPS": https}
        environment.pop("PARLAB_SHARED_NODE_KEY", None)
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == f"{names} False"
