"""Repositories of Aim: `stores/aim-3.29.1.tar.xz` holds a run that was closed and one that was killed with SIGKILL."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from parlab.ingest.files.received import Refused
from parlab.lab.models import Run
from parlab.tracking.stores import stores_in
from parlab.tracking.stores.confined import read_confined
from tests.tracking.directories import files_below, stores_import
from tests.tracking.test_stores import unpacked, values

ARCHIVE = "aim-3.29.1.tar.xz"


@pytest.fixture(autouse=True)
def _artifacts_directory(settings: Any, tmp_path: Path) -> None:
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return unpacked(ARCHIVE, tmp_path / "repository")


def texts(run: Run, kind: str) -> dict[str, str]:
    return dict(getattr(run.tracked, kind).values_list("key", "value"))


def test_an_aim_repository_becomes_runs_with_everything_that_was_tracked(user: User, files: dict[str, Path]) -> None:
    [imported] = stores_import(files=files, user=user)
    assert (imported.experiment_name, imported.document.format) == ("Warm-up length", "aim store")
    assert "left out what is no number: text" in imported.document.unread.examples[0].reason
    closed, killed = Run.objects.order_by("number")
    assert (closed.state, closed.label, closed.gpus) == ("finished", "aim 100", 8)
    assert (killed.state, killed.label) == ("running", "aim 100")  # lost once it is silent for long enough
    for run in (closed, killed):
        assert values(run, "train/loss") == pytest.approx([5.0 - step / 100 for step in range(20)])
        assert values(run, "tokens_per_sec") == [1000.0 + step for step in range(20)]
        assert values(run, "val/acc{rank=1}") == pytest.approx([step / 50 for step in range(20)])
        nan, infinity = values(run, "bad")
        assert math.isnan(nan)
        assert infinity == math.inf
        assert run.resolved["train"]["micro_batch_size"] == 4
    assert closed.summary["sources"]["loss"] == "train/loss"
    assert texts(closed, "parameters") == {
        "per_device_train_batch_size": "4",
        "world_size": "8",
        "optimizer.lr": "0.1",
        "optimizer.name": "adam",
        "betas": "[0.9,0.95]",
        "flag": "true",
    }
    assert texts(closed, "tags")["aim.tags"] == "parallel"
    assert texts(closed, "tags")["aim.description"] == "first try"


def test_the_environment_of_an_aim_run_stays_out(user: User, files: dict[str, Path]) -> None:
    """Aim stores every environment variable, and those of trainings hold keys of other services."""
    stores_import(files=files, user=user)
    killed = Run.objects.order_by("number")[1]
    assert texts(killed, "tags")["aim.command"] == "train.py 0 1"
    assert "hidden" not in str(texts(killed, "parameters")) + str(texts(killed, "tags"))


def test_a_second_import_of_a_repository_changes_nothing(user: User, files: dict[str, Path]) -> None:
    stores_import(files=files, user=user)
    assert [item.change for item in stores_import(files=files, user=user)] == ["none"]
    assert Run.objects.count() == 2


def test_a_repository_that_has_grown_continues_its_run(user: User, tmp_path: Path) -> None:
    files = unpacked(ARCHIVE, tmp_path)
    log = next(path for path in files.values() if path.name == "000005.log" and path.parts[-4] == "seqs")
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2])  # as another look at it would have shown a while ago
    stores_import(files=files, user=user)
    run = Run.objects.order_by("number")[1]
    earlier = values(run, "train/loss")
    assert 0 < len(earlier) < 20
    log.write_bytes(whole)
    [grown] = stores_import(files=files, user=user)
    assert (grown.change, Run.objects.count()) == ("continued", 2)
    assert values(run, "train/loss")[: len(earlier)] == earlier
    assert len(values(run, "train/loss")) == 20


def test_the_directory_of_aim_alone_and_one_without_its_database_are_enough(user: User, tmp_path: Path) -> None:
    unpacked(ARCHIVE, tmp_path)
    (tmp_path / ".aim" / "run_metadata.sqlite").unlink()
    [store] = stores_in(files_below(tmp_path / ".aim"))
    assert {run.experiment for run in store.runs} == {"Aim"}
    assert all(len(list(run.points())) == 62 for run in store.runs)


def test_a_repository_with_a_missing_or_damaged_table_is_refused(user: User, files: dict[str, Path]) -> None:
    name = next(name for name in files if name.endswith(".sst") and "/meta/" in name)
    damaged = bytearray(files[name].read_bytes())
    damaged[100] ^= 0xFF
    files[name].write_bytes(damaged)
    with pytest.raises(Refused, match=r"is damaged \(.*checksum mismatch.* in 000009.sst .*copy the whole directory"):
        stores_import(files=files, user=user)
    del files[name]
    with pytest.raises(Refused, match=r"is damaged \(Corruption.* 000009\.ldb: No such file.*; copy the whole"):
        stores_import(files=files, user=user)
    assert not Run.objects.exists()


@pytest.mark.parametrize("suffix", [".sst", ".log", "MANIFEST-000004", "CURRENT"])
def test_no_damage_of_a_database_raises_anything_but_a_refusal(files: dict[str, Path], suffix: str) -> None:
    """The library is not ours: the child that it runs in may die."""
    name = next(name for name in files if name.endswith(suffix) and "/seqs/chunks" in name and _size(files[name]))
    whole = files[name].read_bytes()
    middle = len(whole) // 2
    for content in (whole[:middle], whole[:middle] + b"\xff" * 8 + whole[middle + 8 :]):
        files[name].write_bytes(content)
        try:
            points = [len(list(run.points())) for store in read_confined(files) for run in store.runs]
        except Refused:
            continue
        assert max(points) <= 62


def _size(path: Path) -> int:
    return path.stat().st_size


def test_without_the_library_of_aim_the_remedy_is_named(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aimrocks", None)
    with pytest.raises(Refused, match=r"not installed here; install parlab\[aim\]"):
        stores_in(files)
