"""Stores of other trackers, made by the real packages; `stores/` holds those of packages that tests do not install."""

from __future__ import annotations

import io
import lzma
import math
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import mlflow
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from parlab.ingest.files import imports
from parlab.ingest.files.imports import Import, upload_import
from parlab.ingest.files.reading import Progress
from parlab.ingest.files.received import Refused
from parlab.ingest.files.stored import Target
from parlab.lab.models import Artifact, Experiment, Run, TrackedRun
from parlab.series import store
from parlab.tracking.imports import StoreReading, stores_of
from parlab.tracking.stores import stores_in
from parlab.tracking.stores.foreign import flattened
from tests.ingest.pages import megatron
from tests.tracking.directories import files_below, stores_import

STORES = Path(__file__).parent / "stores"


@pytest.fixture(autouse=True)
def _artifacts_directory(settings: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings.ARTIFACTS_DIR = tmp_path_factory.mktemp("artifacts")


@pytest.fixture
def mlruns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Log into a file store with the real client: mlruns(steps=5, run_id=None) -> its directory."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    directory = tmp_path / "mlruns"

    def write(*, first: int = 0, steps: int = 5, run_id: str | None = None, status: str = "FINISHED") -> Path:
        previous = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri(directory.as_uri())
        try:
            mlflow.set_experiment("Warm-up length")
            run = mlflow.start_run(run_id=run_id, run_name="warm-up 100")
            mlflow.log_params({"per_device_train_batch_size": 4, "world_size": 8})
            for step in range(first, first + steps):
                mlflow.log_metrics({"train/loss": 5.0 - step, "tokens_per_sec": 1e3, "bad": math.nan}, step=step)
            mlflow.set_tag("team", "parallel")
            mlflow.log_text("hello\n", "notes/readme.txt")
            mlflow.end_run(status)
            TEST_RUNS.append(run.info.run_id)
        finally:
            mlflow.set_tracking_uri(previous)
        return directory

    return write


TEST_RUNS: list[str] = []


def unpacked(name: str, directory: Path) -> dict[str, Path]:
    with tarfile.open(STORES / name) as archive:
        archive.extractall(directory, filter="data")
    return files_below(directory)


def values(run: Run, metric: str) -> list[float]:
    columns = store.read(run.current_attempt().pk, metric, rank=0)
    assert columns.steps.tolist() == sorted(columns.steps.tolist())
    return [float(value) for value in columns.values]


def test_an_mlflow_file_store_becomes_runs_with_everything_that_was_logged(
    user: User, mlruns: Callable[..., Path]
) -> None:
    [imported] = stores_import(files=files_below(mlruns()), user=user)
    assert (imported.change, imported.experiment_name, imported.document.format) == (
        "new",
        "Warm-up length",
        "mlflow store",
    )
    run = Run.objects.get()
    assert (run.origin, run.state, run.label) == ("reported", "finished", "warm-up 100")
    assert (run.resolved["train"]["micro_batch_size"], run.gpus) == (4, 8)
    assert values(run, "train/loss") == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert [math.isnan(value) for value in values(run, "bad")] == [True] * 5
    assert run.summary["sources"]["loss"] == "train/loss"
    tracked = run.tracked
    assert tracked.uuid == TEST_RUNS[-1]
    assert dict(tracked.tags.values_list("key", "value"))["team"] == "parallel"
    assert [(file.path, file.size) for file in tracked.artifacts.all()] == [("notes/readme.txt", 6)]


@pytest.mark.slow
def test_a_file_store_that_was_imported_again_changes_nothing_until_it_grows(
    user: User, mlruns: Callable[..., Path]
) -> None:
    directory = mlruns(steps=3)
    stores_import(files=files_below(directory), user=user)
    [again] = stores_import(files=files_below(directory), user=user)
    assert (again.change, again.is_new) == ("none", False)
    mlruns(first=3, steps=2, run_id=TEST_RUNS[-1])
    [expected] = stores_import(files=files_below(directory), user=user, dry_run=True)
    [grown] = stores_import(files=files_below(directory), user=user)
    assert (expected.change, grown.change) == ("continued", "continued")
    assert (Run.objects.count(), Artifact.objects.count()) == (1, 1)
    assert values(Run.objects.get(), "train/loss") == [5.0, 4.0, 3.0, 2.0, 1.0]


def test_a_dry_run_stores_nothing(user: User, mlruns: Callable[..., Path]) -> None:
    [imported] = stores_import(files=files_below(mlruns()), user=user, dry_run=True)
    assert (imported.change, len(imported.runs), imported.runs[0].state) == ("new", 1, "finished")
    assert not Experiment.objects.exists()


def test_the_command_imports_a_directory_with_a_store_and_logs(
    admin: User, mlruns: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mlruns()
    (tmp_path / "night.log").write_bytes(megatron(3))
    call_command("ingest", str(tmp_path))
    printed = capsys.readouterr().out
    assert "night.log: megatron" in printed
    assert "mlruns: mlflow store; imported into warm-up-length" in printed
    assert sorted(Run.objects.values_list("origin", flat=True)) == ["imported", "reported"]


def test_the_upload_page_previews_and_imports_an_archive_of_a_store(page: Client, mlruns: Callable[..., Path]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(mlruns(), "mlruns")
    packed.seek(0)
    packed.name = "mlruns.tar.gz"
    address = page.post("/import/", {"files": [packed]})["Location"]
    assert "Will create the experiment <b>Warm-up length</b>" in page.get(address).content.decode()
    page.post(address)
    assert Run.objects.get().state == "finished"


@pytest.mark.slow
def test_an_upload_with_a_store_reports_its_progress_and_a_second_one_changes_nothing(
    user: User, mlruns: Callable[..., Path]
) -> None:
    mlruns(steps=2)
    directory = mlruns(steps=2)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(directory, "mlruns")
    changes, shares = [], list[float]()
    for _ in range(2):
        packed.seek(0)
        [imported] = upload_import(
            experiment=None, name="runs.tgz", stream=packed, user=user, progress=shares.append, stores_of=stores_of
        )
        changes.append(imported.change)
    assert (changes, shares, Run.objects.count()) == (["new", "none"], [0.5, 1.0] * 2, 2)


def test_a_store_that_cannot_be_kept_keeps_the_others_out_too(user: User, mlruns: Callable[..., Path]) -> None:
    files = files_below(mlruns())
    [whole] = stores_of(files)

    class Damaged(StoreReading):
        def keep(self, target: Target, progress: Progress | None) -> list[Import]:
            raise Refused("mlruns is damaged")

    with pytest.raises(Refused, match="mlruns is damaged"):
        imports.stores_import(stores=[whole, Damaged(stores_in(files)[0])], target=Target(None, user))
    assert not Run.everything.exists()


def test_a_damaged_description_refuses_the_store(user: User, mlruns: Callable[..., Path]) -> None:
    files = files_below(mlruns())
    meta = next(path for name, path in files.items() if name.endswith(f"{TEST_RUNS[-1]}/meta.yaml"))
    meta.write_text("a: [", encoding="utf-8")
    with pytest.raises(Refused, match=r"meta.yaml is damaged; restore it"):
        stores_import(files=files, user=user)
    assert not Run.objects.exists()


def test_a_line_that_mlflow_has_not_finished_is_left_for_the_next_import(
    user: User, mlruns: Callable[..., Path]
) -> None:
    files = files_below(mlruns())
    with next(path for name, path in files.items() if name.endswith("train/loss")).open("a") as file:
        file.write("1795320176736 9.0")
    stores_import(files=files, user=user)
    assert len(values(Run.objects.get(), "train/loss")) == 5


def test_an_mlflow_database_becomes_runs(user: User, tmp_path: Path) -> None:
    [imported] = stores_import(files=unpacked("mlflow-3.17.2.tar.xz", tmp_path), user=user)
    assert (imported.name, imported.experiment_name, imported.change) == ("mlflow.db", "Warm-up length", "new")
    run = Run.objects.get()
    assert (run.label, run.state, run.gpus) == ("sqlite 100", "finished", 8)
    assert values(run, "train/loss") == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert values(run, "inf") == [math.inf] * 5
    assert all(math.isnan(value) for value in values(run, "nan"))


def test_a_trackio_database_becomes_runs(user: User, tmp_path: Path) -> None:
    [imported] = stores_import(files=unpacked("trackio-0.43.0.tar.xz", tmp_path), user=user)
    assert (imported.experiment_name, imported.document.format) == ("warm-up", "trackio store")
    run = Run.objects.get()
    assert (run.label, run.state, run.resolved["train"]["micro_batch_size"]) == ("first", "finished", 4)
    assert values(run, "train/loss")[:2] == [5.0, 4.9]
    assert all(math.isnan(value) for value in values(run, "x"))


def test_wandb_offline_directories_become_runs(user: User, tmp_path: Path) -> None:
    files = unpacked("wandb-0.31.0.tar.xz", tmp_path)
    [imported] = stores_import(files=files, user=user)
    assert (imported.experiment_name, [run.label for run in imported.runs]) == ("warm-up", ["first", "bad"])
    run, failed = Run.objects.order_by("number")
    assert (run.state, failed.state) == ("finished", "failed")
    assert len(values(run, "train/loss")) == 600
    assert values(run, "nested.a") == [float(step) for step in range(600)]
    assert values(run, "inf")[:2] == [math.inf, math.inf]
    parameters = dict(run.tracked.parameters.values_list("key", "value"))
    assert (parameters["optimizer.lr"], parameters["optimizer.name"], parameters["late"]) == ("0.1", "adam", "true")
    assert dict(run.tracked.tags.values_list("key", "value"))["wandb.tags"] == "a, b"
    assert run.summary["tokens_per_s"] == pytest.approx(1_300, abs=20)
    assert stores_import(files=files, user=user)[0].change == "none"


def test_a_half_written_wandb_file_keeps_what_is_whole_and_continues(user: User, tmp_path: Path) -> None:
    files = unpacked("wandb-0.31.0.tar.xz", tmp_path)
    name, path = next((name, path) for name, path in files.items() if "first001" in name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    [half] = stores_import(files={name: path}, user=user)
    assert "bytes are incomplete or damaged" in half.document.unread.examples[0].reason
    run = Run.objects.get()
    stored = len(values(run, "train/loss"))
    assert run.state == "running"
    assert 100 < stored < 600
    path.write_bytes(whole)
    assert stores_import(files={name: path}, user=user)[0].change == "continued"
    run.refresh_from_db()
    assert (run.state, len(values(run, "train/loss"))) == ("finished", 600)


@pytest.mark.slow
@pytest.mark.parametrize("position", [3, 9, 5_000, 40_000])
def test_a_flipped_byte_in_a_wandb_file_never_raises(user: User, tmp_path: Path, position: int) -> None:
    files = unpacked("wandb-0.31.0.tar.xz", tmp_path)
    name, path = next((name, path) for name, path in files.items() if "first001" in name)
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 0xFF
    path.write_bytes(bytes(damaged))
    stores_import(files={name: path}, user=user)


def test_single_files_of_stores_can_be_uploaded(user: User, tmp_path: Path) -> None:
    files = unpacked("wandb-0.31.0.tar.xz", tmp_path)
    path = next(path for name, path in files.items() if "second02" in name)
    with path.open("rb") as stream:
        [imported] = upload_import(experiment=None, name=path.name, stream=stream, user=user, stores_of=stores_of)
    assert imported.change == "new"
    assert TrackedRun.objects.get().tags.get(key="wandb.exit_code").value == "3"


@pytest.mark.parametrize(
    "content", [b"SQLite format 3\x00" + bytes(100), b"SQLite format 3\x00" + b"\xff" * 5_000], ids=["empty", "noise"]
)
def test_a_damaged_database_is_refused(user: User, content: bytes) -> None:
    with pytest.raises(Refused, match=r"damaged SQLite database|not text"):
        upload_import(experiment=None, name="mlflow.db", stream=io.BytesIO(content), user=user, stores_of=stores_of)


def test_a_database_of_which_only_the_points_are_damaged_is_refused(user: User, tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    run = "0123456789abcdef0123456789abcdef"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            f"""
            PRAGMA page_size = 4096;
            CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name TEXT);
            CREATE TABLE runs (run_uuid TEXT, name TEXT, user_id TEXT, status TEXT, start_time INTEGER,
                end_time INTEGER, lifecycle_stage TEXT, experiment_id INTEGER);
            CREATE TABLE params (run_uuid TEXT, key TEXT, value TEXT);
            CREATE TABLE tags (run_uuid TEXT, key TEXT, value TEXT);
            CREATE TABLE metrics (run_uuid TEXT, key TEXT, value REAL, timestamp INTEGER, step INTEGER, is_nan INTEGER);
            INSERT INTO experiments VALUES (1, 'damaged');
            INSERT INTO runs VALUES ('{run}', 'a', 'ada', 'FINISHED', 1, 2, 'active', 1);
            """
        )
        rows = [(run, "loss", 2.5, step, step, 0) for step in range(500)]
        database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.commit()
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'metrics'").fetchone()
    content = bytearray(path.read_bytes())
    content[4096 * (root - 1) : 4096 * (root - 1) + 512] = b"\xff" * 512
    with pytest.raises(Refused, match="points of a damaged SQLite database"):
        upload_import(experiment=None, name="mlflow.db", stream=io.BytesIO(content), user=user, stores_of=stores_of)


def test_views_of_a_database_are_not_read(user: User, tmp_path: Path) -> None:
    path = tmp_path / "evil.db"
    with sqlite3.connect(path) as database:
        for table in ("experiments", "runs", "params", "tags"):
            database.execute(f"CREATE TABLE {table} (run_uuid, key, value)")
        database.execute(
            "CREATE VIEW metrics AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c"
        )
    assert stores_in({"evil.db": path}) == []


def test_paths_inside_of_a_store_are_never_followed(user: User, mlruns: Callable[..., Path], tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret", encoding="utf-8")
    files = files_below(mlruns())
    meta = next(path for name, path in files.items() if name.endswith(f"{TEST_RUNS[-1]}/meta.yaml"))
    text = meta.read_text(encoding="utf-8")
    meta.write_text(
        "\n".join(
            f"artifact_uri: file://{tmp_path}" if line.startswith("artifact_uri") else line
            for line in text.splitlines()
        ),
        encoding="utf-8",
    )
    stores_import(files=files, user=user)
    assert list(Artifact.objects.values_list("path", flat=True)) == ["notes/readme.txt"]


def test_settings_are_flattened_with_limits() -> None:
    assert flattened({"a": {"b": {"c": 1}}, "d": [1, 2], "e": "x"}) == {"a.b.c": "1", "d": "[1,2]", "e": "x"}
    deep: dict[str, Any] = {}
    for _ in range(1_000):
        deep = {"k": deep}
    assert len(flattened(deep)) == 1


def test_the_stores_of_tests_are_small() -> None:
    assert (
        sum(len(lzma.decompress(path.read_bytes())) > 0 and path.stat().st_size for path in STORES.iterdir()) < 100_000
    )
