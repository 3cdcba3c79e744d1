"""Files of a node: a directory for each attempt that it holds, and the state directory around them.

STATE/id                 marks this directory's processes in their environment
STATE/daemon.lock        held by the daemon, with its pid
STATE/draining           present while the node takes no new runs
STATE/runs/RUN-ATTEMPT/  one attempt; see RunDir. RUN-ATTEMPT-NODE for the other nodes of a run, from 1
STATE/rejected/          attempts unknown to the server, kept for inspection
STATE/done/RUN-ATTEMPT   remembers for a while what was here, so that a late message starts nothing twice
STATE/checkpoints/RUN/   checkpoints of a run that names no directory, for all of its attempts on this node
STATE/checkpoints/.RUN.lock  held by the supervisor of the attempt that may write there
STATE-runs/RUN-ATTEMPT/  with --run-as, the working directory of its ranks, which belongs to their account
STATE-runs/checkpoints-RUN/  with --run-as, its checkpoints
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from runners.wire.protocol import SPEC_LIFETIME_S

DONE_LIFETIME_S = 2 * SPEC_LIFETIME_S
CHECKPOINT_LIFETIME_S = 30 * 86400.0
"""Time since the last change after which checkpoints in the state directory are deleted."""

_NAME = re.compile(r"(\d+)-(\d+)(?:-([1-9]\d*))?")


def directory_name(run: int, attempt: int, node_rank: int) -> str:
    return f"{run}-{attempt}" + (f"-{node_rank}" if node_rank else "")


def write_atomically(path: Path, content: str, *, sync: bool = False, mode: int = 0o600) -> None:
    """Write a file atomically, also with respect to a power cut."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    draft.rename(path)


def lock(path: Path) -> int | None:
    """Lock a file and return its descriptor, or None if another process holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock, without holding it for longer than a moment."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two simultaneous checks do not see each other as the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def folder_lock(folder: Path) -> Path:
    """Return the file that the supervisor of an attempt holds while its ranks may write to a folder of checkpoints.

    It is beside the folder: scripts may list that, and expect there what they have written.
    """
    return folder.with_name(f".{folder.name}.lock")


class RunDir:
    """The files of one attempt.

    The supervisor holds `lock` as long as it lives: the lock goes with the process whatever kills it, and unlike a
    process id it can never come to mean another one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise ValueError(
                f"run directory {path} is not named RUN-ATTEMPT or RUN-ATTEMPT-NODE, like 12-1 or 12-1-2;"
                " use the path of such a directory"
            )
        self.run, self.attempt, self.node_rank = int(match[1]), int(match[2]), int(match[3] or 0)
        self.spec = path / "spec.json"
        self.config = path / "config.json"
        self.launch = path / "launch.json"
        self.spool = path / "spool"
        self.lock = path / "lock"
        self.log = path / "supervisor.log"
        self._go = path / "go.json"
        self._cancel, self._is_consequence = path / "cancel", path / "cancel-is-consequence"
        self._preempted = path / "preempted"
        self._supervisor = path / "supervisor.json"
        self._acknowledged = path / "acknowledged"
        self._rejected = path / "rejected"

    def __str__(self) -> str:
        return f"run {self.run} attempt {self.attempt}" + (f" node {self.node_rank}" if self.node_rank else "")

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    @property
    def is_alive(self) -> bool:
        """Whether a supervisor is alive or just starting."""
        return is_locked(self.lock)

    @property
    def is_shipped_elsewhere(self) -> bool:
        """Whether another machine than that of the daemon ships the output now."""
        return False

    @property
    def is_rejected(self) -> bool:
        return self._rejected.exists()

    def reject(self) -> None:
        """Mark this attempt as unknown to the server, and end it if it is still running."""
        self._rejected.touch()
        self.cancel("the server does not know this attempt")

    def cancel(self, reason: str, *, is_consequence: bool = False) -> None:
        """Ask the supervisor to end the run, with is_consequence because another node of the run has ended."""
        if is_consequence and self.cancel_reason() is None:
            self._is_consequence.touch()
        elif not is_consequence:
            self._is_consequence.unlink(missing_ok=True)
        try:
            write_atomically(self._cancel, reason)
        except OSError:
            # On a full disk there is no room for the reason, but most have some for an empty file.
            self._cancel.touch()

    def cancel_reason(self) -> str | None:
        """Return why the run is to be ended, or None if it was not cancelled."""
        try:
            return self._cancel.read_text() or "cancelled; its node could not store the reason; is its disk full?"
        except FileNotFoundError:
            return None

    def preempt(self, notice: str) -> None:
        """Tell the supervisor that the node is taken away."""
        write_atomically(self._preempted, notice)

    def preemption(self) -> str | None:
        """Return the notice that the node is taken away, or None."""
        try:
            return self._preempted.read_text()
        except FileNotFoundError:
            return None

    @property
    def is_cancel_consequence(self) -> bool:
        """Whether the run is to be ended because another node of it has ended."""
        return self._is_consequence.exists()

    def acknowledge(self, position: int) -> None:
        """Store the position up to which the server has stored the spool, if there is room: the server repeats it."""
        with contextlib.suppress(OSError):
            write_atomically(self._acknowledged, str(position))

    def acknowledged(self) -> int:
        """Return the position up to which the server has stored the spool; 0 if unknown."""
        try:
            return int(self._acknowledged.read_text())
        except (FileNotFoundError, ValueError):
            # After a power cut the file may be empty; the server repeats its position.
            return 0

    def write_launch(self, launch: Mapping[str, Any]) -> None:
        """Store the launch file of the supervisor."""
        write_atomically(self.launch, json.dumps(launch, indent=1))

    def read_launch(self) -> dict[str, Any]:
        """Read the launch file of the supervisor."""
        launch: dict[str, Any] = json.loads(self.launch.read_text())
        return launch

    @property
    def has_go(self) -> bool:
        """Whether the supervisor has been told to start the ranks."""
        return self._go.exists()

    def write_go(self, content: Mapping[str, Any]) -> None:
        """Tell the supervisor to start the ranks: what the launch file lacks, or `error`, why they cannot start."""
        write_atomically(self._go, json.dumps(content, indent=1))

    def read_go(self) -> dict[str, Any] | None:
        """Return what the supervisor was told, or None if it was not told to start yet."""
        try:
            content: dict[str, Any] = json.loads(self._go.read_text())
        except FileNotFoundError:
            return None
        return content

    def write_supervisor(self) -> None:
        """Store the calling process as the supervisor of this run."""
        process = psutil.Process()
        content = {"pid": process.pid, "create_time": process.create_time()}
        write_atomically(self._supervisor, json.dumps(content))

    def started_at(self) -> float:
        """Return when the supervisor of the run started, in Unix seconds; 0 if it never did."""
        try:
            return float(json.loads(self._supervisor.read_text())["create_time"])
        except (FileNotFoundError, ValueError):
            return 0.0

    def supervisor(self) -> psutil.Process | None:
        """Return the supervisor of this run; None if it has ended, even if another process has its pid now."""
        try:
            content = json.loads(self._supervisor.read_text())
            process = psutil.Process(content["pid"])
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
            return None
        return process if abs(process.create_time() - content["create_time"]) < 0.02 else None


class Drain(NamedTuple):
    """A node that takes no new runs."""

    lease_s: float | None
    """Lease of its runs meanwhile; None: as before."""


class StateDir:
    """The state directory of one daemon."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs_path, self.rejected_path, self.done_path = root / "runs", root / "rejected", root / "done"
        self.work_path = root.with_name(f"{root.name}-runs")
        self.lock = root / "daemon.lock"
        self._draining, self._drain_confirmed = root / "draining", root / "draining-confirmed"
        for path in (root, self.runs_path, self.rejected_path, self.done_path):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (root / "id").exists():
            write_atomically(root / "id", secrets.token_hex(8), sync=True)
        self.id = (root / "id").read_text()

    def find(self, run: int, attempt: int, node_rank: int = 0) -> RunDir:
        """Return the directory of an attempt, whether it exists or not."""
        return RunDir(self.runs_path / directory_name(run, attempt, node_rank))

    def runs(self) -> list[RunDir]:
        """List the attempts that this node holds."""
        return [RunDir(self.runs_path / name) for name in self.names()]

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.runs_path) if _NAME.fullmatch(name))

    def marker(self, run: RunDir) -> str:
        """Return the value of PARLAB_RUN that marks a run's processes."""
        return f"{self.id}:{run.run}/{run.attempt}" + (f"/{run.node_rank}" if run.node_rank else "")

    def prepare(self, run: int, attempt: int, node_rank: int = 0) -> RunDir:
        """Create the directory of an attempt under another name, so that it is never incomplete in its place."""
        draft = self.runs_path / f".draft-{secrets.token_hex(4)}" / directory_name(run, attempt, node_rank)
        draft.mkdir(parents=True, mode=0o700)
        return RunDir(draft)

    def put_in_place(self, draft: RunDir) -> RunDir:
        """Move a prepared directory to where the daemon looks for it."""
        run = self.find(draft.run, draft.attempt, draft.node_rank)
        draft.path.rename(run.path)
        draft.path.parent.rmdir()
        return run

    def discard(self, draft: RunDir) -> None:
        """Delete a prepared directory that was not moved into place."""
        if draft.exists:
            shutil.rmtree(draft.path.parent, ignore_errors=True)

    def clear_drafts(self) -> None:
        """Delete directories that a killed daemon was creating or deleting."""
        for path in self.runs_path.glob(".*"):
            shutil.rmtree(path, ignore_errors=True)

    def begin_drain(self, lease_s: float | None) -> None:
        """Ask the daemon to take no new runs."""
        self._drain_confirmed.unlink(missing_ok=True)
        write_atomically(self._draining, json.dumps({"lease_s": lease_s}))

    def drain(self) -> Drain | None:
        """Return what was asked with `begin_drain`, or None."""
        try:
            return Drain(**json.loads(self._draining.read_text()))
        except FileNotFoundError:
            return None

    def confirm_drain(self) -> None:
        """Record that the server knows that the node takes no new runs."""
        self._drain_confirmed.touch()

    @property
    def is_drain_confirmed(self) -> bool:
        """Whether the server knows that the node takes no new runs."""
        return self._drain_confirmed.exists()

    def end_drain(self) -> None:
        """Take new runs again."""
        self._draining.unlink(missing_ok=True)
        self._drain_confirmed.unlink(missing_ok=True)

    def is_known(self, run: int, attempt: int, node_rank: int = 0) -> bool:
        """Return whether this node has, or recently had, an attempt."""
        name = directory_name(run, attempt, node_rank)
        return any((path / name).exists() for path in (self.runs_path, self.done_path, self.rejected_path))

    def checkpoints(self, run: int, directory: str | None, *, is_run_as: bool) -> Path:
        """Return the folder for the checkpoints of a run, which all of its attempts share."""
        if directory is not None:
            return Path(directory) / f"run-{run}"
        return self.work_path / f"checkpoints-{run}" if is_run_as else self.root / "checkpoints" / str(run)

    def clear_checkpoints(self) -> None:
        """Delete folders of checkpoints in the state directory that nothing has been written to for long."""
        for path in (*(self.root / "checkpoints").glob("*"), *self.work_path.glob("checkpoints-*")):
            with contextlib.suppress(OSError):
                is_old = time.time() - path.lstat().st_mtime > CHECKPOINT_LIFETIME_S
                # A training may go on for long without a new name in the folder; its attempt holds a lock.
                if is_old and path.is_dir() and not is_locked(path / "lock") and not is_locked(folder_lock(path)):
                    shutil.rmtree(path)

    def finish(self, run: RunDir) -> None:
        """Delete an attempt that the server has stored completely, and record that it was here."""
        (self.done_path / run.path.name).touch()
        if (work := self.work_path / run.path.name).exists():
            # Unlike Python, rm deletes directories of any depth, which an account of runs may have made.
            subprocess.run(["rm", "-rf", "--one-file-system", "--", str(work)], check=False, stdin=subprocess.DEVNULL)
        trash = self.runs_path / f".trash-{secrets.token_hex(4)}"
        run.path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)
        for path in self.done_path.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > DONE_LIFETIME_S:
                    path.unlink()
        for folder in (self.checkpoints(run.run, None, is_run_as=is_run_as) for is_run_as in (False, True)):
            with contextlib.suppress(OSError):  # the folder has checkpoints, or does not exist
                folder.rmdir()
                if not is_locked(folder_lock(folder)):
                    folder_lock(folder).unlink(missing_ok=True)
        self.clear_checkpoints()

    def set_aside(self, run: RunDir) -> Path:
        """Move an attempt that is unknown to the server to the directory for inspection."""
        target = self.rejected_path / run.path.name
        if target.exists():
            shutil.rmtree(target)
        run.path.rename(target)
        with contextlib.suppress(OSError):  # without --run-as there is none; on another file system it stays
            (self.work_path / run.path.name).rename(target / "work")
        return target
