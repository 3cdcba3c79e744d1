"""The OpenAPI document and its page; bodies that cannot be read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.api import documents
from parlab.lab.models import Experiment
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.experiments import experiment_create

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(admin: User) -> Client:
    return Client(headers={"Authorization": f"Token {token_create(user=admin, name='script', by=admin)[1]}"})


def test_the_document_is_made_once(api: Client) -> None:
    document = api.get("/api/schema/?format=json").json()
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        api.get("/api/schema/?format=json")
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.1
    assert document["openapi"].startswith("3.1")
    assert api.get("/api/schema/").content.startswith(b"openapi: 3.1")


def test_a_new_process_finds_the_document_of_the_same_code(
    monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path
) -> None:
    settings.DATA_DIR = tmp_path
    documents.document.cache_clear()
    made = documents.document()
    documents.document.cache_clear()
    monkeypatch.setattr(documents, "SchemaGenerator", None)
    assert documents.document() == made
    [kept] = tmp_path.iterdir()
    kept.write_text("{")  # cut off by a power failure
    documents.document.cache_clear()
    with pytest.raises(TypeError):
        documents.document()
    documents.document.cache_clear()


def test_the_document_describes_how_scripts_report(api: Client) -> None:
    document = api.get("/api/schema/?format=json").json()
    operations = document["paths"]["/api/runs/{run}/streams/{stream}/"]
    assert set(operations) == {"get", "post", "put"}
    opening = document["components"]["schemas"]["StreamOpening"]["properties"]
    assert {"experiment", "config", "rank", "world_size", "launch"} <= set(opening)
    assert document["components"]["schemas"]["LaunchFacts"]["properties"]["key"]


def test_a_browser_gets_a_page_and_a_script_the_document(api: Client, client: Client, admin: User) -> None:
    client.force_login(admin)
    page = client.get("/api/", headers={"Accept": "text/html,*/*"})
    assert page.status_code == 200
    assert "/api/runs/{run}/streams/{stream}/" in page.content.decode()
    assert Client().get("/api/", headers={"Accept": "text/html"}).status_code == 302
    assert api.get("/api/")["Location"] == "/api/schema/"


@pytest.mark.parametrize("body", ['{"broken', '{"a":' * 5000 + "1" + "}" * 5000])
@pytest.mark.parametrize("action", ["clone/", "launch/", "configurations/"])
def test_a_broken_body_is_refused_everywhere(api: Client, admin: User, action: str, body: str) -> None:
    experiment = experiment_create(name="Bodies", owner=admin)
    path = f"/api/experiments/{experiment.slug}/{action}"
    response = api.post(path, body, content_type="application/json")
    assert response.status_code == 400
    assert response.json()["errors"][0]["remedy"]
    assert Experiment.objects.count() == 1


def test_a_plan_fills_in_sizes_that_fit(api: Client, catalogue: None) -> None:
    answer = api.post("/api/plan/", {"layers": 24, "hidden": 2048, "nodes": 2}, content_type="application/json")
    assert answer.status_code == 200, answer.content
    assert answer.json()["fits"] is True
    wrong = api.post("/api/plan/", {"layers": 24, "hidden": 2048, "heads": 7}, content_type="application/json")
    assert wrong.json()["errors"][0]["field"] == "heads"
