"""The audit log: what has changed something is recorded with its user, by any road; and reports of browsers."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from parlab.lab.models import Attempt, AuditEntry, RefusedMessage
from parlab.lab.services.access.audit import audit_add, audit_forget
from parlab.lab.services.access.tokens import token_create
from parlab.pages.views.team import csp
from parlab.refusals import PENDING

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(admin_user: User) -> Client:
    client = Client(REMOTE_ADDR="10.1.2.3")
    client.force_login(admin_user)
    return client


def entries() -> list[tuple[str, str, str]]:
    """Return user, action and route of all entries, the oldest first."""
    return list(AuditEntry.objects.order_by("pk").values_list("username", "action", "route"))


def test_changes_on_pages_are_recorded(browser: Client, make_attempt: Callable[..., Attempt]) -> None:
    run = make_attempt(state="queued").run
    place = [run.experiment.slug, run.number]
    browser.post(reverse("run-cancel", args=place))
    browser.post(reverse("run-relaunch", args=place))
    browser.post(reverse("report-new"), {"title": "Mine", "template": "blank", "experiment": run.experiment.slug})
    browser.post(reverse("report-delete", args=["mine"]))
    browser.post(reverse("token-make"), {"name": "script", "scopes": ["read"]})
    assert [entry[1:] for entry in entries()] == [
        ("cancel", "run-cancel"),
        ("launch", "run-relaunch"),
        ("change", "report-new"),
        ("delete", "report-delete"),
        ("access", "token-make"),
    ]
    first = AuditEntry.objects.earliest("pk")
    assert (first.username, first.address, first.token) == ("admin", "10.1.2.3", "")
    assert first.path == reverse("run-cancel", args=place)


def test_logins_and_the_tokens_of_scripts_are_recorded(admin_user: User) -> None:
    client = Client()
    client.post(reverse("login"), {"username": "admin", "password": "wrong"})
    assert entries() == []
    client.post(reverse("login"), {"username": "admin", "password": "password"})
    _, secret = token_create(user=admin_user, name="nightly", by=admin_user)
    headers = {"Authorization": f"Token {secret}"}
    Client().post("/api/experiments/", json.dumps({"name": "By a script"}), "application/json", headers=headers)
    bearer = {"Authorization": f"Bearer {secret}"}
    body = json.dumps({"name": "By MLflow"})
    Client().post("/api/2.0/mlflow/experiments/create", body, "application/json", headers=bearer)
    assert [entry[:2] for entry in entries()] == [("admin", "login"), ("admin", "change"), ("admin", "change")]
    assert list(AuditEntry.objects.order_by("pk").values_list("token", flat=True)) == ["", "nightly", "nightly"]


def test_what_changes_nothing_is_not_recorded(browser: Client, user: User, django_user_model: Any) -> None:
    browser.get(reverse("experiments"))
    browser.post("/api/plan/", "{}", "application/json")
    browser.post(reverse("run-cancel", args=["none", 1]))
    guest = Client()
    guest.force_login(django_user_model.objects.create_user("guest"))
    guest.post(reverse("report-new"), {"title": "x"})
    assert entries() == []


@pytest.mark.database
def test_administrators_read_and_filter_the_log(browser: Client, admin_user: User, django_user_model: Any) -> None:
    for action, path in (("launch", "/experiments/a/launch/1/"), ("delete", "/experiments/b<i>/")):
        audit_add(user=admin_user, action=action, route="x", method="POST", path=path, status=302)
    page = browser.get(reverse("audit")).content.decode()
    assert "/experiments/a/launch/1/" in page
    assert "b&lt;i&gt;" in page
    filtered = browser.get(reverse("audit"), {"action": "launch", "user": "ADMIN", "text": "a/"}).content.decode()
    assert "/experiments/a/launch/1/" in filtered
    assert "b&lt;i&gt;" not in filtered
    assert "No entries match" in browser.get(reverse("audit"), {"user": "eve\0"}).content.decode()
    guest = Client()
    guest.force_login(django_user_model.objects.create_user("guest"))
    assert guest.get(reverse("audit")).status_code == 403


def test_entries_outlive_their_user_and_end_after_a_while(admin_user: User, django_user_model: Any) -> None:
    guest = django_user_model.objects.create_user("guest")
    audit_add(user=guest, action="login", route="login", method="POST", path="/login/", status=302)
    guest.delete()
    assert AuditEntry.objects.get().username == "guest"
    assert audit_forget() == 0
    AuditEntry.objects.update(at=timezone.now() - timedelta(days=500))
    assert audit_forget() == 1


@pytest.mark.parametrize("has_right", [False, True])
def test_the_settings_lead_to_the_audit_log_only_those_who_may_read_it(has_right: bool) -> None:
    person = User.objects.create_user("operator", password="some rights only", is_staff=True)
    if has_right:
        person.user_permissions.add(Permission.objects.get(codename="change_user"))
    client = Client()
    client.force_login(person)
    tabs = client.get(reverse("notifications")).content.decode()
    assert ('href="/audit/"' in tabs) == has_right
    assert client.get(reverse("audit")).status_code == (200 if has_right else 403)


def test_browsers_report_what_the_policy_has_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    PENDING.take()
    monkeypatch.setattr(csp, "STORE_EVERY_S", 0.0)
    client = Client()
    assert "report-uri /csp-report/" in client.get(reverse("login")).headers["Content-Security-Policy"]
    report = {"csp-report": {"effective-directive": "script-src", "blocked-uri": "https://evil.example/x.js"}}
    for _ in range(2):
        assert client.post("/csp-report/", json.dumps(report), "application/csp-report").status_code == 204
    row = RefusedMessage.objects.get()
    assert (row.queue, row.count) == ("csp", 2)
    assert row.reason == "browser blocked https://evil.example/x.js by script-src"
    for junk in (b"", b"[]", b"{", b"[" * 20_000, b'{"csp-report": 1}', b" " * 99_999):
        assert client.post("/csp-report/", junk, "application/csp-report").status_code == 400
    assert RefusedMessage.objects.count() == 1
