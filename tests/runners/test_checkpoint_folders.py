"""The folder for the checkpoints of a run: which one, whose, and how long it stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from runners.node import rundir
from runners.node.rundir import StateDir, lock
from tests.conftest import SMALL
from tests.runners.conftest import NodeMachine, Server

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


def test_a_directory_of_the_configuration_has_a_folder_for_each_run(
    machine: NodeMachine, server: Server, tmp_path: Path
) -> None:
    machine.script(3, PRINTS)
    machine.start_daemon()
    server.start(3, config={**SMALL, "checkpoint": {"every_s": 60, "directory": str(tmp_path / "shared")}})
    line = f"FOLDER {tmp_path / 'shared' / 'run-3'} ".encode()
    server.until(lambda: line in server.output[3, 1], "the folder is printed")


def test_folders_are_deleted_when_nothing_was_written_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDir(tmp_path / "state")
    old, used, new, own = (
        state.checkpoints(run, None, is_run_as=is_run_as)
        for run, is_run_as in ((1, False), (2, False), (3, False), (4, True))
    )
    assert own == tmp_path / "state-runs" / "checkpoints-4"
    for path in (old, used, new, own):
        path.mkdir(parents=True)
        (path / "step-1").touch()
    held = lock(used / "lock")
    for path in (old, used, own):
        os.utime(path, (time.time() - rundir.CHECKPOINT_LIFETIME_S - 60,) * 2)
    state.clear_checkpoints()
    assert [path.exists() for path in (old, used, new, own)] == [False, True, True, False]
    assert held is not None
    os.close(held)


def test_an_empty_folder_goes_with_its_attempt(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    empty, full = (state.checkpoints(run, None, is_run_as=False) for run in (1, 2))
    for run, path in ((1, empty), (2, full)):
        path.mkdir(parents=True)
        state.finish(state.put_in_place(state.prepare(run, 1)))
        if run == 1:
            assert not path.exists()
    (full.parent / "2").mkdir(exist_ok=True)
    (full / "step-1").touch()
    state.finish(state.put_in_place(state.prepare(2, 2)))
    assert full.exists()
