"""The seed documents: all tables and figures become rows, known contradictions become findings."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from parlab.ingest.files.imports import Import, Refused, source_reingest, upload_import
from parlab.lab.models import Finding, Run, Snapshot, Source

SHARED = Path(__file__).resolve().parents[3] / "shared"
SEEDS = SHARED / "seeds"
CORPUS = SHARED / "corpus"

Seed = Callable[[str], Import]
needs_seeds = pytest.mark.skipif(not SEEDS.is_dir(), reason="the seed documents are not next to the project")


@pytest.fixture
def seed(user: User) -> Seed:
    """Import one of the documents by its number; the format is recognised from its content."""

    def bring(number: str) -> Import:
        path = next(SEEDS.glob(f"{number}_*"))
        [imported] = upload_import(experiment=None, name=path.name, stream=io.BytesIO(path.read_bytes()), user=user)
        return imported

    return bring


def findings() -> list[tuple[str, int | None]]:
    return sorted(
        ((finding.rule, finding.run.number if finding.run else None) for finding in Finding.objects.all()), key=str
    )


def assert_complete(imported: Import) -> None:
    """Check that every table and figure in the document is stored as printed."""
    assert imported.source is not None
    stored = Source.objects.get(pk=imported.source.pk).document
    read: dict[str, Any] = imported.document.model_dump(mode="json")
    for part in ("tables", "figures", "images", "configs", "segments", "unread"):
        assert stored[part] == read[part]
    assert imported.experiment is not None
    assert imported.experiment.snapshots.filter(kind=Snapshot.Kind.IMAGE).count() == len(imported.document.images)


@needs_seeds
def test_a_configuration_of_stages_and_shards_with_two_pictures(seed: Seed) -> None:
    imported = seed("000")
    assert_complete(imported)
    run = Run.objects.get()
    assert run.resolved["parallel"] == {"pipeline_parallel_size": 8}
    assert run.resolved["train"]["global_batch_size"] == 2
    assert run.resolved["model"]["sequence_length"] == 384
    assert run.launch["world_size"] == 8
    assert run.launch["arguments"]["sharding_size"] == 4
    # No source defines this rate, so it is not a rate in samples/s.
    assert run.summary["figures"]["avg_step_fps"]["value"] == 2.59
    assert run.samples_per_s is None
    assert [snapshot.content["source"] for snapshot in Snapshot.objects.filter(kind="image").order_by("pk")] == [
        "figures/8x4bs2_config_gpu.JPG",
        "figures/8x4bs2_gpu.JPG",
    ]
    assert findings() == []


@needs_seeds
def test_two_schedules_on_four_networks_with_three_micro_batches(seed: Seed) -> None:
    imported = seed("001")
    assert_complete(imported)
    assert Run.objects.count() == 25
    cells = Run.objects.filter(state="finished")
    assert cells.count() == 24
    slow = {
        (run.point["parallel.schedule"], run.point["train.micro_batch_size"]): run.step_time_s
        for run in cells
        if "10ms" in run.point["network setting"]
    }
    assert slow == {
        ("gpipe", 1): 8.38,
        ("gpipe", 2): 8.61,
        ("gpipe", 4): 9.08,
        ("1f1b", 1): 11.21,
        ("1f1b", 2): 11.03,
        ("1f1b", 4): 11.35,
    }
    run = cells.get(number=1)
    assert run.resolved["model"] | {"vocab_size": 0} == {
        "num_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "sequence_length": 2048,
        "vocab_size": 0,
    }
    assert run.resolved["train"] == {"global_batch_size": 64, "micro_batch_size": 1, "iterations": 10}
    assert run.samples_per_s == pytest.approx(64 / 6.64)
    oom = Run.objects.get(state="oom")
    assert oom.reason.startswith("Fail due to running out of DRAM")
    assert oom.resolved["parallel"] == {"data_parallel_size": 3, "zero_stage": 3}
    assert findings() == []


@needs_seeds
def test_six_sizes_of_one_training_with_a_wrong_count_and_a_slow_page(seed: Seed) -> None:
    imported = seed("002")
    assert_complete(imported)
    runs = list(Run.objects.order_by("number"))
    assert [run.point["GPUs"] for run in runs] == [1, 8, 16, 32, 64, 128]
    assert [run.summary["ms_per_sample"] for run in runs] == [22.39, 7.25, 44.9, 2.95, 1.44, 0.87]
    assert [run.summary["gpu_util_pct"] for run in runs] == [85, 83, 66, 82, 88, 79]
    assert runs[1].summary["memory_peak_bytes"] == {"min": 5624 * 2**20, "max": 6176 * 2**20}
    assert runs[5].summary["timers_s"]["optimizer"]["median"] == pytest.approx(0.12196)
    assert runs[0].launch["arguments"]["clip_grad"] == 1.0
    assert findings() == [("off-neighbours", 3), ("samples-of-iterations", 4)]
    assert Finding.objects.get(rule="samples-of-iterations").line == 629


@needs_seeds
def test_a_scaling_table_whose_aggregate_is_in_another_unit(seed: Seed) -> None:
    imported = seed("003")
    assert_complete(imported)
    runs = list(Run.objects.order_by("number"))
    assert [run.point["model size"] for run in runs][:3] == ["1.7B", "3.6B", "7.5B"]
    assert len(runs) == 10
    assert [run.summary["tflops_per_gpu"] for run in runs] == [137, 138, 142, 135, 138, 140, 148, 155, 163, 163]
    assert runs[9].resolved["parallel"] == {
        "data_parallel_size": 6,
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 64,
    }
    assert runs[9].launch["world_size"] == 3072
    assert runs[9].summary["figures"]["TFlops Aggreg"]["value"] == 502.0
    assert findings() == [("aggregate", None)]
    assert imported.experiment is not None
    assert "minimum number of nodes to fit 175B" in imported.experiment.notes


@needs_seeds
def test_three_configurations_compared_and_four_tuning_spaces(seed: Seed) -> None:
    imported = seed("004")
    assert_complete(imported)
    runs = list(Run.objects.order_by("number"))
    assert [run.samples_per_s for run in runs[:3]] == [2502.236, 2523.684, 2682.849]
    # A tuning space is no run: what the tuner maximises leaves out part of the step.
    assert len(runs) == 3
    assert {run.gpus for run in runs} == {16}
    assert runs[2].resolved["train"]["micro_batch_size"] == 220
    assert runs[2].resolved["parallel"]["zero_stage"] == 0
    assert [rule for rule, _ in findings()] in ([], ["tuner-metric"])


@needs_seeds
@pytest.mark.parametrize("number", ["000", "001", "002", "003", "004"])
def test_each_document_is_imported_once_and_rebuilt_alike(seed: Seed, number: str) -> None:
    first = seed(number)
    before = list(Run.objects.order_by("pk").values("pk", "number", "label", "point", "resolved", "summary", "reason"))
    findings_before = list(Finding.objects.order_by("pk").values())
    assert not seed(number).is_new
    source_reingest(source=Source.objects.get(pk=first.source.pk))  # type: ignore[union-attr]
    assert before == list(
        Run.objects.order_by("pk").values("pk", "number", "label", "point", "resolved", "summary", "reason")
    )
    assert findings_before == list(Finding.objects.order_by("pk").values())


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not next to the project")
def test_imported_files_of_the_corpus_have_only_the_findings_of_their_documents(user: User) -> None:
    """Runs and sweeps of healthy logs have no further findings."""
    imported = 0
    for path in sorted(CORPUS.rglob("*")):
        if not path.is_file() or "expected" in path.parts or path.suffix == ".tsv":
            continue
        try:
            with path.open("rb") as stream:
                [result] = upload_import(experiment=None, name=path.name, stream=stream, user=user)
        except Refused as problem:
            pytest.fail(f"{path.name}: {problem}")
        imported += 1
        rules = sorted(finding.rule for finding in result.findings)
        assert sorted(result.experiment.findings.values_list("rule", flat=True)) == rules, path.name  # type: ignore[union-attr]
    assert imported > 40
