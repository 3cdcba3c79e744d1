"""Traces of a run: import, page, and traces that do not belong together."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from parlab.lab.models import RankTrace, Run
from tests.traces.generator import Plan, document, file_of

from .test_experiments import text

pytestmark = pytest.mark.django_db
ON_TIME = Plan(hidden_us=0.0, waits_us=400.0)
LATE = Plan(hidden_us=0.0, late_us=400.0)


def upload(page: Client, run: Run, *files: tuple[str, bytes]) -> str:
    sent = [SimpleUploadedFile(name, content) for name, content in files]
    return text(page.post(f"{run.get_absolute_url()}traces/import/", {"files": sent}, follow=True))


def trace(plan: Plan, rank: int, **more: Any) -> tuple[str, bytes]:
    return f"rank{rank}.json", file_of(document(plan, rank, **more)).getvalue()


def test_traces_of_two_ranks_name_the_late_one(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    empty = text(page.get(f"{run.get_absolute_url()}traces/"))
    assert "export_chrome_trace" in empty
    name, content = trace(LATE, 1)
    body = upload(page, run, trace(ON_TIME, 0), (f"{name}.gz", gzip.compress(content)))
    assert "Imported the traces of rank 0, 1." in body
    shown = page.get(f"{run.get_absolute_url()}traces/")
    assert shown.context["tables"].skews[0][:2] == ["1", "4"]
    assert "ncclDevKernel_AllReduce" in text(shown)
    answer = json.loads(page.get(f"{run.get_absolute_url()}traces/figure.json").content)
    waiting = next(item for item in answer["figure"]["data"] if item["name"] == "waiting for other ranks")
    assert waiting["x"] == pytest.approx([0.4, 0.0], abs=1e-6)
    rows = page.get(f"{run.get_absolute_url()}traces/figure.csv").content.decode().splitlines()
    assert rows[0] == "rank,part,seconds"
    # Again: it replaces the earlier one.
    upload(page, run, trace(ON_TIME, 0))
    assert RankTrace.objects.filter(run=run).count() == 2
    assert "Removed 2 traces" in text(page.post(f"{run.get_absolute_url()}traces/delete/", follow=True))


def test_traces_that_do_not_belong_together_are_said(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    broken = file_of(document(Plan(steps=9), 1, world_size=8)).getvalue()
    body = upload(page, run, trace(Plan(), 0), ("rank1.json", broken[: len(broken) // 2]), ("notes.json", b"{}"))
    assert "notes.json was not imported: the file has no traceEvents" in body
    assert "traces of several runs are mixed: world sizes 2, 8" in body
    assert "rank 1: the file ends within an event" in body
    upload(page, run, trace(Plan(), 0, world_size=8), trace(Plan(), 1, world_size=8))
    assert "the traces are of 8 ranks, this run has 2" in text(page.get(f"{run.get_absolute_url()}traces/"))


def test_a_trace_without_a_rank_is_named_by_its_file(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    events = json.dumps(document(Plan(), 0)["traceEvents"]).encode()
    upload(page, run, ("worker_3.pt.trace.json", events), ("mine.json", events))
    assert list(run.traces.values_list("rank", flat=True)) == [0, 3]
    assert "its file name state no rank" in text(page.get(f"{run.get_absolute_url()}traces/"))


def test_only_who_may_add_runs_imports_traces(viewer: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    assert viewer.post(f"{run.get_absolute_url()}traces/import/").status_code == 403
    assert "Import" not in text(viewer.get(f"{run.get_absolute_url()}traces/")).split("Traces", 2)[-1][:200]
