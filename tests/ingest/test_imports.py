from __future__ import annotations

import gzip
import io
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard
from django.contrib.auth.models import User
from django.db import connection

from parlab.ingest.files import drafts
from parlab.ingest.files.delivery import raw_pieces
from parlab.ingest.files.imports import Import, Refused, source_reingest, upload_import
from parlab.ingest.readings.results import results_in
from parlab.lab.models import Attempt, Config, Experiment, Finding, Picture, Run, Snapshot, Source, SourceChunk
from parlab.lab.selectors.analysis.plannable import calibration_candidates
from parlab.lab.selectors.analysis.sweep import run_points
from parlab.lab.selectors.records import run_records
from parlab.lab.services.findings import finding_acknowledge, findings_refresh
from parlab.series import chunks, log, store
from parlab.series.models import LogChunk, SeriesChunk
from tests.patience import PATIENCE_S

from .pages import PNG, SCALING, SCHEDULES, megatron, sections, zipped

Bring = Callable[..., Import]


@pytest.fixture
def bring(user: User) -> Bring:
    """Import bytes: bring(data, name="run.log", experiment=None, dry_run=False, pictures=None)."""

    def bring(data: bytes, name: str = "run.log", experiment: Experiment | None = None, **options: Any) -> Import:
        [imported] = upload_import(experiment=experiment, name=name, stream=io.BytesIO(data), user=user, **options)
        return imported

    return bring


def everything() -> list[Any]:
    """All rows that an import makes, as plain values."""
    models = (Experiment, Source, SourceChunk, Config, Run, Attempt, Snapshot, Finding, Picture, SeriesChunk, LogChunk)
    return [
        [
            {key: bytes(value) if isinstance(value, memoryview) else value for key, value in row.items()}
            for row in model._default_manager.order_by("pk").values()
        ]
        for model in models
    ]


def by_point() -> dict[tuple[str, str | None, int | None], Run]:
    """Runs of the page of schedules: (schedule or section, network, micro batch size) -> run."""
    points = [(run, run.point) for run in Run.objects.all()]
    axes = ("network", "train.micro_batch_size")
    return {(p.get("parallel.schedule") or p["section"], *(p.get(axis) for axis in axes)): run for run, p in points}


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_series_are_packed_while_others_can_write(bring: Bring, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[tuple[str, int]] = []

    def whole(key: tuple[str, int], columns: Any) -> Any:
        assert not connection.in_atomic_block
        packed.append(key)
        return chunks.whole(key, columns)

    monkeypatch.setattr("parlab.series.replacing.chunks", SimpleNamespace(whole=whole))
    bring(megatron(6), "nightly.log")
    stored = {(info.metric, info.rank) for info in store.metrics(Run.objects.get().current_attempt().pk)}
    assert set(packed) == stored
    source_reingest(source=Source.objects.get())
    assert len(packed) == 2 * len(stored)


def test_a_log_becomes_an_experiment_with_its_run_series_and_text(bring: Bring) -> None:
    data = megatron(6, end="exiting program at iteration 6\n")
    imported = bring(data, "nightly.log")
    assert imported.is_new
    assert imported.experiment_name == "nightly"
    run = Run.objects.get()
    attempt = run.current_attempt()
    assert (run.state, run.origin, run.number, run.place) == ("finished", "imported", 1, {"segment": 0})
    assert (run.first_line, run.last_line) == (1, 27)
    steps = store.read(attempt.pk, "step_time_s", rank=0)
    assert steps.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert steps.values.tolist() == pytest.approx([1.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert {info.metric for info in store.metrics(attempt.pk)} >= {"step_time_s", "loss", "samples", "consumed_samples"}
    assert store.read(attempt.pk, "timer/forward-compute", rank=0).values.tolist() == [0.375, *[0.125] * 5]
    assert b"".join(log.read_log(attempt.pk)) == data
    assert (attempt.state, attempt.last_step) == ("finished", 6)


def test_an_experiment_is_named_after_the_first_heading_of_a_page(bring: Bring) -> None:
    page = SCHEDULES.replace("# Tiny GPT on two machines", "# A/B of  two\x07 schedules")
    assert bring(page.encode(), "page.md").experiment_name == "A/B of two schedules"
    assert bring(b"\n" + page.encode(), "page.md").experiment_name == "A/B of two schedules (2)"


def test_a_placeholder_is_not_a_point_of_a_series(bring: Bring) -> None:
    run = bring(megatron(3)).experiment.runs.get()  # type: ignore[union-attr]
    names = {info.metric for info in store.metrics(run.current_attempt().pk)}
    assert "timer/optimizer" not in names  # it was printed as 0.00
    assert "skipped_iterations" in names  # 0 skipped iterations are a measurement


def test_the_summary_is_that_of_our_own_runs(bring: Bring) -> None:
    bring(megatron(6))
    run = Run.objects.get()
    assert run.summary["steps"] == {"count": 5, "first": 2, "last": 6, "left_out": [1], "why": "warm-up"}
    assert run.summary["step_time_s"] == pytest.approx(
        {"median": 0.5, "p10": 0.5, "p90": 0.5, "mean": 0.5, "mean_without_first": 0.5}
    )
    assert run.summary["samples_per_s"] == pytest.approx(16.0)
    assert run.summary["tokens_per_s"] == pytest.approx(16.0 * 128)
    assert run.summary["timers_s"]["backward-compute"]["median"] == pytest.approx(0.25)
    assert run.summary["loss"] == {"first": 10.0, "last": pytest.approx(8 + 2 / 6)}
    assert run.step_time_s == pytest.approx(0.5)
    assert run.samples_per_s == pytest.approx(16.0)


def test_a_run_has_the_settings_of_its_log_and_all_arguments(bring: Bring) -> None:
    bring(megatron(2))
    run = Run.objects.get()
    assert run.resolved["model"] == {
        "num_layers": 6,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "sequence_length": 128,
    }
    assert run.resolved["parallel"] == {
        "data_parallel_size": 2,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 2,
    }
    assert run.resolved["train"]["precision"] == "fp16"
    assert run.iterations == 2
    assert run.launch["world_size"] == 4
    assert run.launch["arguments"]["seq_length"] == 128
    # Unspecified settings are not filled with defaults.
    assert "schedule" not in run.resolved["parallel"]


def test_a_log_with_several_launches_becomes_as_many_runs(bring: Bring) -> None:
    oom = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    first, second = megatron(3, total=9, end=oom), megatron(9, data=4)
    third = megatron(
        4, total=9, data=8, end="slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"
    )
    bring(first + second + third)
    runs = list(Run.objects.order_by("number"))
    assert [run.state for run in runs] == ["oom", "finished", "cancelled"]
    assert "out of memory" in runs[0].reason
    assert "CANCELLED" in runs[2].reason
    assert [run.point for run in runs] == [{"GPUs": 4}, {"GPUs": 8}, {"GPUs": 16}]
    texts = [b"".join(log.read_log(run.current_attempt().pk)) for run in runs]
    assert texts == [first, second, third]


def test_indistinguishable_launches_are_numbered(bring: Bring) -> None:
    bring(megatron(3, total=9, end="Traceback (most recent call last):\nValueError: no\n") + megatron(9))
    assert [run.point for run in Run.objects.order_by("number")] == [{"launch": 1}, {"launch": 2}]


def test_a_log_with_an_unknown_end_is_finished_and_has_no_finding(bring: Bring) -> None:
    imported = bring(megatron(3, total=500))
    run = Run.objects.get()
    assert (run.state, run.reason) == ("finished", "The log does not state how the launch ended.")
    assert run.summary["end"] == "unknown"
    assert imported.findings == []
    assert not Finding.objects.exists()


def test_the_file_itself_is_kept_byte_for_byte(bring: Bring) -> None:
    data = b"\xef\xbb\xbf" + megatron(2_000) + b"\xff\x00 no utf-8 \x1b[31m\r\n"
    source = bring(data).source
    assert source is not None

    stored_bytes = b"".join(zstandard.decompress(piece) for piece in raw_pieces(source))
    assert stored_bytes == data
    assert source.size == len(data)
    assert source.chunks.count() == -(-len(data) // (256 * 1024))


@pytest.mark.database
def test_a_second_import_changes_nothing(bring: Bring) -> None:
    first = bring(SCHEDULES.encode(), "page.md")
    before = everything()
    for experiment in (first.experiment, None):
        again = bring(SCHEDULES.encode(), "page again.md", experiment)
        assert not again.is_new
        assert again.source == first.source
        assert [run.number for run in again.runs] == [run.number for run in first.runs]
    assert everything() == before


def test_the_same_file_may_belong_to_two_experiments(bring: Bring, experiment: Experiment) -> None:
    bring(megatron(2))
    assert bring(megatron(2), experiment=experiment).is_new
    assert Source.objects.count() == 2


def test_a_dry_run_returns_what_would_be_created_and_stores_nothing(bring: Bring) -> None:
    before = everything()
    would = bring(SCHEDULES.encode(), "page.md", dry_run=True)
    assert everything() == before
    made = bring(SCHEDULES.encode(), "page.md")
    assert would.experiment is None
    assert would.experiment_name == made.experiment_name == "Tiny GPT on two machines"
    assert [run._replace(number=None) for run in made.runs] == would.runs
    assert would.findings == made.findings


@pytest.mark.database
def test_a_failure_during_storing_leaves_nothing(bring: Bring, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything()

    def broken(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "store_log", broken)
    with pytest.raises(Refused, match="No space left"):
        bring(megatron(20))
    assert everything() == before


def test_tables_of_a_page_become_one_run_per_cell(bring: Bring) -> None:
    bring(SCHEDULES.encode(), "page.md")
    runs = by_point()
    assert len(runs) == 9
    fast = runs["gpipe", "fast", 1]
    assert (fast.state, fast.step_time_s, fast.samples_per_s) == ("finished", 2.0, 8.0)
    assert fast.tokens_per_s == pytest.approx(8.0 * 128)
    assert fast.place == {"table": 0, "row": 0, "column": 1}
    assert fast.first_line == 14
    assert fast.resolved["train"] == {"global_batch_size": 16, "micro_batch_size": 1, "iterations": 10}
    # --num-layers of this runner counts the layers of a stage.
    assert fast.resolved["model"]["num_layers"] == 8
    assert fast.resolved["parallel"] == {"pipeline_parallel_size": 2, "schedule": "gpipe"}
    assert runs["1f1b", "fast", 2].resolved["parallel"]["schedule"] == "1f1b"
    assert runs["1f1b", "fast", 2].resolved["train"]["micro_batch_size"] == 2


def test_blank_and_failed_cells_become_runs_with_the_text_of_the_page(bring: Bring) -> None:
    bring(SCHEDULES.encode(), "page.md")
    runs = by_point()
    assert (runs["gpipe", "slow", 2].state, runs["gpipe", "slow", 2].reason) == ("oom", "OOM")
    assert (runs["1f1b", "slow", 2].state, runs["1f1b", "slow", 2].reason) == ("failed", "crashed")
    missing = runs["1f1b", "slow", 1]
    assert (missing.state, missing.step_time_s) == ("lost", None)
    assert missing.reason == "Missing: the table contains no value here (-)."
    failed = runs["ZeRO-2 data parallel", None, None]
    assert failed.state == "oom"
    assert failed.reason == "Fail due to running out of memory: not even one sample fits."
    assert failed.resolved["parallel"] == {"data_parallel_size": 2, "zero_stage": 2}


def test_a_page_keeps_tables_text_and_pictures(bring: Bring) -> None:
    seen: list[str] = []

    def pictures(reference: str) -> bytes | None:
        seen.append(reference)
        return PNG

    imported = bring(SCHEDULES.encode(), "page.md", pictures=pictures)
    assert imported.source is not None
    tables = imported.source.document["tables"]
    assert [[cell["text"] for cell in row] for row in tables[1]["rows"]] == [
        ["fast", "1.90 s", "1.50 s"],
        ["slow", "-", "crashed"],
    ]
    notes = Experiment.objects.get().notes
    assert "A batch of 9 was tried and given up." in notes
    assert "1.90 s" not in notes
    snapshot = Snapshot.objects.get(kind="image")
    assert snapshot.is_intact
    picture = Picture.objects.get()
    assert seen == ["figures/cluster.png"]
    assert (bytes(picture.data), picture.media_type) == (PNG, "image/png")
    assert snapshot.content["sha256"] == picture.sha256
    assert snapshot.content["alt"] == "the cluster"


def test_rows_of_a_list_become_runs_and_a_wrong_unit_a_finding(bring: Bring) -> None:
    bring(SCALING.encode(), "scaling.rst")
    runs = list(Run.objects.order_by("number"))
    assert [run.point["GPUs"] for run in runs] == [32, 64, 128]
    assert runs[1].resolved["parallel"]["tensor_parallel_size"] == 2
    assert runs[1].launch["world_size"] == 64
    assert runs[1].summary["tflops_per_gpu"] == 110.0
    assert runs[1].summary["figures"]["TFLOPs aggreg"] == {"value": 7.04, "unit": "", "text": "7.04"}
    finding = Finding.objects.get()
    assert (finding.rule, finding.run) == ("aggregate", None)
    assert "1,000" in finding.message
    assert finding.where["table"] == 0
    assert "7.04" not in Experiment.objects.get().notes


def test_sections_with_a_launch_each_become_runs_with_stated_figures(bring: Bring) -> None:
    bring(sections(), "sections.md")
    one, two = Run.objects.order_by("number")
    assert (one.point, two.point) == ({"GPUs": 2}, {"GPUs": 4})
    assert one.step_time_s == pytest.approx(0.4)
    assert one.samples_per_s == pytest.approx(20.0)
    assert one.summary["memory_peak_bytes"] == {"max": 1500 * 2**20, "min": 1000 * 2**20}
    assert one.summary["gpu_util_pct"] == 80.0
    assert one.summary["timers_s"]["backward-compute"]["median"] == pytest.approx(0.25)
    finding = Finding.objects.get(rule="samples-of-iterations")
    assert finding.run == two
    assert finding.numbers["samples"] == 80
    assert finding.numbers["expected_samples"] == 800


def test_a_rebuild_changes_nothing_where_nothing_was_wrong(bring: Bring) -> None:
    imports = [bring(data, name) for data, name in ((sections(), "s.md"), (megatron(3) + megatron(9, data=4), "m.log"))]
    for imported in imports:
        source_reingest(source=Source.objects.get(pk=imported.source.pk))  # type: ignore[union-attr]
    before = everything()
    for imported in imports:
        source_reingest(source=Source.objects.get(pk=imported.source.pk))  # type: ignore[union-attr]
    after = everything()
    for rows_before, rows_after in zip(before, after, strict=True):
        for row in (*rows_before, *rows_after):
            # A log without time stamps ended when it was imported; chunks of series get new keys.
            for name in ("ended_at", "updated_at", "numbers_at", "id"):
                row.pop(name, None)
    assert after == before


@pytest.mark.database
def test_a_rebuild_restores_damaged_rows_and_keeps_acknowledgements(bring: Bring, user: User) -> None:
    imported = bring(sections(), "sections.md")
    assert imported.source is not None
    finding = Finding.objects.get(rule="samples-of-iterations")
    finding_acknowledge(finding=finding, user=user, reason="a digit was lost in the page")
    Run.objects.update(summary={}, step_time_s=None, resolved={})
    SeriesChunk.objects.all().delete()
    LogChunk.objects.all().delete()
    Source.objects.update(document={"file": "x", "format": "markdown"})
    findings_refresh(experiment=Experiment.objects.get())
    assert not Finding.objects.exists()
    source_reingest(source=Source.objects.get())
    assert [run.step_time_s for run in Run.objects.order_by("number")] == pytest.approx([0.4, 0.2])
    assert SeriesChunk.objects.exists()
    assert LogChunk.objects.exists()
    again = Finding.objects.get(rule="samples-of-iterations")
    finding_acknowledge(finding=again, user=user, reason="a digit was lost in the page")
    source_reingest(source=Source.objects.get())
    assert Finding.objects.get(pk=again.pk).acknowledged_by == user


@pytest.mark.parametrize("data", [zstandard.compress(b"something else"), b"not compressed at all"])
def test_a_rebuild_refuses_damaged_bytes(bring: Bring, data: bytes) -> None:
    imported = bring(megatron(3))
    SourceChunk.objects.update(data=data)
    with pytest.raises(Refused, match=r"run\.log are damaged; import the file again"):
        source_reingest(source=Source.objects.get())
    assert imported.experiment is not None
    assert imported.experiment.runs.count() == 1


def test_utf_16_is_read_and_its_text_shown_as_utf_8(bring: Bring) -> None:
    text = megatron(3).decode()
    bring(text.encode("utf-16"))
    run = Run.objects.get()
    assert run.summary["steps"]["count"] == 2
    assert b"".join(log.read_log(run.current_attempt().pk)).decode() == text


def test_a_range_of_ranks_gives_the_slowest_as_timer_and_the_fastest_beside_it(bring: Bring) -> None:
    timers = "(min, max) time across ranks (ms):\n    forward-compute ....: (100.00, 200.00)\n"
    lines = [
        f" iteration {step}/ 3 | elapsed time per iteration (ms): 500.0 | lm loss: 5.0E+00 |\n{timers}"
        for step in (1, 2, 3)
    ]
    bring("".join(lines).encode())
    run = Run.objects.get()
    assert run.summary["timers_s"]["forward-compute"]["min"] == pytest.approx(0.1)
    assert run.summary["timers_s"]["forward-compute"]["max"] == pytest.approx(0.2)
    assert np.allclose(store.read(run.current_attempt().pk, "timer_min/forward-compute", rank=0).values, 0.1)


@pytest.mark.slow
def test_more_steps_than_fit_into_one_block_are_all_stored(bring: Bring) -> None:
    bring(megatron(40_000))
    run = Run.objects.get()
    attempt = run.current_attempt()
    columns = store.read(attempt.pk, "loss", rank=0)
    assert columns.steps.tolist() == list(range(1, 40_001))
    assert columns.values[39_999] == pytest.approx(8 + 2 / 40_000)
    assert run.summary["steps"]["count"] == 39_999


@pytest.mark.database
def test_extreme_numbers_can_be_stored(bring: Bring) -> None:
    lines = [
        f" iteration {step}/ 9 | elapsed time per iteration (ms): {ms} | lm loss: 5.0E+00 | grad norm: 1e308 |\n"
        for step, ms in ((1, "500.0"), (2, "1e300"), (3, "-1e305"), (99999999999999999, "500.0"))
    ]
    imported = bring("".join(lines).encode() + b"x\x00y\n")
    assert imported.runs[0].steps > 0


def test_an_upload_of_several_files_goes_into_one_experiment(user: User) -> None:
    data = zipped(
        {
            "runs/a.log": megatron(3),
            "runs/b.log": megatron(3, data=4),
            "runs/page.md": SCHEDULES.encode(),
            "runs/figures/cluster.png": PNG,
            "runs/run.sh": b"#!/bin/sh\nexit 0\n",
            "runs/.DS_Store": b"\x00\x01",
        }
    )
    imports = upload_import(experiment=None, name="runs.zip", stream=io.BytesIO(data), user=user)
    assert [imported.name for imported in imports] == ["a.log", "b.log", "page.md"]
    assert Experiment.objects.count() == 1
    assert Run.objects.count() == 11
    assert [run.number for run in Run.objects.order_by("number")] == list(range(1, 12))
    assert Picture.objects.get().reference == "figures/cluster.png"
    again = upload_import(experiment=None, name="runs.zip", stream=io.BytesIO(data), user=user)
    assert not any(imported.is_new for imported in again)
    assert Run.objects.count() == 11


def test_a_dry_run_of_an_imported_archive_reports_that_nothing_would_change(user: User) -> None:
    data = zipped({"a.log": megatron(3), "b.log": megatron(3, data=4), "plot.png": PNG})
    upload_import(experiment=None, name="runs.zip", stream=io.BytesIO(data), user=user)
    imports = upload_import(experiment=None, name="runs.zip", stream=io.BytesIO(data), user=user, dry_run=True)
    assert [(imported.name, imported.is_new) for imported in imports] == [("a.log", False), ("b.log", False)]


def test_a_compressed_log_is_read_like_its_content(bring: Bring) -> None:

    imported = bring(gzip.compress(megatron(3)), "night.log.gz")
    assert (imported.name, len(imported.runs)) == ("night.log", 1)
    assert not bring(megatron(3), "night.log").is_new


def test_a_rebuild_deletes_runs_that_are_no_longer_read_and_adds_new_ones(
    bring: Bring, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = bring(SCHEDULES.encode(), "page.md").source
    assert source is not None
    monkeypatch.setattr(drafts, "results_in", lambda *arguments: results_in(*arguments)[2:])
    source_reingest(source=source)
    assert sorted(Run.objects.values_list("number", flat=True)) == list(range(3, 10))
    monkeypatch.setattr(drafts, "results_in", results_in)
    source_reingest(source=source)
    assert Run.objects.count() == 9
    assert Run.objects.get(number=3).place == {"table": 0, "row": 1, "column": 1}


@pytest.mark.database
def test_deleting_an_experiment_deletes_its_imports(bring: Bring) -> None:
    imported = bring(sections(), "sections.md")
    assert imported.experiment is not None
    imported.experiment.delete()
    assert not any(everything())


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_two_clicks_on_import_make_one_experiment(bring: Bring) -> None:
    start = threading.Barrier(2)
    results: list[Import] = []

    def click() -> None:
        try:
            start.wait(PATIENCE_S)
            results.append(bring(megatron(50)))
        finally:
            connection.close()

    threads = [threading.Thread(target=click) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(imported.is_new for imported in results) == [False, True]
    assert (Experiment.objects.count(), Run.objects.count()) == (1, 1)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("prose", "gpus", "derived"),
    [
        ("Runs on 1 node with 16 V100 GPUs.", 16, "line 3: Runs on 1 node with 16 V100 GPUs."),
        ("On some GPUs.", None, ""),
    ],
)
def test_an_unknown_number_of_gpus_stays_unknown(user: User, prose: str, gpus: int | None, derived: str) -> None:
    page = f"# Speeds\n\n{prose}\n\n| Micro batch | samples/s |\n|---|---|\n| 1 | 100 |\n| 2 | 180 |\n".encode()
    [made] = upload_import(experiment=None, name="speeds.md", stream=io.BytesIO(page), user=user)
    run = Run.objects.get(experiment=made.experiment, number=1)
    assert run.gpus == gpus
    assert run.launch["derived"].get("world_size", "") == derived
    assert run_points([run])[0].gpus == gpus
    assert run_records([run])[0].get("gpus") == gpus
    run.step_time_s = 0.5
    [candidate] = calibration_candidates([run])
    assert (candidate.reason == "its number of GPUs is unknown") == (gpus is None)
