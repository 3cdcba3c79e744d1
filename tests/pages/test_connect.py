"""Connect a script: its snippets are those of the documentation, its token works once shown, its box follows."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Run
from parlab.lab.services.access.tokens import token_create, token_find
from parlab.pages.views.files.connections import TOOLS

from .test_experiments import text

DOCS = Path(__file__).resolve().parents[2] / "docs/use/logging.md"


def test_every_snippet_is_one_of_the_documentation() -> None:
    documented = DOCS.read_text(encoding="utf-8")
    for tool in TOOLS:
        assert tool.script in documented, tool.name
        for line in tool.shell.format(url="http://127.0.0.1:8000", token="parlab_...").splitlines():
            assert line in documented, tool.name


@pytest.mark.django_db
def test_each_tool_has_its_snippet_with_the_address_of_this_server(page: Client) -> None:
    for tool in TOOLS:
        shown = html.unescape(page.get(f"/connect/?with={tool.name}").content.decode())
        assert tool.script in shown
        assert "http://testserver" in shown
    assert page.get("/connect/?with=%00nonsense").status_code == 200


@pytest.mark.django_db
def test_a_token_is_shown_once_and_may_report(page: Client) -> None:
    response = page.post("/connect/token/", {"with": "mlflow"})
    [secret] = re.findall(r"MLFLOW_TRACKING_TOKEN=(parlab_[\w-]{20,})", response.content.decode())
    token = token_find(secret)
    assert token is not None
    assert token.scope_names == ["read", "report"]
    assert "no-store" in response.headers["Cache-Control"]
    assert secret not in page.get("/connect/?with=mlflow").content.decode()
    assert f"token={token.pk}" in response.content.decode()


@pytest.mark.django_db
def test_too_many_tokens_are_refused_with_the_remedy(page: Client) -> None:
    person = User.objects.get(pk=page.session["_auth_user_id"])
    for number in range(20):
        token_create(user=person, name=str(number), by=person)
    response = page.post("/connect/token/", {"with": "parlab"})
    assert response.status_code == 400
    assert "already has 20 tokens; revoke one" in text(response)


@pytest.mark.django_db
def test_the_box_waits_and_becomes_the_run_that_reports_first(page: Client, four_runs: list[Run]) -> None:
    shown = page.get("/connect/live/?after=0").content.decode()
    assert "Waiting for the first point" in shown
    [seen] = re.findall(r"seen=(\w+)", shown)
    assert page.get(f"/connect/live/?after=0&seen={seen}").status_code == 204
    run = four_runs[0]
    Run.objects.filter(pk=run.pk).update(origin=Run.Origin.REPORTED, created_by=page.session["_auth_user_id"])
    after = page.get(f"/connect/live/?after={run.pk - 1}&seen={seen}").content.decode()
    assert run.get_absolute_url() in after
    assert "Waiting" in page.get(f"/connect/live/?after={run.pk}").content.decode()


@pytest.mark.django_db
def test_connecting_needs_the_right(viewer: Client) -> None:
    assert viewer.get("/connect/").status_code == 403
    assert viewer.post("/connect/token/").status_code == 403
