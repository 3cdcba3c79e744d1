"""Exports of Neptune: Parquet files as its exporter writes them, with the files of runs beside them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars
import pytest
from django.contrib.auth.models import User

from parlab.ingest.files.received import Refused
from parlab.lab.models import Run
from parlab.series import store
from parlab.tracking.artifacts import object_read

from .directories import files_below, stores_import

pytestmark = pytest.mark.django_db
SCHEMA: dict[str, Any] = {
    "project_id": polars.String,
    "run_id": polars.String,
    "attribute_path": polars.String,
    "attribute_type": polars.String,
    "step": polars.Decimal(18, 6),
    "timestamp": polars.Datetime("ms", "UTC"),
    "int_value": polars.Int64,
    "float_value": polars.Float64,
    "string_value": polars.String,
    "bool_value": polars.Boolean,
    "datetime_value": polars.Datetime("ms", "UTC"),
    "string_set_value": polars.List(polars.String),
    "file_value": polars.Struct({"path": polars.String}),
}
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def row(path: str, kind: str, **values: Any) -> dict[str, Any]:
    names = {"project_id": "team/Warm-up length", "run_id": "WAR-7", "attribute_path": path, "attribute_type": kind}
    return {**dict.fromkeys(SCHEMA), **names, **values}


def loss(step: float, value: float, name: str = "train/loss") -> dict[str, Any]:
    at = AT.replace(second=int(step))
    return row(name, "float_series", step=Decimal(str(step)), timestamp=at, float_value=value)


def write(directory: Path, part: int, rows: list[dict[str, Any]], run: str = "WAR-7-0a1b") -> None:
    path = directory / "data" / "team_Warm-up_length-9c" / f"{run}_part_{part}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    polars.DataFrame(rows, schema=SCHEMA).write_parquet(path, compression="snappy")


@pytest.fixture
def export(tmp_path: Path, settings: Any) -> Path:
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"
    directory = tmp_path / "exports"
    facts = [
        row("sys/name", "string", string_value="warm-up 100"),
        row("sys/creation_time", "datetime", datetime_value=AT),
        row("sys/tags", "string_set", string_set_value=["b", "a"]),
        row("sys/failed", "bool", bool_value=False),
        row("parameters/lr", "float", float_value=0.1),
        row("parameters/per_device_train_batch_size", "int", int_value=4),
        row("parameters/optimizer", "string", string_value="adam"),
        row("notes.txt", "file", file_value={"path": "team_Warm-up_length-9c/WAR-7/notes.txt"}),
        row("outside", "file", file_value={"path": "../../../etc/passwd"}),
        row("stdout", "string_series", step=Decimal(0), timestamp=AT, string_value="a line"),
    ]
    write(directory, 0, [*facts, *(loss(step, 5.0 - step) for step in range(3))])
    write(directory, 1, [loss(3, math.nan), loss(4, 1.0), loss(0.5, 7.0, "val/acc"), loss(1, 8.0, "val/acc")])
    notes = directory / "files" / "team_Warm-up_length-9c" / "WAR-7" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("hello")
    return directory


def values(metric: str) -> list[float]:
    return [float(value) for value in store.read(Run.objects.get().current_attempt().pk, metric, rank=0).values]


def test_an_export_becomes_runs_with_settings_series_and_files(user: User, export: Path) -> None:
    [imported] = stores_import(files=files_below(export), user=user)
    assert (imported.experiment_name, imported.document.format) == ("Warm-up length", "neptune store")
    run = Run.objects.get()
    assert (run.label, run.state, run.resolved["train"]["micro_batch_size"]) == ("warm-up 100", "finished", 4)
    assert str(values("train/loss")) == "[5.0, 4.0, 3.0, nan, 1.0]"
    parameters = dict(run.tracked.parameters.values_list("key", "value"))
    assert (parameters["parameters/lr"], parameters["parameters/optimizer"]) == ("0.1", "adam")
    tags = dict(run.tracked.tags.values_list("key", "value"))
    assert (tags["neptune.run_id"], tags["neptune.tags"]) == ("WAR-7", "a, b")
    assert {artifact.path: object_read(artifact.sha256) for artifact in run.tracked.artifacts.all()} == {
        "notes.txt": b"hello"
    }
    notes = " ".join(line.reason for line in imported.document.unread.examples)
    assert "1 series of texts and histograms are left out" in notes


def test_steps_between_whole_numbers_are_counted_and_named(user: User, export: Path) -> None:
    [imported] = stores_import(files=files_below(export), user=user)
    points = store.read(Run.objects.get().current_attempt().pk, "val/acc", rank=0)
    assert (points.steps.tolist(), points.values.tolist()) == ([0, 1], [7.0, 8.0])
    assert "steps of 1 metrics lie between" in imported.document.unread.examples[0].reason


def test_an_export_that_was_imported_again_changes_nothing_until_it_grows(user: User, export: Path) -> None:
    stores_import(files=files_below(export), user=user)
    assert stores_import(files=files_below(export), user=user)[0].change == "none"
    write(export, 2, [loss(5, 0.5)])
    assert stores_import(files=files_below(export), user=user)[0].change == "continued"
    assert values("train/loss")[-1] == 0.5


def test_a_run_that_failed_has_failed(user: User, export: Path) -> None:
    write(export, 0, [row("sys/failed", "bool", bool_value=True), loss(0, 1.0)])
    stores_import(files=files_below(export), user=user)
    assert Run.objects.get().state == "failed"


def test_a_damaged_file_is_refused_with_the_remedy(user: User, export: Path) -> None:
    path = next(export.rglob("*_part_1.parquet"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(Refused, match="damaged Parquet file"):
        stores_import(files=files_below(export), user=user)


def test_other_parquet_files_are_no_export(user: User, tmp_path: Path) -> None:
    polars.DataFrame({"a": [1]}).write_parquet(tmp_path / "points_part_0.parquet")
    assert stores_import(files=files_below(tmp_path), user=user) == []
