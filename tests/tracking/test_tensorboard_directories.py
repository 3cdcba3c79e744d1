"""Directories of event files that real writers have written: one run each, continued, or a new version."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from torch.utils.tensorboard import SummaryWriter

from parlab.formats.exports.protobuf import fields_of
from parlab.lab.models import Experiment, Run
from parlab.series import store
from parlab.tracking.stores.wandb_files import _sampled
from tests.tracking.directories import files_below, stores_import

pytestmark = pytest.mark.django_db


def write(directory: Path, tags: tuple[str, ...], steps: range, *, scale: float = 1.0) -> None:
    writer = SummaryWriter(str(directory), filename_suffix=f".{len(list(directory.glob('*')))}")
    for step in steps:
        for tag in tags:
            writer.add_scalar(tag, scale / (1 + step), step, walltime=1_700_000_000 + step)
    writer.close()


def imported(root: Path, user: User, experiment: Experiment | None = None) -> list[str]:
    return [item.change for item in stores_import(files=files_below(root), experiment=experiment, user=user)]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write(tmp_path / "lr=0.1" / "seed1", ("train/loss", "tokens_per_sec"), range(5))
    write(tmp_path / "lr=0.1" / "seed1", ("eval/loss",), range(5))
    write(tmp_path / "lr=0.2", ("train/loss",), range(3))
    writer = SummaryWriter(str(tmp_path / "lr=0.2"))
    writer.add_text("args", '{"per_device_train_batch_size": 4, "optimizer": {"lr": 0.2}}')
    writer.add_scalar("loss/nan", float("nan"), 1)
    writer.close()
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", (), range(0))
    return tmp_path


def test_each_directory_is_one_run_with_the_metrics_of_its_files(logs: Path, user: User) -> None:
    assert imported(logs, user) == ["new"]

    first, second = Run.objects.filter(experiment__name="TensorBoard").order_by("label")
    assert (first.label, second.label) == ("lr=0.1/seed1", "lr=0.2")
    attempt = first.current_attempt()
    assert {info.metric: info.points for info in store.metrics(attempt.pk)} == {
        "train/loss": 5, "tokens_per_sec": 5, "eval/loss": 5
    }  # fmt: skip
    points = store.read(attempt.pk, "train/loss", rank=0)
    assert points.steps.tolist() == [0, 1, 2, 3, 4]
    assert points.values.tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert points.times[1] == 1_700_000_001
    assert second.resolved["train"]["micro_batch_size"] == 4
    assert dict(second.tracked.parameters.values_list("key", "value"))["optimizer.lr"] == "0.2"
    assert "loss/nan" in {info.metric for info in store.metrics(second.current_attempt().pk)}


def test_hyperparameters_are_parameters_of_their_run_and_no_run(tmp_path: Path, user: User) -> None:
    write(tmp_path / "tb", ("train/loss",), range(3))
    writer = SummaryWriter(str(tmp_path / "tb"))
    writer.add_hparams({"lr": 0.1, "layers": 4, "kind": "bert", "tied": True}, {"best": 0.5}, run_name="trial")
    writer.close()
    assert imported(tmp_path, user) == ["new"]
    run = Run.objects.get()
    stated = {"lr": "0.1", "layers": "4", "kind": "bert", "tied": "1"}
    assert dict(run.tracked.parameters.values_list("key", "value")) == stated
    assert {info.metric for info in store.metrics(run.current_attempt().pk)} == {"train/loss", "best"}


def test_a_directory_that_grows_continues_and_one_that_changed_is_a_new_version(logs: Path, user: User) -> None:
    imported(logs, user)
    assert imported(logs, user) == ["none"]

    time.sleep(0.01)
    write(logs / "lr=0.2", ("train/loss",), range(3, 6))
    assert imported(logs, user) == ["continued"]
    run = Run.objects.get(label="lr=0.2")
    assert store.read(run.current_attempt().pk, "train/loss", rank=0).steps.tolist() == list(range(6))

    # The same first bytes and other values: the writer's first record, then a run with other losses.
    files = sorted((logs / "lr=0.1" / "seed1").iterdir())
    head = files[0].read_bytes()
    for file in files:
        file.unlink()
    write(logs / "lr=0.1" / "seed1", ("train/loss", "tokens_per_sec", "eval/loss"), range(5), scale=7.0)
    (changed,) = (logs / "lr=0.1" / "seed1").iterdir()
    first_record = 8 + 4 + int.from_bytes(head[:8], "little") + 4
    own = changed.read_bytes()
    start = 8 + 4 + int.from_bytes(own[:8], "little") + 4
    (logs / "lr=0.1" / "seed1" / files[0].name).write_bytes(head[:first_record] + own[start:])
    changed.unlink() if changed.name != files[0].name else None
    assert imported(logs, user) == ["new"]
    assert Run.objects.filter(label="lr=0.1/seed1 (version 2)").count() == 1
    assert imported(logs, user) == ["none"]


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 13, 60])
def test_a_half_written_event_file_keeps_what_is_whole(logs: Path, user: User, cut: int) -> None:
    (file,) = [path for path in (logs / "lr=0.1" / "seed1").iterdir() if b"tokens_per_sec" in path.read_bytes()]
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    [result] = stores_import(files=files_below(logs), user=user)
    assert "incomplete or damaged" in result.document.unread.examples[0].reason
    file.write_bytes(whole)
    assert imported(logs, user) == ["continued"]
    run = Run.objects.get(label="lr=0.1/seed1")
    assert store.read(run.current_attempt().pk, "tokens_per_sec", rank=0).steps.tolist() == list(range(5))


def test_samples_of_wandb_become_metrics_of_the_last_step() -> None:
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    stamp = b"\x08\xe8\x07\x10\x80\xe5\x9a\x77"  # 1,000 s and 250,000,000 ns
    item = field(1, b"gpu.0.gpu") + b"\x82\x01\x04" + b"87.5"
    (sampled,) = _sampled(fields_of(field(2, stamp) + field(3, item)), 7)
    assert sampled == ("system/gpu.0.gpu", 87.5, 1_000_250, 7)
