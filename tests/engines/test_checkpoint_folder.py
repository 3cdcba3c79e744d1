"""The folder of checkpoints on disk: complete or absent, one writer, damaged ones found."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runners.engines.checkpoints import folder
from runners.engines.checkpoints.folder import Checkpoint, Folder, Taken, damage, digest, listed
from tests.client.conftest import ROOT

HOLD = """
import sys, time
from pathlib import Path
from runners.engines.checkpoints.folder import Folder
held = Folder(Path(sys.argv[1]), 1)
held.take()
print("taken", flush=True)
time.sleep(60)
"""


def save(here: Folder, step: int, content: bytes = b"weights") -> Checkpoint:
    draft = here.path / here.draft_name(step)
    (draft / "part").mkdir(parents=True)
    (draft / "part" / "rank-0").write_bytes(content)
    (draft / "rank-1").write_bytes(content[::-1])
    files = {name: digest(draft / name, sync=True) for name in listed(draft)}
    return here.seal(draft, step, {"numbers": {"lr": 0.1}}, files)


@pytest.fixture
def here(tmp_path: Path) -> Folder:
    taken = Folder(tmp_path / "run-7", 1)
    taken.take()
    return taken


def test_a_checkpoint_has_its_name_only_once_it_is_complete(here: Folder) -> None:
    draft = here.path / here.draft_name(4)
    draft.mkdir()
    (draft / "rank-0").write_bytes(b"half")
    assert here.complete() == []
    sealed = save(here, 8)
    assert [row.step for row in here.complete()] == [8]
    (read,) = here.complete()
    assert read == sealed
    assert damage(read, read.files) == ""
    assert read.bytes == 14


def test_what_an_attempt_has_completed_since_a_time_is_found(here: Folder) -> None:
    at = save(here, 8).at
    assert here.has_complete_since(at)
    assert not here.has_complete_since(at + 0.001)
    assert not Folder(here.path, 2).has_complete_since(at), "of another attempt"
    (here.path / "step-00000008-attempt-1" / "rank-1").unlink()
    assert not here.has_complete_since(at), "not complete any more"


def test_the_newest_complete_ones_stay(here: Folder) -> None:
    for step in (2, 4, 6):
        save(here, step)
    here.prune(2)
    assert [row.step for row in here.complete()] == [6, 4]
    assert sorted(path.name for path in here.path.iterdir()) == [
        "lock",
        "step-00000004-attempt-1",
        "step-00000006-attempt-1",
    ]


def test_a_save_that_fails_leaves_the_old_one(here: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    save(here, 2)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="No space left"):
        save(here, 4)
    assert [row.step for row in here.complete()] == [2]


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda path: (path / "rank-1").write_bytes(b"x"), "rank-1 has 1 bytes instead of 7"),
        (lambda path: (path / "part" / "rank-0").unlink(), "part/rank-0 cannot be read: No such file"),
        (lambda path: (path / "manifest.json").write_text('{"step": 4'), "manifest.json is not complete"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json cannot be read"),
        (lambda path: (path / "manifest.json").write_text("[]"), "manifest.json is not complete"),
    ],
)
def test_what_is_wrong_with_a_damaged_checkpoint_is_named(here: Folder, harm: object, problem: str) -> None:
    save(here, 2)
    harm(save(here, 4).path)  # type: ignore[operator]
    (newest, found), (older, nothing) = here.checkpoints()
    assert (newest.step, older.step, nothing) == (4, 2, "")
    assert problem in found


def test_a_changed_byte_is_found_by_reading(here: Folder) -> None:
    saved = save(here, 4)
    (saved.path / "rank-1").write_bytes(b"sthgieW")
    (read,) = here.complete()
    assert damage(read, ["rank-1"]) == "rank-1 has other content than when it was written"
    here.set_aside(read)
    assert here.checkpoints() == []
    save(here, 6)
    here.prune(1)
    assert sorted(path.name for path in here.path.iterdir()) == ["lock", "step-00000006-attempt-1"]


def test_a_step_that_is_saved_again_replaces_the_first(here: Folder) -> None:
    save(here, 4)
    save(here, 4, b"others!")
    (read,) = here.complete()
    assert (read.path / "part" / "rank-0").read_bytes() == b"others!"


def test_a_folder_has_one_writer_and_a_killed_one_leaves_it_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "RELEASED_WITHIN_S", 0.2)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(Taken, match=f"attempt 1 \\(process {holder.pid} on .*\\) writes checkpoints there; end it"):
        Folder(tmp_path, 2).take()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    (tmp_path / ".draft-1234-step-00000002-attempt-1").mkdir()
    second = Folder(tmp_path, 2)
    second.take()
    assert list(tmp_path.glob(".draft-*")) == []
    second.leave()
    Folder(tmp_path, 3).take()


def test_a_holder_on_another_host_is_alive_while_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "STILL_S", 0.3)
    monkeypatch.setattr(folder, "BEAT_S", 0.05)
    lock = tmp_path / "lock"
    lock.write_text(json.dumps({"token": "a", "attempt": 1, "host": "elsewhere", "pid": 5, "count": 1}))
    Folder(tmp_path, 2).take()  # it does not count: it is dead

    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    holder = Folder(other, 1)
    holder.take()
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # as where locks are not seen
    with pytest.raises(Taken, match="attempt 1"):
        Folder(other, 2).take()
    holder.leave()
    Folder(other, 2).take()


def test_a_writer_that_was_stopped_while_another_took_over_writes_nothing(
    here: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(here, 2)
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    Folder(here.path, 2).take()
    with pytest.raises((Taken, FileNotFoundError)):
        save(here, 4)
    assert [row.step for row in here.complete()] == [2]
