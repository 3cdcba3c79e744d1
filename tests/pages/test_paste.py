"""The paste box: what it reads before anything is stored, and where its import leads."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from parlab.lab.models import AuditEntry, Experiment, Run, Source
from parlab.pages.views.files.pasting import PASTE_LIMIT

from .test_experiments import text
from .test_imports import EVIL, LOG

pytestmark = pytest.mark.django_db

PASTED = LOG.decode()
STEPS = "".join(
    f" iteration {n}/ 4 | elapsed time per iteration (ms): 500.0 | global batch size: 8 | lm loss: {9 - n}.5 |\n"
    for n in range(1, 5)
)
UNKNOWN = "frobnicated 12 widgets\nfrobnicated 13 widgets\n" * 4


@pytest.fixture(autouse=True)
def own_uploads(settings: Any, tmp_path: Path) -> None:
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path / "uploads"
    settings.FILE_UPLOAD_TEMP_DIR.mkdir()


def look(client: Client, pasted: str, **more: str) -> Any:
    return client.post("/import/paste/", {"text": pasted, **more})


def test_a_pasted_log_is_read_and_nothing_is_stored(page: Client, settings: Any) -> None:
    shown = text(look(page, STEPS.replace("\n", "\r\n")))
    assert re.search(r"megatron: 1 run, 4 steps, \d+ numbers read\.", shown)
    assert "All 4 lines understood." in shown
    assert "500 ms" in shown
    assert "8.50 → 5.50" in shown
    assert 'data-read="import" data-runs="1"' in look(page, STEPS).content.decode()
    assert not Experiment.objects.exists()
    assert not list(settings.FILE_UPLOAD_TEMP_DIR.iterdir())


def test_several_runs_are_a_table_with_what_ended_badly(page: Client) -> None:
    shown = text(look(page, PASTED))
    assert re.search(r"megatron: 2 runs, \d+ numbers read\.", shown)
    assert "OOM" in shown


def test_lines_that_are_not_understood_are_shown_escaped(page: Client) -> None:
    response = look(page, f"{PASTED}\n iteration 50/ 60 | elapsed time per iteration (ms): {EVIL} | lm loss: x |\n")
    assert EVIL not in response.content.decode()
    assert "not understood" in text(response)


def test_one_run_is_imported_under_its_name_and_opened(page: Client) -> None:
    response = page.post("/import/now/", {"text": STEPS, "name": "pasted.log"})
    run = Run.objects.get()
    assert response.headers["Location"] == run.get_absolute_url()
    assert Source.objects.get().name == "pasted.log"
    assert Source.objects.get().size == len(STEPS)
    assert "Imported pasted.log: 1 run" in text(page.get(run.get_absolute_url()))
    assert AuditEntry.objects.filter(route="import-now").count() == 1
    assert "already imported" in text(look(page, STEPS))


def test_several_runs_open_their_experiment_and_a_chosen_one_gets_them(page: Client, experiment: Experiment) -> None:
    response = page.post("/import/now/", {"text": PASTED, "name": f"{EVIL}/../mine"})
    assert response.headers["Location"].startswith("/experiments/mine")
    assert page.post("/import/now/", {"text": STEPS, "experiment": experiment.slug}).status_code == 302
    assert experiment.runs.count() == 1


def test_an_unknown_format_leads_to_the_guess_of_its_format(page: Client) -> None:
    assert 'data-read="guess"' in look(page, UNKNOWN).content.decode()
    for address in ("/import/", "/import/now/"):
        onward = page.post(address, {"text": UNKNOWN}).headers["Location"]
        assert re.fullmatch(r"/import/[0-9a-f]{32}/", onward)
        assert "Cannot be imported" in text(page.get(onward))
    assert not Experiment.objects.exists()


def test_a_text_that_is_too_long_is_refused_with_the_remedy(page: Client) -> None:
    long = "x" * (PASTE_LIMIT + 1)
    for address in ("/import/paste/", "/import/", "/import/now/"):
        shown = text(page.post(address, {"text": long}))
        assert "the limit for pasting is 2.00 MiB. Save it as a file" in shown


def test_junk_is_answered(page: Client) -> None:
    for junk in (
        "\0\0\0",
        "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
        "PK\x03\x04",
        "{" * 9999,
        "a,b\n1",
        "1" * 40_000,
        "\u202e\x1b[31m",
    ):
        assert look(page, junk, name="\0\u202e" * 90, experiment="\0").status_code == 200
    assert text(look(page, "  \n")).strip() == ""


def test_pasting_needs_the_right(viewer: Client, client: Client, allowed: Callable[..., Client]) -> None:
    assert look(viewer, STEPS).status_code == 403
    assert viewer.post("/import/now/", {"text": STEPS}).status_code == 403
    assert look(client, STEPS).headers["Location"].startswith("/login/")
    assert look(allowed("add_run"), STEPS).status_code == 200


def test_the_example_is_read_whole_and_shows_a_contradiction(page: Client) -> None:
    pattern = re.compile(r"<template data-example-text>(.*?)</template>", re.S)
    [home], [example] = (pattern.findall(page.get(address).content.decode()) for address in ("/", "/import/"))
    assert home == example
    answer = text(look(page, html.unescape(example)))
    assert "1 run, 8 steps" in answer
    assert "All 11 lines understood" in answer
    assert "gradient accumulation" in answer
