"""Published reports, pictures, traces, log formats, advice and the account over the API."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from PIL import Image

from parlab.advice.advice import Advice
from parlab.fleet import trials
from parlab.lab.models import SCOPES, ApiToken, AuditEntry, Run
from parlab.lab.selectors.analysis.advice import RunAdvice
from parlab.lab.services.access.tokens import token_create
from tests.api.conftest import error, with_token
from tests.traces.generator import Plan, document, file_of

pytestmark = pytest.mark.django_db

EXPERIMENT = "/api/experiments/pipeline-schedules/"
JSON = "application/json"
LOG = "".join(f"[fit] tick={n} objective=4.{n} rate: {20_000 - n}\n" for n in range(1, 9)).encode()


def actions() -> list[str]:
    return list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))


def test_a_published_report_is_exported_shared_and_unshared(
    api: Client, reader: Client, run: Run, allowed: Callable[..., Client]
) -> None:
    text = "# Result\n\n{{ table runs experiment=pipeline-schedules }}"
    report = api.post("/api/reports/", {"title": "Result", "text": text}, JSON).json()
    address = f"/api/reports/{report['slug']}/"
    assert api.post(f"{address}publish/", {"revision": report["revision"]}, JSON).status_code == 201
    version = api.get(f"{address}versions/1/").json()
    assert (version["number"], version["text"]) == (1, text)
    assert {"report.html", "report.md", "report.zip", "table-1.csv"} <= set(version["files"])
    for name in version["files"]:
        assert reader.get(f"{address}versions/1/files/{name}").status_code == 200, name
    assert reader.get(f"{address}versions/1/files/report.md").content.startswith(b"# Result")
    assert "is being created" in reader.get(f"{address}versions/1/files/report.pdf").content.decode()
    assert reader.get(f"{address}versions/1/files/secrets.txt").status_code == 404
    assert api.post(f"{address}versions/1/draw/").json()["state"] == "waiting"
    assert api.get(f"{address}versions/1/").json()["drawing"]["state"] == "waiting"
    links = f"{address}versions/1/links/"
    link = api.post(links).json()
    assert api.post(links).json()["id"] == link["id"]
    assert Client().get(link["url"]).status_code == 200
    assert api.get(links).json()[0]["url"] == link["url"]
    other = allowed("add_report", "add_reportlink")
    for refused in (reader.post(links), other.post(links), other.delete(f"{links}{link['id']}/")):
        assert refused.status_code == 403
    assert other.post(f"{address}versions/1/draw/").status_code == 403
    assert api.delete(f"{links}{link['id']}/").status_code == 204
    assert Client().get(link["url"]).status_code == 404
    assert actions() == ["change", "share", "change", "share", "share", "share"]


def test_pictures_are_added_downloaded_deleted_and_drawn(api: Client, reader: Client, run: Run) -> None:
    content = io.BytesIO()
    Image.new("RGB", (8, 6)).save(content, "PNG")
    address = f"{EXPERIMENT}pictures/"

    def send(client: Client, **fields: Any) -> Any:
        file = SimpleUploadedFile("figure.png", fields.pop("content", content.getvalue()))
        return client.post(address, {"file": file, **fields})

    picture = send(api, caption="Loss", run=run.number).json()
    assert (picture["caption"], picture["run"], picture["width"], picture["height"]) == ("Loss", run.number, 8, 6)
    assert [row["id"] for row in reader.get(f"{address}?run={run.number}").json()["results"]] == [picture["id"]]
    assert reader.get(f"{address}?run=999").json()["count"] == 0
    assert error(reader.get(f"{address}?run=x"))["field"] == "run"
    shown = reader.get(f"{address}{picture['id']}/")
    assert (shown["Content-Type"], Image.open(io.BytesIO(shown.content)).size) == ("image/png", (8, 6))
    assert "not a PNG" in error(send(api, content=b"words"))["message"]
    assert error(send(api, run=999))["field"] == "run"
    assert send(reader).status_code == 403
    assert reader.delete(f"{address}{picture['id']}/").status_code == 403
    assert api.delete(f"{address}{picture['id']}/").status_code == 204
    assert api.get(f"{address}{picture['id']}/").status_code == 404
    drawing = api.post(f"{EXPERIMENT}runs/{run.number}/pictures/")
    assert (drawing.status_code, drawing.json()["state"]) == (202, "waiting")
    assert len(reader.get(f"{EXPERIMENT}runs/{run.number}/pictures/").json()) == 1
    assert reader.post(f"{EXPERIMENT}runs/{run.number}/pictures/").status_code == 403


def test_traces_are_added_exported_and_deleted(
    api: Client, reader: Client, run: Run, settings: Any, tmp_path: Path
) -> None:
    settings.ARTIFACTS_DIR = tmp_path
    address = f"{EXPERIMENT}runs/{run.number}/traces/"
    content = file_of(document(Plan(hidden_us=0.0, waits_us=400.0), 1)).getvalue()
    stored = api.post(address, {"file": SimpleUploadedFile("rank1.json", content)})
    assert (stored.status_code, stored.json()["rank"], stored.json()["size"]) == (201, 1, len(content))
    assert [row["rank"] for row in reader.get(address).json()["ranks"]] == [1]
    exported = reader.get(f"{address}export/")
    assert b"traceEvents" in gzip.decompress(b"".join(exported))
    assert error(api.post(address, {"file": SimpleUploadedFile("rank1.json", b"{}")}))["field"] == "file"
    assert reader.post(address).status_code == reader.delete(address).status_code == 403
    settings.UPLOAD_LIMIT_MIB = 0
    assert error(api.post(address, {"file": SimpleUploadedFile("rank1.json", content)}), 413)["remedy"]
    assert api.delete(address).status_code == 204
    assert reader.get(address).json()["ranks"] == []


def test_a_trace_that_claims_memory_is_answered_with_400(api: Client, run: Run, settings: Any, tmp_path: Path) -> None:
    settings.ARTIFACTS_DIR, settings.READ_MEMORY_MIB = tmp_path, 400
    memo = b"\x80\x02}r\xff\xff\xff\x07X\x07\x00\x00\x00entries]s."
    lists = b'{"entries": [' + b",".join([b"{}"] * 5_000_000) + b'], "pg_config": {}}'
    for name, data, reason in (("memo", memo, "beyond its 2 values"), ("lists", lists, "400 MiB of memory")):
        answer = api.post(f"{EXPERIMENT}runs/{run.number}/traces/", {"file": SimpleUploadedFile(name, data)})
        assert reason in error(answer)["message"]
    assert not [path for path in (tmp_path / "traces").iterdir() if path.is_file()]


def test_a_log_format_is_guessed_saved_exported_and_deleted(api: Client, reader: Client) -> None:
    guess = api.post("/api/imports/guess/", {"file": SimpleUploadedFile("fit.log", LOG)}).json()
    definition = guess["definition"]
    assert {column["key"] for column in definition["columns"]} >= {"objective", "rate"}
    nothing = api.post("/api/imports/guess/", {"file": SimpleUploadedFile("fit.log", b"words\n")}).json()
    assert nothing["definition"] is None
    assert nothing["reason"]
    saved = api.put("/api/formats/tiny/", definition, JSON).json()
    assert (saved["name"], saved["version"], saved["versions"]) == ("tiny", 1, [1])
    assert api.put("/api/formats/tiny/", definition, JSON).json()["version"] == 1
    definition["samples"] = []
    assert api.put("/api/formats/tiny/", definition, JSON).json()["versions"] == [2, 1]
    assert api.get("/api/formats/tiny/?version=1").json()["definition"]["samples"]
    assert api.get("/api/formats/tiny/").json()["definition"] == {**definition, "name": "tiny"}
    assert [(row["name"], row["files"]) for row in api.get("/api/formats/").json()] == [("tiny", 0)]
    assert error(api.put("/api/formats/tiny/", {"columns": []}, JSON))["field"] == "columns"
    assert error(api.put("/api/formats/a%2Fb/", definition, JSON), 404)
    assert error(api.put("/api/formats/-/", definition, JSON))["field"] == "name"
    assert error(api.put("/api/formats/tiny/", [1], JSON))["field"] == "body"
    for answer in (reader.get("/api/formats/"), reader.delete("/api/formats/tiny/")):
        assert answer.status_code == 403
    file = SimpleUploadedFile("fit.log", LOG)
    imported = api.post("/api/imports/", {"file": file, "format": "learnt:tiny"}).json()["imports"][0]
    assert imported["format"] == "learnt:tiny"
    assert api.delete("/api/formats/tiny/").status_code == 204
    assert api.delete("/api/formats/tiny/").status_code == 404
    sources = api.get("/api/experiments/fit/").json()["sources"]
    assert b"".join(api.get(f"/api/experiments/fit/sources/{sources[0]['id']}/")) == LOG


def test_advice_is_read_and_tried(
    api: Client, reader: Client, allowed: Callable[..., Client], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = {"train.micro_batch_size": 2, "train.global_batch_size": 8}
    advice = Advice("micro_batch", "Micro batch 2", 0.1, 0.05, 0.2, "compute", "a rule", "measured", change)
    monkeypatch.setattr("parlab.api.experiments.advice.run_advice", lambda run: RunAdvice([advice], ""))
    monkeypatch.setattr(trials, "run_advice", lambda run: RunAdvice([advice], ""))
    Run.objects.filter(pk=run.pk).update(step_time_s=0.5)
    address = f"{EXPERIMENT}runs/{run.number}/advice/"
    (row,) = reader.get(address).json()["advice"]
    assert (row["title"], row["settings"], row["predicted_step_time_s"]) == ("Micro batch 2", change, 0.45)
    assert reader.get(f"{EXPERIMENT}advice/").json()["run"] == run.number
    assert error(api.post(address, {"titles": []}, JSON))["field"] == "titles"
    assert "no longer advised" in error(api.post(address, {"titles": ["Buy more"]}, JSON))["message"]
    for client in (reader, allowed("add_run"), allowed("add_config")):
        assert client.post(address, {"titles": [advice.title]}, JSON).status_code == 403
    created = api.post(address, {"titles": [advice.title]}, JSON)
    assert created.status_code == 201
    (number,) = created.json()["created"]
    (trial,) = reader.get(address).json()["trials"]
    assert (trial["changed_run"], trial["state"], trial["realised"]) == (number, "queued", None)
    assert [row["title"] for row in reader.get("/api/advice/").json()["trials"]] == [advice.title]
    assert actions() == ["launch"]


def test_an_experiment_without_a_finished_run_has_no_advice(reader: Client, run: Run) -> None:
    answer = reader.get(f"{EXPERIMENT}advice/").json()
    assert (answer["run"], answer["advice"], answer["edges"]) == (None, [], [])


def test_the_account_and_its_tokens(api: Client, reader: Client) -> None:
    account = reader.get("/api/account/").json()
    assert (account["username"], account["scopes"]) == ("reader", list(SCOPES))
    assert reader.patch("/api/account/", {"email": "a@host.example"}, JSON).json()["email"] == "a@host.example"
    assert error(reader.patch("/api/account/", {"email": "a"}, JSON))["field"] == "email"
    (own,) = reader.get("/api/account/tokens/").json()
    made = reader.post("/api/account/tokens/", {"name": "second", "scopes": ["read"], "days": 5}, JSON).json()
    assert made["scopes"] == ["read"]
    second = Client(headers={"Authorization": f"Token {made['secret']}"})
    assert second.get("/api/account/").json()["scopes"] == ["read"]
    assert second.post("/api/account/tokens/", {"name": "third"}, JSON).status_code == 403
    assert error(reader.post("/api/account/tokens/", {"name": "second"}, JSON))["field"] == "name"
    assert api.delete(f"/api/account/tokens/{made['id']}/").status_code == 404
    assert reader.delete(f"/api/account/tokens/{made['id']}/").status_code == 204
    assert second.get("/api/account/").status_code == 401
    assert [row["id"] for row in reader.get("/api/account/tokens/").json()] == [own["id"]]
    assert actions() == ["change", "access", "access"]


def test_a_token_makes_none_that_may_do_more_or_lasts_longer(user: User) -> None:
    _, secret = token_create(user=user, name="weak", by=user, scopes=["write", "admin"], days=3)
    weak = Client(headers={"Authorization": f"Token {secret}"})
    address = "/api/account/tokens/"
    assert "no scope launch" in error(weak.post(address, {"name": "a", "scopes": ["launch"]}, JSON))["message"]
    for days in (None, 30, 4):
        assert error(weak.post(address, {"name": "b", "days": days}, JSON))["field"] == "days"
    made = weak.post(address, {"name": "c"}, JSON).json()
    assert made["scopes"] == ["write", "admin"]
    token = ApiToken.objects.get(pk=made["id"])
    assert token.expires_at is not None
    assert token.expires_at <= timezone.now() + timedelta(days=3)
    assert token.expires_at == ApiToken.objects.get(name="weak").expires_at
    assert with_token(user).post(address, {"name": "d", "days": None}, JSON).json()["expires_at"] is None
