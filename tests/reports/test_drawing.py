"""Pictures are drawn by a real browser, once each; a missing browser is reported with a remedy."""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from PIL import Image

from parlab.lab.models import PictureJob, ReportVersion, Run, Snapshot
from parlab.lab.services.pictures import picture_job_claim, picture_job_end, picture_job_note, picture_jobs_stalled
from parlab.publishing.chromium import NoPicture, Page, started
from parlab.publishing.draw import draw
from tests.browser.install import find_chromium
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.django_db

Publish = Callable[[str], ReportVersion]


@pytest.fixture
def browser(settings: Any) -> str:
    """Use the browser of the page tests for the server's own drawing."""
    settings.CHROMIUM = find_chromium() or ""
    return str(settings.CHROMIUM)


def job_of(version: ReportVersion) -> PictureJob:
    return version.jobs.get()


@pytest.mark.slow
def test_a_version_gets_pictures_of_its_figures_and_a_pdf(
    page: Client, browser: str, no_orphans: None, four_runs: list[Run], make_version: Publish
) -> None:
    version = make_version("Text\n\n{{ figure throughput }}\n\n{{ figure memory }}\n")

    draw(job_id=job_of(version).pk)

    job = job_of(version)
    assert (job.state, job.problem, job.done, job.total) == ("done", "", 3, 3)
    url = reverse("report-version", args=[version.report.slug, 1])
    names = set(version.files.values_list("name", flat=True))
    assert names == {"figure-1.svg", "figure-1.png", "figure-2.svg", "figure-2.png", "report.pdf"}
    svg = page.get(f"{url}figure-1.svg").content
    assert b"<svg" in svg[:200]
    assert b"Throughput" in svg
    assert b"<script" not in svg
    png = Image.open(io.BytesIO(page.get(f"{url}figure-1.png").content))
    assert len(png.getcolors(2**20) or []) > 50  # something was drawn
    assert page.get(f"{url}report.pdf").content.startswith(b"%PDF-")
    alone = page.get(f"{url}report.html").content.decode()
    assert alone.count("data:image/svg+xml;base64,") == 2
    assert "](figures/figure-1.png)" in page.get(f"{url}report.md").content.decode()
    page.post(f"{url}share/")
    shared = Client().get(reverse("shared", args=[version.links.get().token])).content.decode()
    assert "figure-1.svg" in shared
    assert "plotly" not in shared


@pytest.mark.slow
def test_a_run_gets_two_panels_and_a_second_drawing_adds_none(
    page: Client, browser: str, no_orphans: None, four_runs: list[Run]
) -> None:
    run = four_runs[0]
    url = reverse("picture-draw", args=[run.experiment.slug])
    for _ in range(2):
        page.post(url, {"run": run.number})
        page.post(url, {"run": run.number})  # a second click joins the job that is open
        draw(job_id=PictureJob.objects.get(state="waiting").pk)

    panels = Snapshot.objects.filter(kind="image").order_by("pk")
    assert [panel.content["panel"] for panel in panels] == ["configuration", "results"]
    assert [job.state for job in PictureJob.objects.all()] == ["done", "done"]
    html = page.get(reverse("gallery", args=[run.experiment.slug])).content.decode()
    assert "Configuration of run 1" in html
    assert all(panel.is_intact and panel.content["width"] == 2 * 1000 for panel in panels)


def test_without_a_browser_the_page_names_the_remedy_and_the_rest_works(
    page: Client,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    four_runs: list[Run],
    make_version: Publish,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    version = make_version("{{ figure throughput }}")
    url = reverse("report-version", args=[version.report.slug, 1])
    waiting = page.get(f"{url}report.pdf")

    draw(job_id=job_of(version).pk)

    html = page.get(url).content.decode()
    assert waiting.status_code == 409
    assert "being created" in waiting.content.decode()
    assert "Pictures and PDF are not available: Chromium is not installed on the server. Install" in html
    assert "data-figure-url" in html
    pdf = page.get(f"{url}report.pdf")
    assert pdf.status_code == 409
    assert "Chromium is not installed" in pdf.content.decode()
    assert "<td>1</td>" in page.get(f"{url}report.html").content.decode()  # the figure's numbers stand in for it
    assert page.get(f"{url}report.zip").status_code == 200


def test_a_configured_browser_that_does_not_exist_is_named(
    settings: Any, four_runs: list[Run], make_version: Publish
) -> None:
    settings.CHROMIUM = "/nowhere/chromium"
    version = make_version("text")

    draw(job_id=job_of(version).pk)

    assert (
        job_of(version).problem
        == "PARLAB_CHROMIUM is /nowhere/chromium, which is not an executable. Correct it, then draw again."
    )


DEAF = "#!/bin/sh\nexec sleep 600\n"
"""A program that starts and never answers."""


@pytest.mark.parametrize(
    ("script", "limit_s", "message"),
    [("#!/bin/true\n", PATIENCE_S, "stopped unexpectedly"), (DEAF, 3, "took too long")],
)
def test_a_browser_that_does_not_answer_leaves_no_process(
    script: str, limit_s: float, message: str, tmp_path: Path, no_orphans: None
) -> None:
    program = tmp_path / "chromium"
    program.write_text(script)
    program.chmod(0o755)

    with pytest.raises(NoPicture, match=message), started(program=str(program), limit_s=limit_s):
        pytest.fail("the browser cannot have started")


@pytest.mark.slow
@pytest.mark.parametrize("script", ["(() => { while (true); })()", "new Promise(() => 0)"])
def test_a_page_that_never_finishes_ends_at_the_deadline(script: str, browser: str, no_orphans: None) -> None:
    with started(program=browser, limit_s=PATIENCE_S) as running:
        page = Page(running, "<p>text")
        running.deadline = time.monotonic() + 1
        with pytest.raises(NoPicture, match="took too long"):
            page.evaluate(script)


KILLED = """
import sys, time
from parlab.publishing.chromium import Page, started
with started(program=sys.argv[1], limit_s=600) as browser:
    Page(browser, "<p>text")
    print("open", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_worker_leaves_no_browser(browser: str) -> None:
    worker = subprocess.Popen([sys.executable, "-c", KILLED, browser], stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"open\n"
        children = psutil.Process(worker.pid).children(recursive=True)
        assert len(children) > 2
    finally:
        worker.kill()
        worker.communicate()
    wait_for(lambda: not any(map(is_alive, children)), "driver and browser have ended")


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.slow
def test_a_page_reaches_no_network(browser: str) -> None:
    fetch = "(url) => fetch(url, {mode: 'no-cors'}).then(() => 'reached', () => 'blocked')"
    with socket.create_server(("127.0.0.1", 0)) as listener, started(program=browser, limit_s=PATIENCE_S) as running:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert Page(running, "<p>text").evaluate(fetch, url) == "blocked"


def test_one_worker_claims_a_job_and_the_job_of_a_killed_worker_is_retried(
    four_runs: list[Run], make_version: Publish
) -> None:
    job = job_of(make_version("text"))

    first = picture_job_claim(job_id=job.pk)
    second = picture_job_claim(job_id=job.pk)
    PictureJob.objects.update(changed_at=timezone.now() - timedelta(minutes=4))
    stalled = list(picture_jobs_stalled())
    third = picture_job_claim(job_id=job.pk)

    assert first is not None
    assert second is None
    assert stalled == [job]
    assert third is not None
    assert third.tries == 2


def test_a_job_that_kills_its_worker_is_given_up(four_runs: list[Run], make_version: Publish) -> None:
    job = job_of(make_version("text"))
    for _ in range(4):
        picture_job_claim(job_id=job.pk)
        PictureJob.objects.update(changed_at=timezone.now() - timedelta(minutes=4))

    job.refresh_from_db()
    assert (job.state, job.tries) == ("failed", 3)
    assert "started 3 times" in job.problem


def test_the_progress_of_drawing_is_shown(page: Client, four_runs: list[Run], make_version: Publish) -> None:
    version = make_version("{{ figure throughput }}")
    url = reverse("report-version-live", args=[version.report.slug, 1])
    job = job_of(version)

    before = page.get(url).content.decode()
    picture_job_claim(job_id=job.pk)
    picture_job_note(job=job, done=1, total=2)
    during = page.get(url).content.decode()
    picture_job_end(job=job)
    after = page.get(url).content.decode()

    assert "waiting for a worker" in before
    assert 'max="2" value="1"' in during
    assert "Drawing 1 of 2" in during
    assert "hx-get" not in after
