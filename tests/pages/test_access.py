"""Every address × role × method against a table of who is allowed, `access.txt`.

The addresses come from the URL configuration, so a new one without a line in the table fails. To add lines, run
`WRITE_ACCESS=1 .venv/bin/pytest -n 0 tests/pages/test_access.py` and read the difference: each line is a decision.
A line names the lowest role that is not refused, `-` none; an answer that something is absent is no refusal.
`test_rights.py` checks that requests of viewers change nothing, `test_token_scopes.py` what tokens may do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from parlab.lab.models import Attempt
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.reports import report_create

TABLE = Path(__file__).with_name("access.txt")
ROLES = ("nobody", "viewer", "operator", "admin")
PAGES, SERVICES = ("GET", "POST"), ("GET", "POST", "PUT", "PATCH", "DELETE")
SESSIONS = ("login/", "login/sso/", "login/sso/callback/", "logout/", "admin/login/", "admin/logout/")
"""Addresses that begin and end sessions, tested in test_logins.py."""
PLACES = {"slug": "none", "number": "1", "version": "1", "pk": "1", "first": "1", "last": "2", "action": "cancel"}
PLACES |= {"name": "throughput", "key": "tokens-per-second", "token": "none", "sha256": "0", "path": "a.txt"}
PLACES |= {"run": "a-run", "stream": "a-stream", "object_id": "1", "app_label": "lab", "content_type_id": "1"}
FIELDS = {"title": "x", "text": "x", "name": "x", "revision": "1"}


def routes(resolver: URLResolver, prefix: str = "") -> Iterator[str]:
    """Name all addresses of the server; those of MLflow's web interface are the same functions under another name."""
    for pattern in resolver.url_patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            if not route.startswith("ajax-api/") and route not in SESSIONS:
                yield route
        else:
            yield from routes(pattern, route)


def address(route: str) -> str:
    """Return an address of a route, with something in its places."""
    if "(?" in route or route.startswith(("^", "admin/^")):
        plain = re.sub(r"\(\?P<\w+>[^()]*\)", "lab", route)
        plain = re.sub(r"\(\?:([^()|]*)\|[^()]*\)", r"\1", re.sub(r"\(\?:[^()]*\)\?", "", plain))
        return "/" + re.sub(r"\\|[\^$?]|\.\*|\[|34\]|\W\?", "", plain.replace("\\W?", "")).replace("[", "")
    return "/" + re.sub(r"<(?:\w+:)?(\w+)>", lambda match: PLACES.get(match[1], "1"), with_an_object(route))


def with_an_object(route: str) -> str:
    """Put the id of an object into a route of the administration; ids begin at 1 only in a new database."""
    model = re.match(r"admin/(\w+)/(\w+)/<path:object_id>", route)
    first = apps.get_model(model[1], model[2])._default_manager.first() if model else None
    return route.replace("<path:object_id>", str(first.pk)) if first else route


def is_refused(response: Any) -> bool:
    """Return whether a response says that its sender may not do this."""
    location = response.headers.get("Location", "")
    return response.status_code in (401, 403) or location.startswith(("/login/", "/admin/login/"))


@pytest.fixture
def clients(db: None) -> dict[str, Client]:
    """A browser for each role; that of `nobody` is not logged in."""
    groups_refresh()
    browsers = {"nobody": Client(raise_request_exception=False)}
    for role in ROLES[1:]:
        person = User.objects.create_user(role, password="member of a group", is_staff=role != "viewer")
        person.groups.add(Group.objects.get(name=role))
        browsers[role] = Client(raise_request_exception=False)
        browsers[role].force_login(person)
    return browsers


@pytest.mark.slow
def test_every_address_lets_in_whom_the_table_names(
    clients: dict[str, Client], make_attempt: Callable[..., Attempt], user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_attempt(state="finished").run
    report_create(title=run.experiment.slug, text="words", experiment=run.experiment, user=user)
    monkeypatch.setitem(PLACES, "slug", run.experiment.slug)
    lines, broken, gaps = [], [], []
    for route in dict.fromkeys(routes(get_resolver())):
        is_service = route.startswith("api/") or "mlflow" in route
        for method in SERVICES if is_service else PAGES:
            statuses = {}
            for role in ROLES:
                with transaction.atomic():
                    response = clients[role].generic(
                        method,
                        address(route),
                        b"{}" if is_service else urlencode(FIELDS).encode(),
                        "application/json" if is_service else "application/x-www-form-urlencoded",
                    )
                    transaction.set_rollback(True)
                statuses[role] = 0 if is_refused(response) else response.status_code
            # 503 is the answer of `ready` here: the tests have neither Redis nor workers.
            usual = 503 if address(route) == "/ready" else 501
            errors = {role: status for role, status in statuses.items() if status >= 500 and status != usual}
            broken += [f"{method} {address(route)} as {role}: {status}" for role, status in errors.items()]
            allowed = [role for role, status in statuses.items() if status]
            if {status for status in statuses.values() if status} - {405}:
                lines.append(f"{allowed[0]:<9}{method:<7}{route}")
                if allowed != list(ROLES[ROLES.index(allowed[0]) :]):
                    gaps.append(f"{method} {route}: {statuses}")
            elif not allowed:
                lines.append(f"{'-':<9}{method:<7}{route}")
    if os.environ.get("WRITE_ACCESS"):
        TABLE.write_text("\n".join(lines) + "\n")
    assert broken == []
    assert gaps == []  # a role may do all that the one before it may
    assert lines == TABLE.read_text().splitlines()
