"""Imports through the API, and the examples of its documentation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Experiment, Run, Source
from parlab.lab.services.access.tokens import token_create
from tests.patience import PATIENCE_S

PROJECT = Path(__file__).resolve().parent.parent.parent
LOG = (PROJECT / "tests/formats/megatron/two_launches.log").read_bytes()
IMPORTS = "/api/imports/"


def upload(content: bytes = LOG, name: str = "train.log") -> BytesIO:
    file = BytesIO(content)
    file.name = name
    return file


@pytest.mark.django_db
def test_a_dry_run_previews_an_import_and_stores_nothing(api: Client) -> None:
    response = api.post(IMPORTS, {"file": upload(), "dry_run": "true"})
    assert response.status_code == 200
    [made] = response.json()["imports"]
    assert made["status"] == "would import"
    assert made["format"] == "megatron"
    assert made["run_count"] == len(made["runs"]) == 2
    assert made["runs"][0]["step_time_s"] > 0
    assert made["experiment"] is None
    assert made["experiment_name"] == "train"
    assert not Experiment.objects.exists()


@pytest.mark.django_db
def test_an_import_creates_runs_once(api: Client) -> None:
    first = api.post(IMPORTS, {"file": upload()})
    assert first.status_code == 201
    again = api.post(IMPORTS, {"file": upload(name="copy.log")})
    assert again.status_code == 200
    assert again.json()["imports"][0]["status"] == "already there"
    assert Experiment.objects.count() == Source.objects.count() == 1
    assert Run.objects.filter(origin="imported").count() == 2
    slug = first.json()["imports"][0]["experiment"]
    assert api.get(f"/api/experiments/{slug}/").json()["sources"][0]["name"] == "train.log"


@pytest.mark.django_db
def test_an_import_goes_into_the_selected_experiment(api: Client, experiment: Experiment) -> None:
    response = api.post(IMPORTS, {"file": upload(), "experiment": experiment.slug, "format": "megatron"})
    assert response.status_code == 201
    assert experiment.runs.count() == 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"file": None}, "file", None),
        ({"experiment": "nowhere"}, "experiment", "nowhere"),
        ({"experiment": "no/slug"}, "experiment", "no/slug"),
        ({"format": "word"}, "format", "word"),
        ({"dry_run": "perhaps"}, "dry_run", "perhaps"),
    ],
)
def test_an_invalid_field_is_reported_with_its_value(
    api: Client, given: dict[str, Any], field: str, value: Any
) -> None:
    data = {name: content for name, content in ({"file": upload()} | given).items() if content is not None}
    response = api.post(IMPORTS, data)
    assert response.status_code == 400
    error = response.json()["errors"][0]
    assert (error["field"], error["value"]) == (field, value)
    assert error["remedy"]
    assert not Experiment.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("content", [b" \n", b"\x7fELF\x00\x01\x02\x03" * 50, b"%PDF-1.4 \x00" + b"\x00" * 99])
def test_a_file_that_cannot_be_read_is_refused_with_a_reason(api: Client, content: bytes) -> None:
    response = api.post(IMPORTS, {"file": upload(content, "odd.bin")})
    assert response.status_code == 400
    error = response.json()["errors"][0]
    assert error["field"] == "file"
    assert error["value"] == "odd.bin"
    assert not Source.objects.exists()


@pytest.mark.django_db
def test_a_file_above_the_limit_is_refused(api: Client, settings: Any) -> None:
    settings.UPLOAD_LIMIT_MIB = 1
    response = api.post(IMPORTS, {"file": upload(b"x" * (2**20 + 1))})
    assert response.status_code == 413
    assert "PARLAB_UPLOAD_LIMIT_MIB" in response.json()["errors"][0]["remedy"]


@pytest.mark.django_db
def test_an_import_needs_the_permission_to_add_runs(reader: Client, allowed: Callable[..., Client]) -> None:
    refused = reader.post(IMPORTS, {"file": upload()})
    assert refused.status_code == 403
    assert "lab.add_run" in refused.json()["errors"][0]["message"]
    assert allowed("add_run").post(IMPORTS, {"file": upload()}).status_code == 201


@pytest.mark.django_db
def test_a_logged_in_browser_needs_the_csrf_token(user: User) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(user)
    assert browser.post(IMPORTS, {"file": upload()}).status_code == 403


@pytest.fixture
def token(transactional_db: None) -> str:
    user = User.objects.create_superuser("ada", password="correct horse battery")
    return token_create(user=user, name="the documentation", by=user)[1]


def examples() -> list[str]:
    text = (PROJECT / "docs" / "use" / "api.md").read_text(encoding="utf-8")
    return [block.strip() for block in re.findall(r"```sh\n(.*?)```", text, re.S)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_examples_of_the_documentation_work(live_server: Any, catalogue: None, token: str, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(LOG)
    environment = {**os.environ, "TOKEN": token, "URL": live_server.url}
    assert len(examples()) >= 6
    for command in examples():
        answer = subprocess.run(
            ["sh", "-c", f"{command} --fail-with-body --max-time 60 --noproxy '*'"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert answer.returncode == 0, f"{command}: {answer.stdout} {answer.stderr}"
        assert answer.stdout.startswith("{")
    assert Run.objects.filter(origin="imported").count() == 2
