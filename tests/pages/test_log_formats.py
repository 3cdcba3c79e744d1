"""Formats that a team teaches parlab: guessed at the import, accepted, changed, exchanged, deleted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.formats.learnt.learn_command import main
from parlab.ingest.files.imports import source_reingest
from parlab.lab.models import LogFormat, Run, Source
from parlab.pages.forms import upload_work, uploads
from tests.patience import wait_for

from .test_experiments import text
from .test_imports import file, preview

LINES = "".join(
    f"[fit] tick={n} objective=4.{n} wall: {100 + n} ms rate: {20_000 - n} eaten: {n * 512}\n" for n in range(1, 9)
).encode()
OTHER = LINES.replace(b"[fit]", b"[new]").replace(b"objective=4", b"objective=3")


@pytest.fixture(autouse=True)
def own_uploads(settings: Any, tmp_path: Path) -> None:
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path / "uploads"
    settings.FILE_UPLOAD_TEMP_DIR.mkdir()


def upload(page: Client, content: bytes = LINES, name: str = "fit.log") -> str:
    return preview(page, file(content, name))


def field(page: Client, url: str, label: str) -> str:
    """Return the name of the field with this label."""
    match = re.search(rf'<select name="([\w-]+)"[^>]*aria-label="{label}"', page.get(url).content.decode())
    assert match, label
    return match[1]


def accept(page: Client, url: str, **sent: str) -> Any:
    return page.post(f"{url}0/format/", {"name": "tiny", **sent}, follow=True)


def taught(page: Client) -> str:
    """Teach the format `tiny`, in which the objective is the loss; returns the address of the preview."""
    url = upload(page)
    sent = {field(page, url, "Meaning of objective"): "loss", field(page, url, "Meaning of wall"): "step_time_s"}
    accept(page, url, **sent)
    return url


@pytest.mark.django_db
def test_the_preview_shows_the_guess_beside_sample_lines(page: Client) -> None:
    page_text = text(page.get(upload(page)))
    assert "Guessed log format" in page_text
    assert "[fit] tick=1 objective=4.1 wall: 101 ms" in page_text
    assert "[fit] tick=3 " in page_text
    assert "Accept and read the file" in page_text


@pytest.mark.django_db
def test_an_accepted_guess_becomes_a_format_and_its_numbers_are_marked_everywhere(page: Client) -> None:
    url = taught(page)
    page_text = text(page.get(url))
    assert "Read with the log format tiny, version 1" in page_text
    assert "numbers of the learnt format tiny, version 1" in page_text.lower()
    experiment = page.post(url).headers["Location"]
    run = Run.objects.get()
    assert run.summary["learnt"] == "tiny, version 1"
    assert run.summary["loss"]["last"] == 4.8
    assert Source.objects.get().format == "learnt:tiny"
    for address in (experiment, run.get_absolute_url()):
        assert "learnt" in text(page.get(address))
    assert ",learnt" in page.get(f"{run.get_absolute_url()}figures/step-time.csv").content.decode()
    assert "learnt" in page.get(f"{experiment}report.md").content.decode()


@pytest.mark.django_db
def test_a_format_is_offered_for_another_file_of_its_shape_only(page: Client) -> None:
    taught(page)
    url = upload(page, OTHER, "other.log")
    assert "The log format tiny of your team fits this file" in text(page.get(url))
    read = page.post(f"{url}0/format/", {"use": "tiny"}, follow=True)
    assert "Read with the log format tiny, version 1" in text(read)
    assert "Detect the format instead" in text(read)
    page.post(f"{url}0/format/", {"use": ""})
    assert "Guessed log format" in text(page.get(url))
    shape = b"".join(b"a=%d b=%d c: %d ms\n" % (n, 2 * n, n) for n in range(1, 6))
    assert "of your team fits" not in text(page.get(upload(page, shape, "shape.log")))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("label", "value", "message"),
    [
        ("Unit of wall", "memory:GiB", "unit GiB does not fit"),
        ("Meaning of wall", "nonsense", "unknown quantity"),
        ("Meaning of wall", "step", "have the role step; keep it for one of them"),
    ],
)
def test_an_error_is_reported_at_its_field_and_nothing_is_saved(
    page: Client, label: str, value: str, message: str
) -> None:
    url = upload(page)
    response = accept(page, url, **{field(page, url, label): value})
    assert response.status_code == 400
    assert message in text(response)
    assert "aria-invalid" in response.content.decode() or "have the role" in message
    assert not LogFormat.objects.exists()


@pytest.mark.django_db
def test_a_name_that_is_taken_or_invalid_is_refused(page: Client) -> None:
    taught(page)
    url = upload(page, OTHER, "other.log")
    assert "a log format 'tiny' exists; enter another name" in text(accept(page, url))
    assert "name is empty" in text(accept(page, url, name="  "))
    assert "is not valid; use 1 to 60 letters" in text(accept(page, url, name="<b>"))
    assert LogFormat.objects.count() == 1


@pytest.mark.django_db
def test_a_changed_format_is_the_next_version_and_read_files_keep_theirs(page: Client) -> None:
    page.post(taught(page))
    url = "/import/formats/tiny/"
    sent = {"version": "1", field(page, url, "Meaning of rate"): "samples_per_s"}
    assert "Saved tiny, version 2" in text(page.post(url, sent, follow=True))
    source_reingest(source=Source.objects.get())
    assert Run.objects.get().summary["learnt"] == "tiny, version 1"
    late = page.post(url, sent)
    assert late.status_code == 400
    assert "was saved in the meantime" in text(late)
    row = text(page.get("/import/formats/"))
    assert re.search(r"tiny 2 \d+ 1 1 ", row), row


@pytest.mark.django_db
def test_the_exported_file_equals_that_of_the_command_line(page: Client, tmp_path: Path) -> None:
    log, out = tmp_path / "fit.log", tmp_path / "tiny.json"
    log.write_bytes(LINES)
    assert main([str(log), "--learn", str(out)]) == 0
    accept(page, upload(page))
    exported = page.get("/import/formats/tiny/export.json").content
    assert json.loads(exported) == json.loads(out.read_bytes())
    added = page.post(
        "/import/formats/", {"file": file(exported.replace(b'"tiny"', b'"second"'), "x.json")}, follow=True
    )
    assert "Saved second, version 1" in text(added)
    assert main([str(log), "--with", str(out)]) == 0


@pytest.mark.django_db
@pytest.mark.parametrize("content", [b"{", b"[]", b'{"name": "x", "columns": [{"key": "a"}]}', b"\xff\xfe"])
def test_a_damaged_file_is_refused_with_its_place(page: Client, content: bytes) -> None:
    response = page.post("/import/formats/", {"file": file(content, "x.json")})
    assert response.status_code == 400
    assert "x.json" in text(response)
    assert not LogFormat.objects.exists()


@pytest.mark.django_db
def test_a_deleted_format_is_not_offered_and_its_runs_can_be_rebuilt(page: Client) -> None:
    page.post(taught(page))
    assert "data-confirm" in page.get("/import/formats/tiny/").content.decode()
    assert "Deleted the log format tiny" in text(page.post("/import/formats/tiny/delete/", follow=True))
    assert page.get("/import/formats/tiny/").status_code == 404
    assert "of your team fits" not in text(page.get(upload(page, OTHER, "other.log")))
    assert "unknown learnt format" not in text(page.get("/import/"))
    assert len(source_reingest(source=Source.objects.get()).runs) == 1
    accept(page, upload(page, OTHER, "other.log"))
    assert LogFormat.objects.get(is_deleted=False).version == 2


@pytest.mark.django_db
def test_formats_need_the_right_to_import(viewer: Client, page: Client) -> None:
    taught(page)
    for address in ("/import/formats/", "/import/formats/tiny/", "/import/formats/tiny/export.json"):
        assert viewer.get(address).status_code == 403
    assert viewer.post("/import/formats/tiny/delete/").status_code == 403
    assert LogFormat.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_large_upload_shows_its_first_findings_and_its_progress(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.is_superuser = True
    user.save()
    page = Client()
    page.force_login(user)
    monkeypatch.setattr(upload_work, "AT_ONCE_BYTES", 1_000)
    monkeypatch.setattr(upload_work, "FIRST_BYTES", 400)
    url = preview(page, file(LINES * 20, "fit.log"))
    wait_for(lambda: page.get(f"{url}live/").headers.get("HX-Redirect") == url, "the preview")
    assert "Guessed log format" in text(page.get(url))
    page.post(url)
    experiment = wait_for(lambda: page.get(f"{url}live/").headers.get("HX-Redirect"), "the import")
    assert experiment.startswith("/experiments/")
    assert Source.objects.count() == 1


@pytest.mark.django_db
def test_an_upload_whose_server_stopped_can_be_read_again(page: Client) -> None:
    url = upload(page)
    stored = uploads.upload_find(url.split("/")[2], user=int(page.session["_auth_user_id"]))
    assert stored is not None
    stored.work = "preview"
    stored.save()
    assert "The server stopped before the files were read" in text(page.get(url))
    assert page.post(url, {"again": "1"}).headers["Location"] == url
    assert "Guessed log format" in text(page.get(url))
    assert not Source.objects.exists()
