"""A second factor: asked after the password, on every road that takes one."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client

from parlab.lab.models import AuditEntry

from .issuers import is_in, person, sign_on

PASSWORD = "correct horse battery"
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_earlier_attempts() -> None:
    cache.clear()


def code_of(secret: str) -> str:
    counter = next(iter(yield_hotp_counters_from_time()))
    return str(format_hotp_value(hotp_value(secret, counter)))


def with_password(client: Client) -> str:
    """Log in with the password; return where that leads."""
    answer = client.post("/login/", {"username": "ada", "password": PASSWORD})
    return str(answer.headers.get("Location", ""))


@pytest.fixture
def secret(user: User) -> str:
    """Set up an authenticator of ada's by the pages; return its secret."""
    client = Client()
    assert with_password(client) == "/"
    client.post("/account/reauthenticate/", {"password": PASSWORD})
    page = client.get("/account/second-factor/totp/activate/").content.decode()
    shown = re.findall(r'value="([A-Z2-7]{16,})"', page)[0]
    assert client.post("/account/second-factor/totp/activate/", {"code": code_of(shown)}).status_code == 302
    assert base64.b32decode(shown + "=" * (-len(shown) % 8))
    return str(shown)


def test_a_code_is_asked_after_the_password(secret: str) -> None:
    AuditEntry.objects.all().delete()
    client = Client()
    assert with_password(client) == "/account/second-factor/authenticate/"
    assert not is_in(client)
    assert not AuditEntry.objects.exists()
    client.post("/account/second-factor/authenticate/", {"code": "000000"})
    assert not is_in(client)
    Authenticator.objects.update(last_used_at=None)

    cache.clear()  # a code works once, and that of the set-up was used
    client.post("/account/second-factor/authenticate/", {"code": code_of(secret)})
    assert is_in(client)
    assert [(row.action, row.route) for row in AuditEntry.objects.all()] == [("login", "mfa_authenticate")]


def test_codes_cannot_be_guessed(secret: str) -> None:
    client = Client()
    with_password(client)
    for _ in range(12):
        page = client.post("/account/second-factor/authenticate/", {"code": "000000"})
    assert "Too many" in page.content.decode()


def test_the_secret_is_not_in_the_database(secret: str) -> None:
    row = Authenticator.objects.get(type=Authenticator.Type.TOTP)
    assert secret not in str(row.data)


def test_a_password_alone_does_not_report(secret: str) -> None:
    credentials = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}"}
    answer = Client().get("/api/2.0/mlflow/experiments/get-by-name?experiment_name=x", headers=headers)
    assert answer.status_code == 401
    assert "token" in answer.content.decode()


def test_an_administrator_removes_the_second_factor_of_who_lost_it(secret: str, admin_user: User) -> None:
    client = Client()
    client.force_login(admin_user)
    pk = User.objects.get(username="ada").pk
    client.post("/admin/auth/user/", {"action": "remove_second_factor", "_selected_action": [pk]})
    assert not Authenticator.objects.exists()


def test_the_administration_may_ask_for_it(admin_user: User, settings: Any) -> None:
    client = Client()
    client.force_login(admin_user)
    assert client.get("/admin/").status_code == 200
    settings.ADMIN_SECOND_FACTOR = True
    answer = client.get("/admin/lab/run/")
    assert (answer.status_code, answer["Location"]) == (302, "/account/second-factor/")
    assert client.get("/").status_code == 200, "pages are open"
    Authenticator.objects.create(user=admin_user, type=Authenticator.Type.TOTP, data={})
    assert client.get("/admin/").status_code == 200


def test_single_sign_on_has_the_factors_of_its_issuer(issuer: str, settings: Any) -> None:
    settings.ADMIN_SECOND_FACTOR = True
    person(issuer, "root", groups=["research"])
    client = Client()
    sign_on(client, "root")
    User.objects.update(is_superuser=True, is_staff=True)
    assert client.get("/admin/").status_code == 200


def test_changing_it_needs_the_password_again(user: User) -> None:
    client = Client()
    client.force_login(user)
    answer = client.get("/account/second-factor/totp/activate/")
    assert answer["Location"].startswith("/account/reauthenticate/")
    assert "Password" in client.get(answer["Location"]).content.decode()
