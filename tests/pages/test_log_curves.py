"""The Log tab: a step of the curve leads to its lines, a line to its step."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from io import BytesIO

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.ingest.files.imports import upload_import
from parlab.lab.models import Attempt, Run
from parlab.series.log import append_log

LOG = "loading\n" + "".join(
    f" iteration {step:8d}/ 100 | elapsed time per iteration (ms): 500.0 | lm loss: {3 - step / 10:.4f} |\n"
    f"note {step}\n"
    for step in range(11, 15)
)
UNNUMBERED = "".join(
    f"{{'loss': {3 - step / 10:.3f}, 'learning_rate': 1e-4, 'epoch': 0.{step + 1}}}\n" for step in range(4)
)


def imported(user: User, log: str) -> Run:
    [made] = upload_import(experiment=None, name="m.log", stream=BytesIO(log.encode()), user=user)
    assert made.experiment is not None
    return made.experiment.runs.get()


def curve_of(page: Client, run: Run) -> dict[str, object]:
    shown = page.get(f"{run.get_absolute_url()}log/?curve=1").content.decode()
    [data] = re.findall(r'<script id="log-curve" type="application/json">(.*?)</script>', shown)
    found: dict[str, object] = json.loads(html.unescape(data))
    return found


@pytest.mark.django_db
def test_the_lines_of_an_imported_log_state_the_steps_of_its_curve(page: Client, user: User) -> None:
    run = imported(user, LOG)
    data = curve_of(page, run)
    assert [place[0] for place in data["places"]] == [11, 12, 13, 14]  # type: ignore[attr-defined]
    assert data["ends"] == {"2": 11, "4": 12, "6": 13, "8": 14}
    assert 'hx-trigger="load"' in page.get(f"{run.get_absolute_url()}log/").content.decode()


@pytest.mark.django_db
def test_a_step_leads_to_its_line_and_a_line_to_its_step(page: Client, user: User) -> None:
    find = f"{imported(user, LOG).get_absolute_url()}log/find/"
    by_step = page.get(f"{find}?step=13").content.decode()
    assert re.findall(r'<span class="meant"><i>(\d+)</i>', by_step) == ["6"]
    assert 'data-at-step="13"' in by_step
    by_line = page.get(f"{find}?line=8").content.decode()
    assert 'data-at-step="14"' in by_line
    assert "data-at-step" not in page.get(f"{find}?line=9").content.decode()
    assert "states step 99" in page.get(f"{find}?step=99").content.decode()


@pytest.mark.django_db
def test_steps_without_numbers_count_as_in_the_series(page: Client, user: User) -> None:
    data = curve_of(page, imported(user, UNNUMBERED))
    assert list(data["ends"].values()) == [place[0] for place in data["places"]]  # type: ignore[attr-defined]


@pytest.mark.django_db
def test_the_steps_of_an_own_run_lead_to_its_reports(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="finished")
    report = b'{"parlab":1,"event":"step","step":%d,"loss":2.5}\n'
    append_log(attempt.pk, b"hello\n" + report % 1 + b"step 1 was slow\n" + report % 2 + b"bye\n")
    shown = page.get(f"{attempt.run.get_absolute_url()}log/find/?step=1").content.decode()
    assert re.findall(r'<span class="meant"><i>(\d+)</i>', shown) == ["3"]
