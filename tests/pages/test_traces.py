"""Traces of a run: import, page, and traces that do not belong together."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from parlab.ingest.summaries.traces import lanes_name
from parlab.lab.models import RankTrace, Run
from parlab.lab.services import stored_files
from tests.traces.generator import Plan, document, file_of

from .test_experiments import text

pytestmark = pytest.mark.django_db
ON_TIME = Plan(hidden_us=0.0, waits_us=400.0)
LATE = Plan(hidden_us=0.0, late_us=400.0)


@pytest.fixture(autouse=True)
def _directory(settings: Any, tmp_path: Path) -> None:
    settings.ARTIFACTS_DIR = tmp_path


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
    assert [row[0] for row in shown.context["tables"].nodes] == ["node-1", "node-0"]
    assert {row[3] for row in shown.context["tables"].periods} == {"1"}
    assert "By node" in text(shown)
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


def test_the_view_has_lanes_of_all_ranks_on_one_clock(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    assert page.get(f"{run.get_absolute_url()}traces/view/").status_code == 302
    upload(page, run, trace(ON_TIME, 0), trace(LATE, 1, clock_us=5_000_000.0))
    assert "Drag to move" in text(page.get(f"{run.get_absolute_url()}traces/view/"))
    base = f"{run.get_absolute_url()}traces/view/"
    outline = json.loads(page.get(f"{base}outline.json").content)
    assert [row["rank"] for row in outline["ranks"]] == [0, 1]
    assert outline["end"] - outline["begin"] == pytest.approx(4 * ON_TIME.step_us * 1e-6, rel=0.1)
    assert outline["missing"] == []
    assert len(outline["steps"]) == 8
    window = json.loads(page.get(f"{base}window.json").content)
    assert len(window["links"]) == 4
    link = window["links"][0]
    assert link["late"] == 1
    assert link["skew"] == pytest.approx(400e-6)
    begin = link["times"][0][1] + window["begin"]
    inside = json.loads(page.get(f"{base}window.json", {"begin": begin, "end": begin + 1e-4}).content)
    assert len(inside["links"]) == 1
    match = json.loads(page.get(f"{base}search.json", {"text": "allreduce"}).content)["matches"][0]
    assert (match["count"], len(match["at"])) == (8, 8)
    assert page.get(f"{base}window.json", {"begin": 2, "end": 1}).status_code == 400
    packed = b"".join(page.get(f"{run.get_absolute_url()}traces/trace.json.gz").streaming_content)  # type: ignore[attr-defined]  # of a streaming response
    events = json.loads(gzip.decompress(packed))["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}


def test_the_api_has_steps_kernels_and_late_ranks(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    upload(page, run, trace(ON_TIME, 0), trace(LATE, 1))
    answer = page.get(f"/api{run.get_absolute_url()}traces/").json()
    assert [(row["rank"], row["late"]) for row in answer["ranks"]] == [(0, 0), (1, 4)]
    step = answer["ranks"][0]["steps"][0]
    parts = ("compute_s", "exposed_communication_s", "copies_s", "idle_host_s", "idle_launched_s")
    assert sum(step[part] for part in parts) == pytest.approx(step["total_s"])
    assert answer["matched_collectives"] == 4


def test_removed_traces_leave_no_lanes(page: Client, four_runs: list[Run]) -> None:
    run, other = four_runs[:2]
    upload(page, run, trace(ON_TIME, 0))
    upload(page, other, trace(ON_TIME, 0))
    path = stored_files.root() / lanes_name(RankTrace.objects.filter(run=run)[0].sha256)
    page.post(f"{run.get_absolute_url()}traces/delete/")
    assert path.is_dir()  # the other run has the same trace
    upload(page, other, trace(LATE, 0))
    assert not path.exists()
    assert (stored_files.root() / lanes_name(RankTrace.objects.get(run=other).sha256)).is_dir()


def test_a_run_with_nothing_but_traces_has_a_waterfall(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    Run.objects.filter(pk=run.pk).update(step_time_s=None, summary={})
    assert "No waterfall" in text(page.get(f"{run.get_absolute_url()}time/"))
    upload(page, run, trace(ON_TIME, 0), trace(LATE, 1))
    shown = page.get(f"{run.get_absolute_url()}time/")
    kinds = {row.title: row.kind for row in shown.context["table"].rows}
    assert kinds["Pipeline communication"] == "measured"
    assert kinds["Unexplained"] == "unexplained"
    assert "which a profiler makes longer" in text(shown)
    # It is also on the page of the run.
    assert " a step" in text(page.get(run.get_absolute_url()))
