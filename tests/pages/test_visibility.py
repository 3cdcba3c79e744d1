"""Every address of the server against a private project: who works in it gets an answer, nobody else a word of it.

The addresses come from the URL configuration; `visibility.txt` has a row for each, and one without a row fails. To add
rows, run `WRITE_VISIBILITY=1 .venv/bin/pytest -n 0 tests/pages/test_visibility.py` and read the difference: each row is
a decision.

- `hidden`: it names something of the project; the outsider gets 404, in the administration the way back.
- `limited`: it lists things; the outsider's answer has nothing of the project, that of the owner has.
- `open`: its answer has nothing of any project: health, logins, an account's own things, pure computations.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from parlab.lab.models import Experiment

from .private_world import MARK, World, build

TABLE = Path(__file__).with_name("visibility.txt")
SESSIONS = ("login/", "login/sso/", "login/sso/callback/", "logout/", "admin/login/", "admin/logout/")
SERVER_WIDE = ("admin/lab/device/", "admin/^", "import/<slug:key>/live/", "sdk/otel/")
"""Addresses that name something of no project: devices, apps, an upload that is not there, and what is not kept."""
FIRST = {"number": "1", "version": "1", "first": "1", "last": "2", "action": "cancel", "pk": "1"}
NAMES = {
    "name": "throughput",
    "key": "tokens-per-second",
    "stream": "a-stream",
    "run": "zyxrun",
    "run_id": "zyxrun",
    "path": "zyx.txt",
}
NAMES |= {"model_id": "m-zyx", "tag_key": "zyx", "upload_id": "0" * 32, "url": "lab", "content_type_id": "0"}


def routes(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name all addresses with their views."""
    for pattern in resolver.url_patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            if not route.startswith("ajax-api/"):  # the same functions as below api/
                yield route, pattern.callback
        else:
            yield from routes(pattern, route)


# Route -> what its places name, the first that fits.
def places(world: World) -> list[tuple[str, dict[str, Any]]]:
    pks = world.pks
    return [
        (r".*reports/<slug:slug>/versions/.*links/", {"slug": world.report.slug, "pk": pks["link"]}),
        (r".*reports/<slug:slug>/", {"slug": world.report.slug, "name": "report.md"}),
        (r".*(artifact|reported|metrics/|series/)", {"number": world.reported.number}),
        (r".*sources/<int:pk>", {"pk": pks["source"]}),
        (r"experiments/<slug:slug>/pictures/<int:pk>", {"pk": pks["picture"]}),
        (r".*(pictures|gallery)/<int:pk>", {"pk": pks["drawn"]}),
        (r".*comments/<int:pk>", {"pk": pks["comment"]}),
        (r".*findings/<int:pk>", {"pk": pks["finding"]}),
        (r".*snapshots/<int:pk>", {"pk": world.run.snapshots.values_list("pk", flat=True)[0]}),
        (r".*(studies|tune)/<int:pk>", {"pk": pks["study"], "name": "progress"}),
        (r".*watch(es)?/<int:pk>/figures/", {"pk": pks["watch"], "number": pks["series"]}),
        (
            r"watch/<int:pk>/alerts/<int:number>/bisect/",
            {"pk": pks["watch"], "number": pks["alert"], "action": "start"},
        ),
        (r"watch/<int:pk>/<slug:action>/", {"pk": pks["watch"], "action": "pause"}),
        (r".*watch(es)?/<int:pk>/", {"pk": pks["watch"], "number": pks["alert"]}),
        (r".*views/<int:pk>", {"pk": pks["view"]}),
        (r".*dashboards/<int:pk>", {"pk": pks["board"]}),
        (r"inbox/<int:pk>/decide/", {"pk": pks["asked"]}),
        (r"inbox/<int:pk>/own/", {"pk": pks["item"], "action": "snooze"}),
        (r"inbox/<int:pk>/<slug:action>", {"pk": pks["item"], "action": "done"}),
        (r"inbox/<int:pk>", {"pk": pks["item"]}),
        (r".*deliveries/<int:pk>", {"pk": pks["delivery"]}),
        (r".*(subscriptions|notifications)/<int:pk>", {"pk": pks["subscription"]}),
        (
            r".*service-accounts/<str:name>",
            {"slug": world.project.slug, "name": "zyxrobot", "action": "end", "pk": pks["robot token"]},
        ),
        (r".*approvals/<int:pk>", {"pk": pks["approval"]}),
        (r".*tokens/<int:pk>", {"pk": world.owner.api_tokens.get().pk}),
        (r"palette/runs/", {"pk": world.run.pk}),
        (r"palette/experiments/", {"pk": world.experiment.pk}),
        (r".*links/<int:pk>", {"pk": pks["link"]}),
        (r"links/<slug:kind>/", {"kind": "experiment", "pk": world.experiment.pk}),
        (r".*nodes/<str:name>", {"name": "zyxnode"}),
        (r".*formats/<str:name>", {"name": "zyxformat"}),
        (r"pictures/<slug:sha256>", {"sha256": pks["sha256"]}),
        (r"shared/<slug:token>", {"token": pks["token"], "name": "report.md"}),
        (r"projects/<slug:slug>/<slug:action>", {"slug": world.project.slug, "action": "settings"}),
        (r".*project", {"slug": world.project.slug, "name": world.owner.username}),
        (r".*mlflow-artifacts/mpu/create", {"artifact_path": f"{world.experiment.pk}/zyxrun/artifacts"}),
        (r".*mlflow-artifacts/", {"artifact_path": f"{world.experiment.pk}/zyxrun/artifacts/zyx.txt"}),
        (r".*/time/<slug:name>", {"name": "waterfall"}),
        (r".*runs/<int:number>/figures", {"name": "timeline"}),
    ]


def address(route: str, world: World) -> str:
    """Return an address of a route that names something of the private project."""
    if "(?" in route or route.startswith(("^", "admin/^")):
        plain = re.sub(r"\(\?P<\w+>[^()]*\)", "lab", route)
        plain = re.sub(r"\(\?:([^()|]*)\|[^()]*\)", r"\1", re.sub(r"\(\?:[^()]*\)\?", "", plain))
        return "/" + re.sub(r"\\|[\^$?]|\.\*|\[|34\]|\W\?", "", plain.replace("\\W?", "")).replace("[", "")
    values: dict[str, Any] = {"slug": world.experiment.slug, **FIRST, **NAMES}
    for pattern, given in places(world):
        if re.match(pattern, route):
            values |= given
            break
    values["object_id"] = _object(route, world)
    values["content_type_id"] = ContentType.objects.get_for_model(Experiment).pk
    return "/" + re.sub(r"<(?:\w+:)?(\w+)>", lambda match: str(values.get(match[1], "1")), route)


def _object(route: str, world: World) -> str:
    """Return the id of a row of the private project that an address of the administration names."""
    match = re.match(r"admin/(\w+)/(\w+)/<path:object_id>", route)
    if match is None:
        return str(world.experiment.pk)
    model = apps.get_model(match[1], match[2])
    first = model._base_manager.filter(**({"slug": "zyx"} if match[2] == "experiment" else {})).last()
    return str(first.pk) if first else "1"


def fields_of(route: str, world: World) -> dict[str, Any]:
    """Return the fields of a request, which name things of the private project, too."""
    experiment, run = world.experiment, world.run
    fields: dict[str, Any] = {
        "run_id": "zyxrun", "experiment_id": str(experiment.pk), "experiment_name": "zyx",
        "experiment_ids": [str(experiment.pk)], "run_ids": "zyxrun", "metric_key": "m", "key": "k",
        "value": "1", "timestamp": 1, "step": 1, "path": "zyx.txt", "q": "", "experiment": experiment.slug,
        "run": [str(run.pk)], "name": "x", "title": "x", "text": "x", "revision": 1, "reason": "x",
        "config": str(run.config_id), "slugs": experiment.slug, "rows": str(run.pk), "points": "1",
        "show": "runs", "source_run_id": "zyxrun", "model_id": "m-zyx", "new_name": "x", "action": "x",
        "project": world.project.slug,
    }  # fmt: skip
    if route == "api/series/":
        fields |= {"run": [f"{experiment.slug}:{world.reported.number}"], "metric": ["qvwmetric"]}
    if "search" in route or "mlflow-artifacts" in route:
        fields |= {"path": f"{experiment.pk}/zyxrun/artifacts"}
    return fields


class Case:
    """One address with one method, as the two people see it."""

    def __init__(self, route: str, method: str, answers: dict[str, Any]) -> None:
        self.route, self.method = route, method
        self.status = {name: answer.status_code for name, answer in answers.items()}
        self.tells = {name: MARK in text_of(answer).lower() for name, answer in answers.items()}

        self.texts = {name: text_of(answer) for name, answer in answers.items()}

    @property
    def line(self) -> str:
        return f"{self.kind:<9}{self.method:<7}{self.route}"

    @property
    def kind(self) -> str:
        theirs, mine = self.status["outsider"], self.status["owner"]
        if self.route.startswith("admin/") and "<path:object_id>" in self.route and theirs != mine:
            return "hidden"
        if theirs == 404 and mine != 404:
            return "hidden"
        return "limited" if self.tells["owner"] or theirs != mine else "open"

    def __str__(self) -> str:
        at = self.texts["outsider"].lower().find(MARK)
        said = "" if at < 0 else self.texts["outsider"][max(0, at - 200) : at + 100]
        return f"{self.method} {self.route}: {self.status} {said!r}"


def text_of(answer: Any) -> str:
    if answer.streaming:
        return b"".join(answer).decode("utf-8", "replace") if not hasattr(answer, "__aiter__") else ""
    text = answer.content.decode("utf-8", "replace")
    # The random letters of a token of forms may be any.
    return re.sub(r"\b[A-Za-z0-9]{64}\b", "", text) + str(answer.headers.get("Location", ""))


def is_service(route: str) -> bool:
    return route.startswith(("api/", "ajax-api/", "get-artifact")) or "mlflow" in route


def methods_of(route: str, view: Any) -> Iterator[str]:
    """Return the methods that an address may take."""
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        is_offered = hasattr(view.cls, method.lower()) if hasattr(view, "cls") else method in ("GET", "POST")
        if is_offered or (not hasattr(view, "cls") and is_service(route) and "<" in route):
            yield method


def asked(world: World, clients: dict[str, Client], route: str, method: str) -> dict[str, Any]:
    """Send a request as both people; what it changes is undone."""
    path, fields, answers = address(route, world), fields_of(route, world), dict[str, Any]()
    for name in ("outsider", "owner"):
        if answers and answers["outsider"].status_code == 405:
            return answers
        client = clients[name]
        client.defaults.pop("HTTP_AUTHORIZATION", None)
        if is_service(route):
            client.defaults["HTTP_AUTHORIZATION"] = (
                f"{'Bearer' if 'mlflow' in route else 'Token'} {world.secrets[name]}"
            )
        with transaction.atomic():
            answers[name] = send(client, method, path, fields, as_json=is_service(route))
            text_of(answers[name])
            transaction.set_rollback(True)
    return answers


def send(client: Client, method: str, path: str, fields: dict[str, Any], *, as_json: bool) -> Any:
    if method == "GET":
        return client.get(f"{path}?{urlencode(fields, doseq=True)}" if as_json else path)
    if as_json:
        return client.generic(method, path, json.dumps(fields).encode(), "application/json")
    return client.generic(method, path, urlencode(fields, doseq=True).encode(), "application/x-www-form-urlencoded")


def test_every_address_has_a_row() -> None:
    rows = {line[16:] for line in TABLE.read_text().splitlines()}
    named = {route for route, _ in routes(get_resolver())} - set(SESSIONS)
    assert named - rows == set()


@pytest.mark.slow
@pytest.mark.django_db
def test_every_address_hides_a_private_project(settings: Any, tmp_path: Path) -> None:
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"
    world = build()
    clients = {"owner": Client(raise_request_exception=False), "outsider": Client(raise_request_exception=False)}
    clients["owner"].force_login(world.owner)
    clients["outsider"].force_login(world.outsider)
    lines, leaks, broken = [], [], []
    for route, view in dict(routes(get_resolver())).items():
        if route in SESSIONS:
            continue
        for method in methods_of(route, view):
            answers = asked(world, clients, route, method)
            if answers["outsider"].status_code == 405:
                continue
            case = Case(route, method, answers)
            lines.append(case.line)
            names_something = "<" in route and not route.startswith(SERVER_WIDE)
            if case.tells["outsider"] or (names_something and case.kind != "hidden" and case.status["outsider"] < 300):
                leaks.append(str(case))
            if {*case.status.values()} & {500, 501, 502}:
                broken.append(str(case))
    if os.environ.get("WRITE_VISIBILITY"):
        TABLE.write_text("\n".join(lines) + "\n")
    assert lines == TABLE.read_text().splitlines()
    assert leaks == []
    assert broken == []
