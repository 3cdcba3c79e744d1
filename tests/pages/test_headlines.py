"""The numbers of an imported run are those of its series, with how they came about, on pages and in the API."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.charts.format import DIGITS, SPACE, printed_digits, quantity
from parlab.client.server.experiments import flat_row
from parlab.ingest.files.imports import upload_import
from parlab.ingest.readings.results import PAGES
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.records import run_records
from parlab.pages.rows.run_heads import head_numbers
from parlab.pages.rows.runs import headline, run_table
from parlab.reports.facts import numbers_of
from parlab.series import store
from tests.formats.golden import cases

from .test_experiments import text

pytestmark = pytest.mark.django_db

Bring = Callable[..., list[Run]]
SAMPLES = [path for path in cases() if path.suffix in (".log", ".txt", ".csv", ".jsonl")]
AVERAGES = "".join(f"step:{n}/200 train_loss:2.2 step_avg:{43.4 + n / 100:.2f}ms\n" for n in range(10, 60, 10))
PRINTED = "".join(f"step: {n} loss: 2.5 step time: {0.4 + n / 1000:.3f} s\n" for n in range(1, 20))


@pytest.fixture
def bring(user: User) -> Bring:
    """Import a text and return its runs."""

    def bring(data: bytes, name: str = "run.log") -> list[Run]:
        upload_import(experiment=None, name=name, stream=io.BytesIO(data), user=user)
        return list(Run.objects.order_by("pk"))

    return bring


def check(run: Run) -> bool:
    """Recompute the step time of a run from its series; return whether it has one."""
    summary: dict[str, Any] = run.summary
    attempt = Attempt.objects.filter(run=run, number=run.attempt_number).first()
    ranks = store.read_ranks(attempt.pk, "step_time_s") if attempt else {}
    if "step_time_s" not in summary or not ranks or run.kind_of("step_time_s") in ("part", "average"):
        return False
    left_out = set((summary.get("steps") or {}).get("left_out") or ())
    slowest: dict[int, float] = {}
    for columns in ranks.values():
        for step, value in zip(columns.steps.tolist(), columns.values.tolist(), strict=True):
            if step not in left_out and np.isfinite(value):
                slowest[step] = max(value, slowest.get(step, 0.0))
    median = float(np.median(list(slowest.values())))
    assert run.step_time_s == pytest.approx(median, rel=1e-6)
    shown = quantity(median, "s", printed_digits(run.step_time_s) if run.has_printed_numbers else DIGITS)
    assert headline(run).startswith("OOM" if run.state == "oom" else shown)
    assert next(number for number in head_numbers(run, {}, has_steps=True)).value == shown.partition(SPACE)[0]
    return True


def check_others(run: Run) -> int:
    """Recompute the memory and the loss of a run from its series; return how many of them it has."""
    attempt = Attempt.objects.filter(run=run, number=run.attempt_number).first()
    peaks = store.read_ranks(attempt.pk, "memory_peak_bytes") if attempt else {}
    by_rank = (run.summary.get("memory_peak_bytes") or {}).get("by_rank") or {}
    own = {rank: peaks[int(rank)].values for rank in by_rank if int(rank) in peaks}
    assert {rank: pytest.approx(float(np.nanmax(values))) for rank, values in own.items()} == {
        rank: by_rank[rank] for rank in own
    }
    losses = store.read_ranks(attempt.pk, "loss") if attempt else {}
    loss = run.summary.get("loss") or {}
    if losses and "last" in loss:
        values = losses[min(losses)].values
        finite = values[np.isfinite(values)].tolist()
        assert [loss["first"], loss["last"]] == [pytest.approx(finite[0]), pytest.approx(finite[-1])]
    return len(own) + bool(losses and "last" in loss)


FEW = SAMPLES[4::40]
PARTS = [FEW, *(pytest.param(SAMPLES[part::8], marks=pytest.mark.slow) for part in range(8))]


@pytest.mark.parametrize("samples", PARTS, ids=lambda samples: samples[0].parent.name)
def test_the_headlines_of_samples_follow_from_their_series(bring: Bring, samples: list[Path]) -> None:
    for path in samples:
        bring(path.read_bytes(), path.name)
    logs = [run for run in Run.objects.select_related("config") if run.source and run.source.format not in PAGES]
    assert sum(map(check, logs)) > len(samples) // 5
    assert sum(map(check_others, logs)) > len(samples) // 5


def test_an_average_is_shown_and_marked_as_one_everywhere(bring: Bring, page: Client) -> None:
    (run,) = bring(AVERAGES.encode(), "average.log")
    assert run.kind_of("step_time_s") == "average"
    assert headline(run).endswith("average since the start")
    (number, *_) = head_numbers(run, {}, has_steps=True)
    assert "average" in number.below
    assert "Average since the start." in number.note
    assert "average" in text(page.get(run.get_absolute_url()))
    answer = page.get(f"/api/experiments/{run.experiment.slug}/runs/").json()
    kinds = answer["results"][0]["kinds"]
    assert kinds["step_time_s"] == "average"
    assert {name for name in kinds if answer["results"][0].get(name) is None} == set()
    assert flat_row(answer["results"][0])["kinds.step_time_s"] == "average"
    facts = {fact.field: fact.text for fact in numbers_of(run_records([run])[0])}
    assert facts["step_time_s"].endswith(", average")


def test_a_number_that_a_file_prints_is_called_printed(bring: Bring, page: Client) -> None:
    (run,) = bring(PRINTED.encode(), "printed.log")
    answer = page.get(f"/api/experiments/{run.experiment.slug}/runs/").json()
    assert answer["results"][0]["kinds"]["step_time_s"] == "printed"
    assert page.get(run.get_absolute_url().replace("/experiments/", "/api/experiments/")).json()["kinds"] == run.kinds


def test_a_speed_in_a_unit_of_the_file_is_the_headline_under_its_printed_name(bring: Bring) -> None:
    page = "# Results\n\n- batch size = 2\n- avg_step_fps = 2.59\n"
    runs = bring(page.encode(), "results.md")
    assert [headline(run) for run in runs] == ["avg_step_fps 2.59"]


def test_the_speed_of_a_table_is_among_its_first_columns(bring: Bring, page: Client) -> None:
    table = "| Model | Layers | Hidden | TFlops/GPU | TFlops Aggreg |\n| --- | --: | --: | --: | --: |\n"
    rows = "".join(f"| {n}B | {24 + n} | {1024 * n} | {130 + n} | {4.4 * n} |\n" for n in range(1, 6))
    runs = bring(f"# Paper\n\n{table}{rows}".encode(), "paper.md")
    assert headline(runs[0]).startswith("TFlops")
    titles = [column.title for column in run_table(runs, waiting={}).columns]
    assert next(title for title in titles if title != "Ranks").startswith("TFlops/GPU"), titles


def test_lists_show_a_speed_in_a_unit_of_the_file_under_its_printed_name(bring: Bring, page: Client) -> None:
    (run,) = bring(b"# Results\n\n- batch size = 2\n- avg_step_fps = 2.59\n", "results.md")
    for url in ("/", "/experiments/", run.experiment.get_absolute_url()):
        assert re.search(r"2\.59\s+avg_step_fps", text(page.get(url))), url
