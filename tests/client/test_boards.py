"""`parlab follow` on TensorBoard's event files, as `SummaryWriter` writes them, and on what cannot be followed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pytest_django.live_server_helper import LiveServer

from parlab.client.command.boards import FollowedBoard
from parlab.client.command.commands import main
from parlab.client.command.events import event_of, records
from parlab.client.settings import Settings
from parlab.lab.models import Run
from parlab.series import store

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live_server: LiveServer, token: str) -> Settings:
    for name, value in (("HOME", str(tmp_path / "home")), ("URL", live_server.url), ("TOKEN", token)):
        monkeypatch.setenv(f"PARLAB_{name}", value)
    for name in ("PARLAB_RUN_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return Settings(live_server.url, token)


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    board = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    return board.EventFileWriter(str(tmp_path / "tb" / "20260101-0101"))


def scalars(writer: Any, step: int, **values: float) -> None:
    from tensorboard.compat.proto import event_pb2, summary_pb2

    summary = summary_pb2.Summary(
        value=[summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    )
    writer.add_event(event_pb2.Event(wall_time=1e9 + step, step=step, summary=summary))
    writer.flush()


def steps(metric: str) -> list[int]:
    return [int(step) for step in store.read(Run.objects.get().current_attempt().pk, metric, rank=0).steps]


def followed(path: Path, login: Settings) -> FollowedBoard:
    return FollowedBoard(path, login, experiment="Boards", name="", run_id=None)


@pytest.mark.parametrize("is_file", [False, True])
def test_one_event_file_is_followed_as_it_grows(tmp_path: Path, login: Settings, writer: Any, is_file: bool) -> None:
    names = {"loss_metrics/global_avg_loss": 8.0, "throughput(tps)": 5000.0}
    scalars(writer, 1, **names)
    path = next((tmp_path / "tb").rglob("*tfevents*")) if is_file else tmp_path / "tb"
    board = followed(path, login)
    assert board.open()
    assert board.send()
    assert not board.send()
    assert (steps("throughput(tps)"), Run.objects.get().state) == ([1], "running")
    scalars(writer, 2, **names)
    assert board.send()
    # Followed again from the beginning, by another process: nothing comes twice.
    again = followed(path, login)
    again.open()
    scalars(writer, 3, **names)
    again.finish({"state": "finished", "exit_code": None})
    assert steps("loss_metrics/global_avg_loss") == [1, 2, 3]
    run = Run.objects.get()
    assert (run.state, run.summary["sources"]["tokens_per_s_per_gpu"]) == ("finished", "throughput(tps)")
    assert store.read(run.current_attempt().pk, "throughput(tps)", rank=0).times.tolist() == [1e9 + 1, 1e9 + 2, 1e9 + 3]


def test_the_record_that_is_being_written_is_read_once_it_is_whole(
    tmp_path: Path, login: Settings, writer: Any
) -> None:
    scalars(writer, 1, loss=1.0)
    source = next((tmp_path / "tb").rglob("*tfevents*"))
    whole = source.read_bytes()
    path = tmp_path / "cut" / source.name
    path.parent.mkdir()
    path.write_bytes(whole[:-3])
    board = followed(path, login)
    assert board.open()
    board.send()
    assert not board.send()
    path.write_bytes(whole)
    assert board.send()
    assert steps("loss") == [1]


def test_hyperparameters_are_parameters_of_their_run_and_no_run(tmp_path: Path, login: Settings) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    board = tensorboard.SummaryWriter(str(tmp_path / "tb"))
    board.add_scalar("loss", 1.0, 1)
    board.add_hparams({"lr": 0.1, "layers": 4, "kind": "bert", "tied": True}, {"best": 0.5}, run_name="trial")
    board.add_text("args", '{"batch": {"size": 3}}')
    board.close()
    assert main(["follow", str(tmp_path / "tb"), "--idle", "0", "--experiment", "Boards"]) == 0
    run = Run.objects.get()
    assert dict(run.tracked.parameters.values_list("key", "value")) == {
        "lr": "0.1", "layers": "4", "kind": "bert", "tied": "1", "batch.size": "3",
    }  # fmt: skip
    assert (steps("loss"), len(steps("best")), run.state) == ([1], 1, "finished")


def test_each_directory_of_event_files_is_a_run(tmp_path: Path, login: Settings) -> None:
    board = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    for name in ("a", "b"):
        scalars(board.EventFileWriter(str(tmp_path / "tb" / name)), 1, loss=1.0)
    assert main(["follow", str(tmp_path / "tb"), "--idle", "0"]) == 0
    assert sorted(Run.objects.values_list("label", flat=True)) == ["a", "b"]


@pytest.mark.parametrize("content", [b"\x93NUMPY\x01\x00v\x00" * 20, bytes(range(1, 32)) * 40])
def test_a_file_that_is_no_text_is_refused(
    tmp_path: Path, login: Settings, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data.npy"
    path.write_bytes(content)
    assert main(["follow", str(path), "--idle", "0"]) == 1
    assert "no text" in capsys.readouterr().err
    assert not Run.objects.exists()


def test_a_pipe_is_refused(tmp_path: Path, login: Settings) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["follow", str(tmp_path / "pipe"), "--idle", "0"]) == 1


def test_damage_is_told_and_what_comes_before_is_sent(
    tmp_path: Path, login: Settings, writer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scalars(writer, 1, loss=1.0)
    path = next((tmp_path / "tb").rglob("*tfevents*"))
    with path.open("ab") as file:
        file.write(b"\xff" * 64)
    assert main(["follow", str(path), "--idle", "0"]) == 0
    assert "damaged" in capsys.readouterr().err
    assert steps("loss") == [1]


def test_events_are_decoded_like_tensorboards_own(writer: Any, tmp_path: Path) -> None:
    scalars(writer, -5, loss=0.25)
    path = next((tmp_path / "tb").rglob("*tfevents*"))
    last = [event_of(record) for record, _ in records(path, 0, 1 << 20)][-1]
    assert (last.step, last.scalars, last.time) == (-5, {"loss": 0.25}, 1e9 - 5)
