"""The folder for the checkpoints of a run: which one, whose, and how long it stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from runners.engines.checkpoints.folder import Lock
from runners.node import rundir
from runners.node.rundir import StateDir, folder_lock, lock
from tests.conftest import SMALL
from tests.runners.conftest import NodeMachine, Server
from tests.runners.supervised import Prepare, Supervise, supervise

__all__ = ["supervise"]

PRINTS = """
    import os, pathlib
    folder = pathlib.Path(os.environ["PARLAB_CHECKPOINT_DIR"])
    print(f"FOLDER {folder} {folder.is_dir()} {sorted(path.name for path in folder.glob('*'))}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine").touch()
"""
PRINTS_NONE = """
    import os
    print("FOLDER", os.environ.get("PARLAB_CHECKPOINT_DIR"), flush=True)
"""


def test_attempts_of_a_run_share_a_folder_in_the_state_directory(machine: NodeMachine, server: Server) -> None:
    machine.script(1, PRINTS)
    machine.script(2, PRINTS_NONE)
    machine.start_daemon()
    folder = machine.state_dir / "checkpoints" / "1"
    for attempt, content in ((1, "[]"), (2, "['mine']")):
        server.start(1, attempt, config={**SMALL, "checkpoint": {"every_steps": 5}})
        line = f"FOLDER {folder} True {content}".encode()
        server.until(lambda line=line, attempt=attempt: line in server.output[1, attempt], "the folder is printed")  # type: ignore[misc]
    server.start(2)
    server.until(lambda: b"FOLDER None" in server.output[2, 1], "another run has none")


@pytest.mark.slow
def test_a_directory_of_the_configuration_has_a_folder_for_each_run(
    machine: NodeMachine, server: Server, tmp_path: Path
) -> None:
    machine.script(3, PRINTS)
    machine.start_daemon()
    server.start(3, config={**SMALL, "checkpoint": {"every_s": 60, "directory": str(tmp_path / "shared")}})
    line = f"FOLDER {tmp_path / 'shared' / 'run-3'} ".encode()
    server.until(lambda: line in server.output[3, 1], "the folder is printed")


def test_a_run_waits_until_an_earlier_attempt_has_left_its_folder(
    tmp_path: Path, prepared: Prepare, supervise: Supervise
) -> None:
    folder = tmp_path / "shared" / "run-7"
    folder.parent.mkdir()
    earlier = Lock(folder_lock(folder), 1)
    earlier.take()
    run = supervise(prepared("print('a rank')", folder=str(folder)))
    run.says(f"parlab: the start waits, because attempt 1 (process {os.getpid()} on ".encode())
    assert b"a rank" not in run.output()
    earlier.leave()
    assert run.ends().state == "finished"
    assert b"a rank" in run.output()
    Lock(folder_lock(folder), 3).take()  # it has left the folder too
    assert list(folder.iterdir()) == [], "scripts may list it"


def test_a_run_that_waits_for_its_folder_is_cancelled(tmp_path: Path, prepared: Prepare, supervise: Supervise) -> None:
    folder = tmp_path / "run-7"
    earlier = Lock(folder_lock(folder), 1)
    earlier.take()
    run = supervise(prepared("print('a rank')", folder=str(folder)))
    run.says(b"the start waits")
    run.run.cancel("cancelled by ada")
    assert (run.ends().state, run.ends().reason) == ("cancelled", "cancelled by ada")
    assert b"a rank" not in run.output()


def test_folders_are_deleted_when_nothing_was_written_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDir(tmp_path / "state")
    old, used, written, new, own = (
        state.checkpoints(run, None, is_run_as=is_run_as)
        for run, is_run_as in ((1, False), (2, False), (5, False), (3, False), (4, True))
    )
    assert own == tmp_path / "state-runs" / "checkpoints-4"
    for path in (old, used, written, new, own):
        path.mkdir(parents=True)
        (path / "step-1").touch()
    held = [lock(used / "lock"), lock(folder_lock(written))]
    for path in (old, used, written, own):
        os.utime(path, (time.time() - rundir.CHECKPOINT_LIFETIME_S - 60,) * 2)
    state.clear_checkpoints()
    assert [path.exists() for path in (old, used, written, new, own)] == [False, True, True, True, False]
    for descriptor in held:
        assert descriptor is not None
        os.close(descriptor)


def test_an_empty_folder_goes_with_its_attempt(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    empty, full = (state.checkpoints(run, None, is_run_as=False) for run in (1, 2))
    for run, path in ((1, empty), (2, full)):
        path.mkdir(parents=True)
        folder_lock(path).touch()
        state.finish(state.put_in_place(state.prepare(run, 1)))
        if run == 1:
            assert not path.exists()
            assert not folder_lock(path).exists()
    (full.parent / "2").mkdir(exist_ok=True)
    (full / "step-1").touch()
    state.finish(state.put_in_place(state.prepare(2, 2)))
    assert full.exists()
