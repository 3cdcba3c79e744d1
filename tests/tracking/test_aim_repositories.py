"""Repositories of Aim: `stores/aim-3.29.1.tar.xz` holds a run that was closed and one that was killed with SIGKILL."""

from __future__ import annotations

import math
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from parlab.formats.exports.crc32c import crc32c
from parlab.ingest.files.received import Refused
from parlab.lab.models import Run
from parlab.tracking.stores import rocksdb, stores_in
from parlab.tracking.stores.snappy import BadSnappy, uncompressed
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
    with pytest.raises(Refused, match=r"000009.sst is damaged \(checksum of the block .*copy the whole directory"):
        stores_import(files=files, user=user)
    del files[name]
    with pytest.raises(Refused, match=r"000009.sst is missing; copy the whole directory"):
        stores_import(files=files, user=user)
    assert not Run.objects.exists()


@pytest.mark.parametrize("suffix", [".sst", ".log", "MANIFEST-000004", "CURRENT"])
def test_no_damage_of_a_database_raises_anything_but_a_refusal(tmp_path: Path, suffix: str) -> None:
    files = unpacked(ARCHIVE, tmp_path)
    directory = next(
        path.parent for name, path in files.items() if name.endswith(suffix) and "/seqs/chunks" in name and _size(path)
    )
    path = next(path for path in directory.iterdir() if path.name.endswith(suffix) and _size(path))
    whole = path.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 12)):
        for content in (whole[:position], whole[:position] + b"\xff" + whole[position + 1 :]):
            path.write_bytes(content)
            try:
                entries = list(rocksdb.entries({item.name: item for item in directory.iterdir()}))
            except Refused:
                continue
            assert len(entries) < 1_000


def _size(path: Path) -> int:
    return path.stat().st_size


def test_newer_versions_deletions_and_range_deletions_win(tmp_path: Path) -> None:
    """Logs in the order in which RocksDB would write them; a range leaves its end and what is newer."""
    put = [b"\x01" + _sized(b"key%d" % n) + _sized(b"old") for n in range(6)]
    changes = [b"\x01" + _sized(b"key0") + _sized(b"new"), b"\x00" + _sized(b"key1")]
    changes += [b"\x0f" + _sized(b"key2") + _sized(b"key4"), b"\x01" + _sized(b"key3") + _sized(b"again")]
    for number, batch in ((4, put), (5, changes)):
        sequence = 1 if number == 4 else 10
        record = struct.pack("<QI", sequence, len(batch)) + b"".join(batch)
        content = b"\x01" + record
        (tmp_path / f"{number:06}.log").write_bytes(struct.pack("<IHB", crc32c(content), len(record), 1) + record)
    shutil.copy(next(path for path in _manifests(tmp_path)), tmp_path / "MANIFEST-000004")
    (tmp_path / "CURRENT").write_text("MANIFEST-000004\n")
    entries = dict(rocksdb.entries({path.name: path for path in tmp_path.iterdir()}))
    assert entries == {b"key0": b"new", b"key3": b"again", b"key4": b"old", b"key5": b"old"}


def _sized(content: bytes) -> bytes:
    return bytes([len(content)]) + content


def _manifests(tmp_path: Path) -> list[Path]:
    """Return a manifest without tables, that of a run that was killed."""
    files = unpacked(ARCHIVE, tmp_path / "aim")
    return sorted((path for path in files.values() if path.name.startswith("MANIFEST")), key=_size)


def test_snappy_copies_overlap_and_stay_inside() -> None:
    assert uncompressed(b"\x0a" + b"\x04ab" + b"\x11\x02", 100) == b"ababababab"
    with pytest.raises(BadSnappy, match="outside"):
        uncompressed(b"\x08\x00a\x0d\x05", 100)
    with pytest.raises(BadSnappy, match="uncompressed bytes"):
        uncompressed(b"\xff\xff\xff\x7f\x00a", 1_000)
    assert crc32c(b"123456789") == (((0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF
