"""The import page: choose, preview, import, each once."""

from __future__ import annotations

import errno
import html
import os
import re
import threading
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from parlab.lab.models import Experiment, Finding, Run, Source
from parlab.pages.forms import uploads
from tests.patience import PATIENCE_S

from .test_experiments import text

PROJECT = Path(__file__).resolve().parent.parent.parent
LOG = (PROJECT / "tests/formats/megatron/two_launches.log").read_bytes()
EVIL = "<script>alert(1)</script>"
PAGE = b"""# Two schedules

| Network | Micro batch size: 1 | Micro batch size: 2 |
|---|---|---|
| fast | 4.00 s | OOM |
| slow | 8.00 s |  |
"""


def file(content: bytes, name: str = "train.log") -> BytesIO:
    made = BytesIO(content)
    made.name = name
    return made


@pytest.fixture(autouse=True)
def own_uploads(settings: Any, tmp_path: Path) -> None:
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path / "uploads"
    settings.FILE_UPLOAD_TEMP_DIR.mkdir()


def preview(page: Client, *files: BytesIO, **more: str) -> str:
    """Upload files; the address of their preview."""
    response = page.post("/import/", {"files": list(files), **more})
    assert response.status_code == 302, text(response)
    return str(response.headers["Location"])


def menu_new(client: Client) -> str:
    return client.get("/").content.decode().split('<span class="lbl">New</span>')[1].split("</details>")[0]


@pytest.mark.django_db
def test_the_page_is_in_the_menu_new_of_those_who_may_import(
    page: Client, viewer: Client, experiment: Experiment
) -> None:
    assert 'href="/import/"' in menu_new(page)
    assert 'href="/import/"' not in menu_new(viewer)
    assert "Your account may look and plan" in menu_new(viewer)
    html = page.get("/import/?experiment=pipeline-schedules").content.decode()
    assert '<option value="pipeline-schedules" selected>' in html
    assert "megatron" in html


@pytest.mark.django_db
def test_importing_needs_the_right(viewer: Client, client: Client, allowed: Callable[..., Client]) -> None:
    assert viewer.get("/import/").status_code == 403
    assert viewer.post("/import/", {"files": file(LOG)}).status_code == 403
    assert client.post("/import/", {"files": file(LOG)}).headers["Location"].startswith("/login/")
    assert allowed("add_run").post("/import/", {"files": file(LOG)}).status_code == 302


@pytest.mark.django_db
def test_a_preview_shows_what_would_be_made_and_makes_nothing(page: Client) -> None:
    page_text = text(page.get(preview(page, file(LOG), file(PAGE, "page.md"))))
    assert "Will create the experiment train" in page_text
    assert "Will create the experiment Two schedules" in page_text
    assert "2 runs" in page_text
    assert "4.00 s" in page_text
    assert "OOM" in page_text
    assert "1 table" in page_text
    assert "Import 2 files" in page_text
    assert not Experiment.objects.exists()


@pytest.mark.django_db
def test_import_makes_it_and_leads_to_the_experiment(page: Client) -> None:
    url = preview(page, file(LOG))
    response = page.post(url, follow=True)
    assert response.redirect_chain[-1][0] == "/experiments/train/"
    assert "Imported train.log: 2 runs" in text(response)
    assert Run.objects.filter(origin="imported").count() == 2


@pytest.mark.django_db
def test_a_second_click_makes_nothing_twice(page: Client, settings: Any) -> None:
    url = preview(page, file(LOG))
    first = page.post(url)
    again = page.post(url)
    assert again.headers["Location"] == first.headers["Location"] == "/experiments/train/"
    assert Source.objects.count() == 1
    assert Run.objects.count() == 2
    left = [path.name for path in settings.FILE_UPLOAD_TEMP_DIR.rglob("*") if path.is_file()]
    assert sorted(left) == [".lock", "upload.json"]
    once_more = page.get(preview(page, file(LOG, "copy.log")))
    assert "already contains this file" in text(once_more)
    assert re.search(r'id="do-import" disabled', once_more.content.decode())


@pytest.mark.django_db(transaction=True)
def test_two_clicks_at_the_same_time_make_it_once(user: User) -> None:
    user.is_superuser = True
    user.save()
    browsers = [Client(), Client()]
    for browser in browsers:
        browser.force_login(user)
    url = preview(browsers[0], file(LOG))
    answers: list[str] = []

    def click(browser: Client) -> None:
        from django.db import connection

        try:
            answers.append(browser.post(url).headers["Location"])
        finally:
            connection.close()

    threads = [threading.Thread(target=click, args=[browser]) for browser in browsers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == ["/experiments/train/"] * 2
    assert Source.objects.count() == 1
    assert Run.objects.count() == 2


@pytest.mark.django_db
def test_files_go_into_the_experiment_that_was_chosen(page: Client, experiment: Experiment) -> None:
    url = preview(page, file(LOG), experiment="pipeline-schedules")
    assert "Will be added to Pipeline schedules" in text(page.get(url))
    assert page.post(url).headers["Location"] == "/experiments/pipeline-schedules/"
    assert experiment.runs.count() == 2


@pytest.mark.django_db
def test_an_experiment_deleted_in_the_meantime_is_reported(page: Client, experiment: Experiment) -> None:
    url = preview(page, file(LOG), experiment="pipeline-schedules")
    experiment.delete()
    page_text = text(page.post(url, follow=True))
    assert "the experiment was deleted in the meantime" in page_text
    assert not Run.objects.exists()


@pytest.mark.django_db
def test_one_file_that_is_refused_stops_no_other(page: Client) -> None:
    url = preview(page, file(b"\x7fELF\x00\x01" * 50, "trainer.bin"), file(LOG))
    page_text = text(page.get(url))
    assert "Cannot be imported: trainer.bin is" in page_text
    assert "Import 1 file" in page_text
    done = text(page.post(url, follow=True))
    assert "Not imported: trainer.bin is" in done
    assert "Imported into train" in done
    assert Source.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({}, "Paste a log, or select one or more files"),
        ({"files": file(LOG), "experiment": "gone"}, "Experiment gone no longer exists"),
        ({"files": file(LOG), "format": "word"}, "Unknown format word"),
    ],
)
def test_a_form_that_makes_no_sense_says_what_to_do(page: Client, form: dict[str, Any], message: str) -> None:
    response = page.post("/import/", form)
    assert response.status_code == 400
    assert message in text(response)


@pytest.mark.django_db
def test_files_above_the_limit_are_refused_with_the_limit_and_the_setting(page: Client, settings: Any) -> None:
    settings.UPLOAD_LIMIT_MIB = 1
    half = b"line\n" * 120_000
    response = page.post("/import/", {"files": [file(half, "a.log"), file(half, "b.log")]})
    assert response.status_code == 400
    page_text = text(response)
    assert "a.log and the others are 1.14 MiB, above the limit of 1.00" in page_text
    assert "PARLAB_UPLOAD_LIMIT_MIB" in page_text
    assert not list(settings.FILE_UPLOAD_TEMP_DIR.iterdir())


@pytest.mark.django_db
def test_a_large_file_is_moved_and_a_preview_of_it_works(page: Client, settings: Any) -> None:
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 10
    url = preview(page, file(LOG))
    assert "2 runs" in text(page.get(url))
    assert page.post(url).headers["Location"] == "/experiments/train/"
    assert Source.objects.get().size == len(LOG)


@pytest.mark.django_db
def test_a_full_disk_is_reported_and_leaves_no_files(
    page: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(uploads, "_keep", full)
    response = page.post("/import/", {"files": file(LOG)})
    assert "The disk of the server is full" in text(response)
    assert not list(settings.FILE_UPLOAD_TEMP_DIR.iterdir())


@pytest.mark.django_db
def test_an_upload_belongs_to_the_person_who_made_it(page: Client, allowed: Callable[..., Client]) -> None:
    url = preview(page, file(LOG))
    other = allowed("add_run")
    assert "This upload was discarded or has expired" in text(other.get(url, follow=True))
    assert "This upload was discarded or has expired" in text(other.post(url, follow=True))
    assert not Source.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["0" * 32, "x", "a" * 200])
def test_an_upload_that_is_not_there_leads_back_to_the_form(page: Client, key: str) -> None:
    assert "Upload the files again" in text(page.get(f"/import/{key}/", follow=True))


@pytest.mark.django_db
def test_a_preview_can_be_discarded(page: Client, settings: Any) -> None:
    url = preview(page, file(LOG))
    assert "Nothing was imported" in text(page.post(f"{url}discard/", follow=True))
    assert not list(settings.FILE_UPLOAD_TEMP_DIR.iterdir())


@pytest.mark.django_db
def test_uploads_that_are_not_imported_are_deleted_after_a_day(page: Client, settings: Any) -> None:
    first = preview(page, file(LOG))
    old = settings.FILE_UPLOAD_TEMP_DIR / first.split("/")[2]
    left = settings.FILE_UPLOAD_TEMP_DIR / "left.upload"
    left.touch()
    yesterday = time.time() - uploads.KEEP_S - 60
    for path in (old, left):
        os.utime(path, (yesterday, yesterday))
    second = preview(page, file(PAGE, "page.md"))
    assert [path.name for path in settings.FILE_UPLOAD_TEMP_DIR.iterdir()] == [second.split("/")[2]]


@pytest.mark.django_db
def test_names_and_lines_of_files_are_text(page: Client) -> None:
    content = f"# {EVIL}\n\n| a | b {EVIL} |\n|---|---|\n| {EVIL} | 4 s |\n\n- time = 4 {EVIL}\n".encode()
    url = preview(page, file(content, f"{EVIL.replace('/', '')}\x1b[2J.md"))
    page.post(url)
    experiment = Experiment.objects.get()
    source = Source.objects.get()
    addresses = [url, "/", experiment.get_absolute_url(), reverse("source", args=[experiment.slug, source.pk])]
    addresses += [run.get_absolute_url() for run in Run.objects.all()]
    addresses += [reverse("source-lines", args=[experiment.slug, source.pk, 1, 3])]
    for address in addresses:
        html = page.get(address, follow=True).content.decode()
        assert "<script>alert" not in html
        assert "\x1b" not in html
    for address in addresses[-1], reverse("source", args=[experiment.slug, source.pk]):
        assert "&lt;script&gt;alert" in page.get(address).content.decode()


@pytest.mark.django_db
def test_a_contradiction_of_a_document_gets_its_triangle(page: Client) -> None:
    content = (
        b"# Scaling\n\n| GPUs | TFLOP/s per GPU | Aggregate TFLOP/s |\n|---|---|---|\n"
        b"| 8 | 100 | 800 |\n| 16 | 99 | 1584 |\n| 32 | 98 | 9999 |\n"
    )
    page.post(preview(page, file(content, "scaling.md")))
    experiment = Experiment.objects.get()
    finding = Finding.objects.get(rule="aggregate")
    page_html = page.get(f"{experiment.get_absolute_url()}configuration/").content.decode()
    table = re.search(r'<div class="scroll card document".*?</table>', page_html, re.S)
    assert table
    cell = re.search(r"<td[^>]*>9999(.*?)</td>", table[0])
    assert cell
    assert f"id={finding.pk}" in cell[1]
    assert html.escape(finding.message) in page_html


SPEEDS = b"""# Speeds

| Micro batch size | Samples/s | Step time (s) | Training time |
|---|---|---|---|
| 1 | 2502.236 | 11.21 | 0:43:33.85 |
| 2 | 2611.5 | 9.5 | 0:41:02.10 |
"""


@pytest.mark.django_db
def test_numbers_of_a_file_keep_their_digits_on_every_page(page: Client) -> None:
    url = preview(page, file(SPEEDS, "speeds.md"))
    pages = [page.get(url)]
    page.post(url)
    run = Run.objects.get(samples_per_s=2502.236)
    pages += [page.get(f"{run.experiment.get_absolute_url()}table/")]
    pages += [page.get(run.get_absolute_url())]
    for response in pages:
        words = text(response)
        assert "2502.236" in words
        assert "11.21" in words
    assert "9.50" in text(pages[1]), "a column has one precision"
    assert "2,611.500" in text(pages[1])
    assert "0:43:33.85" in text(pages[2])


@pytest.mark.django_db
def test_durations_of_a_log_are_written_as_people_do(page: Client) -> None:
    log = b"***** train metrics *****\n  epoch                    =  3.0\n  train_runtime            = 0:43:33.85\n"
    log += b"  train_samples_per_second =  21.337\n"
    page.post(preview(page, file(log, "hf.log")))
    words = text(page.get(Run.objects.get().get_absolute_url()))
    assert "43 min 34 s" in words
    assert "21.337" in words
