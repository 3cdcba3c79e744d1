"""Guessing passwords is slowed down by name and address, and locks nobody else out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.lab.models import LoginFailure
from parlab.lab.services.access.logins import ACCOUNT_FAILURES, FREE_FAILURES, FREE_NAMES

PASSWORD = "correct horse battery"


def post(name: str, password: str, address: str = "10.0.0.1", at: str = "/login/") -> Any:
    return Client(REMOTE_ADDR=address).post(at, {"username": name, "password": password})


def test_the_administration_has_no_login_of_its_own(user: User) -> None:
    answer = post("ada", PASSWORD, at="/admin/login/?next=/admin/auth/")
    assert (answer.status_code, answer["Location"]) == (302, "/login/?next=%2Fadmin%2Fauth%2F")


def test_after_some_failures_the_name_has_to_wait_at_this_address_only(user: User) -> None:
    for _ in range(FREE_FAILURES):
        assert "Too many" not in post("ada", "wrong").content.decode()
    blocked = post("ADA ", PASSWORD)
    assert blocked.status_code == 200
    assert "Too many failed logins with this name from this address. Try again in 15 s." in blocked.content.decode()
    # Whoever guessed has locked only itself out.
    assert post("ada", PASSWORD, "10.0.0.2").status_code == 302
    LoginFailure.objects.update(blocked_until=timezone.now() - timedelta(seconds=1))
    assert post("ada", PASSWORD).status_code == 302
    assert not LoginFailure.objects.filter(address="10.0.0.1").exists()


def test_each_further_failure_doubles_the_wait_up_to_a_limit(user: User) -> None:
    waits = []
    for _ in range(FREE_FAILURES + 8):
        LoginFailure.objects.update(blocked_until=None)
        post("ada", "wrong")
        row = LoginFailure.objects.get()
        waits.append(round((row.blocked_until - row.last_at).total_seconds()) if row.blocked_until else 0)
    assert waits[FREE_FAILURES - 2 :] == [0, 15, 30, 60, 120, 240, 480, 900, 900, 900]


def test_one_address_with_many_names_has_to_wait_too(user: User) -> None:
    for number in range(FREE_NAMES):
        post(f"name{number}", "wrong")
    assert "Too many" in post("ada", PASSWORD).content.decode()
    assert post("ada", PASSWORD, "10.0.0.2").status_code == 302


def test_old_failures_are_forgotten(user: User) -> None:
    post("ada", "wrong")
    LoginFailure.objects.update(last_at=timezone.now() - timedelta(hours=2))
    post("eve", "wrong", "10.0.0.3")
    assert LoginFailure.objects.get().username == "eve"


def test_an_account_waits_after_failures_from_everywhere_except_at_home(user: User) -> None:
    assert post("ada", PASSWORD, "10.0.0.9").status_code == 302
    for number in range(ACCOUNT_FAILURES // FREE_FAILURES):
        LoginFailure.objects.create(
            username="ada", address=f"10.1.0.{number}", count=FREE_FAILURES, last_at=timezone.now()
        )
    assert "Try again in 15 min" in post("ada", PASSWORD, "10.2.0.1").content.decode()
    assert post("ada", PASSWORD, "10.0.0.9").status_code == 302
    LoginFailure.objects.update(last_at=timezone.now() - timedelta(minutes=15, seconds=1))
    assert post("ada", PASSWORD, "10.2.0.1").status_code == 302
