from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from parlab.lab.models import Experiment, Picture, Run, Source

from .pages import PNG, SCHEDULES, megatron, sections

Ingest = Callable[..., str]


@pytest.fixture
def ingest(user: User) -> Ingest:
    User.objects.create_superuser("root")

    def ingest(*arguments: str | Path, **options: object) -> str:
        out, err = StringIO(), StringIO()
        try:
            call_command("ingest", *map(str, arguments), stdout=out, stderr=err, **options)
        except CommandError as error:
            error.args = (f"{error}\n{err.getvalue()}",)
            raise
        return out.getvalue()

    return ingest


def write(directory: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


def tuner(directory: Path) -> Path:
    """A results directory with two experiments; the second one failed."""
    files: dict[str, bytes] = {"autotuning_results/summary.txt": b""}
    for name, micro in (("z1_gas1_tmbspg2", 2), ("z1_gas1_tmbspg4", 4)):
        plan = {"name": name, "num_gpus": 2, "num_nodes": 1, "ds_config": {"train_micro_batch_size_per_gpu": micro}}
        files[f"autotuning_results/{name}/exp.json"] = json.dumps(plan).encode()
        files[f"autotuning_results/{name}/stdout.log"] = b"noise\n"
    files["autotuning_results/z1_gas1_tmbspg2/metrics.json"] = json.dumps(
        {"latency": 40.0, "throughput": 100.0, "FLOPS_per_gpu": 1e12}
    ).encode()
    files["autotuning_results/z1_gas1_tmbspg4/stderr.log"] = b"RuntimeError: CUDA out of memory\n"
    files["autotuning_results/summary.txt"] = (
        b"| tuning_space | num_experiments | best_metric_val | best_exp_name |\n"
        b"|:---|---:|---:|:---|\n| z1 | 2 | 100.0 | z1_gas1_tmbspg2 |\n"
    )
    return write(directory, files)


def test_the_report_lists_what_was_created(ingest: Ingest, tmp_path: Path) -> None:
    write(tmp_path, {"sections.md": sections()})
    report = ingest(tmp_path / "sections.md")
    assert "sections.md: markdown, 46 lines; imported into two-machines\n" in report
    assert "  2 runs, 0 tables, " in report
    assert "    #1 GPUs 2: 0.4 s a step, 20 samples/s, 1.46 GiB\n" in report
    assert "  error: line " in report
    assert "80 samples are stated" in report


def test_a_directory_is_searched_and_pictures_are_imported_with_their_page(ingest: Ingest, tmp_path: Path) -> None:
    write(tmp_path, {"a/run.log": megatron(3), "page.md": SCHEDULES.encode(), "figures/cluster.png": PNG})
    ingest(
        tmp_path,
        "--experiment",
        Experiment.objects.create(name="Mine", slug="mine", owner=User.objects.get(username="root")).slug,
    )
    assert Experiment.objects.count() == 1
    assert Run.objects.count() == 10
    assert Picture.objects.get().reference == "figures/cluster.png"


def test_a_picture_outside_the_directory_of_the_page_is_not_imported(ingest: Ingest, tmp_path: Path) -> None:
    page = SCHEDULES.replace("figures/cluster.png", "../secret.png")
    write(tmp_path, {"pages/page.md": page.encode(), "secret.png": PNG})
    ingest(tmp_path / "pages")
    assert not Picture.objects.exists()


def test_a_results_directory_of_the_autotuner_is_one_import(ingest: Ingest, tmp_path: Path) -> None:
    directory = tuner(tmp_path / "night")
    report = ingest(tmp_path)
    assert Source.objects.count() == 1
    assert Experiment.objects.get().name == "night"
    good, failed = Run.objects.order_by("number")
    assert good.samples_per_s == pytest.approx(100.0)
    assert good.resolved["train"]["micro_batch_size"] == 2
    assert failed.state == "oom"
    assert "out of memory" in failed.reason
    assert "2 runs, 1 tables" in report
    assert "already imported into" in ingest(directory)
    call_command("reingest", "night", stdout=StringIO())
    assert Run.objects.get(number=1).samples_per_s == pytest.approx(100.0)


def test_a_dry_run_stores_nothing(ingest: Ingest, tmp_path: Path) -> None:
    write(tmp_path, {"run.log": megatron(3)})
    assert "would be imported into a new experiment, run" in ingest(tmp_path, "--dry-run")
    assert not Source.objects.exists()


def test_a_second_import_reports_that_the_file_is_already_imported(ingest: Ingest, tmp_path: Path) -> None:
    write(tmp_path, {"run.log": megatron(3)})
    ingest(tmp_path)
    assert "already imported into run\n" in ingest(tmp_path)


def test_refused_files_are_named_and_the_others_are_imported(ingest: Ingest, tmp_path: Path) -> None:
    write(tmp_path, {"a.log": b"", "b.log": megatron(3), "c\x1b[2J.log": b"\x00\x01" * 500})
    with pytest.raises(CommandError) as error:
        ingest(tmp_path)
    assert error.value.returncode == 1
    assert "2 of 3 files refused" in str(error.value)
    assert "a.log is empty" in str(error.value)
    assert "\x1b" not in str(error.value)
    assert Run.objects.count() == 1


def test_a_missing_file_is_named(ingest: Ingest, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        ingest(tmp_path / "nothing.log")


def test_an_unknown_experiment_or_user_is_named(ingest: Ingest, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no experiment nowhere"):
        ingest(tmp_path, "--experiment", "nowhere")
    with pytest.raises(CommandError, match="user eve does not exist"):
        ingest(tmp_path, "--user", "eve")


def test_reingest_rebuilds_imported_runs_too(ingest: Ingest, tmp_path: Path) -> None:
    write(tmp_path, {"run.log": megatron(3)})
    ingest(tmp_path)
    Run.objects.update(summary={}, step_time_s=None)
    out = StringIO()
    call_command("reingest", "run/1", stdout=out)
    assert out.getvalue() == "run: run.log: 1 runs\n"
    assert Run.objects.get().step_time_s == pytest.approx(0.5)
