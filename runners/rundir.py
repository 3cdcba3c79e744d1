"""Files of a node: a directory for each attempt that it holds, and the state directory around them.

STATE/id                 marks this directory's processes in their environment
STATE/daemon.lock        held by the daemon, with its pid
STATE/runs/RUN-ATTEMPT/  one attempt; see RunDir
STATE/rejected/          attempts unknown to the server, kept for inspection
STATE/done/RUN-ATTEMPT   remembers for a while what was here, so that a late message starts nothing twice
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from runners.protocol import SPEC_LIFETIME_S

DONE_LIFETIME_S = 2 * SPEC_LIFETIME_S

_NAME = re.compile(r"(\d+)-(\d+)")


def write_atomically(path: Path, content: str, *, sync: bool = False) -> None:
    """Write a file atomically, also with respect to a power cut."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w") as file:
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
                f"run directory {path} is not named RUN-ATTEMPT, like 12-1; use the path of such a directory"
            )
        self.run, self.attempt = int(match[1]), int(match[2])
        self.spec = path / "spec.json"
        self.config = path / "config.json"
        self.launch = path / "launch.json"
        self.spool = path / "spool"
        self.lock = path / "lock"
        self.log = path / "supervisor.log"
        self._cancel = path / "cancel"
        self._supervisor = path / "supervisor.json"
        self._acknowledged = path / "acknowledged"
        self._rejected = path / "rejected"

    def __str__(self) -> str:
        return f"run {self.run} attempt {self.attempt}"

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    @property
    def is_alive(self) -> bool:
        """Whether a supervisor is alive or just starting."""
        return is_locked(self.lock)

    @property
    def is_rejected(self) -> bool:
        return self._rejected.exists()

    def reject(self) -> None:
        """Mark this attempt as unknown to the server, and end it if it is still running."""
        self._rejected.touch()
        self.cancel("the server does not know this attempt")

    def cancel(self, reason: str) -> None:
        """Ask the supervisor to end the run."""
        write_atomically(self._cancel, reason)

    def cancel_reason(self) -> str | None:
        """Return why the run is to be ended, or None if it was not cancelled."""
        try:
            return self._cancel.read_text()
        except FileNotFoundError:
            return None

    def acknowledge(self, position: int) -> None:
        """Store the position up to which the server has stored the spool."""
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


class StateDir:
    """The state directory of one daemon."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs_path, self.rejected_path, self.done_path = root / "runs", root / "rejected", root / "done"
        self.lock = root / "daemon.lock"
        for path in (root, self.runs_path, self.rejected_path, self.done_path):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (root / "id").exists():
            write_atomically(root / "id", secrets.token_hex(8), sync=True)
        self.id = (root / "id").read_text()

    def find(self, run: int, attempt: int) -> RunDir:
        """Return the directory of an attempt, whether it exists or not."""
        return RunDir(self.runs_path / f"{run}-{attempt}")

    def runs(self) -> list[RunDir]:
        """List the attempts that this node holds."""
        return [RunDir(path) for path in sorted(self.runs_path.iterdir()) if _NAME.fullmatch(path.name)]

    def marker(self, run: RunDir) -> str:
        """Return the value of PARLAB_RUN that marks a run's processes."""
        return f"{self.id}:{run.run}/{run.attempt}"

    def prepare(self, run: int, attempt: int) -> RunDir:
        """Create the directory of an attempt under another name, so that it is never incomplete in its place."""
        draft = self.runs_path / f".draft-{secrets.token_hex(4)}" / f"{run}-{attempt}"
        draft.mkdir(parents=True, mode=0o700)
        return RunDir(draft)

    def put_in_place(self, draft: RunDir) -> RunDir:
        """Move a prepared directory to where the daemon looks for it."""
        run = self.find(draft.run, draft.attempt)
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

    def is_known(self, run: int, attempt: int) -> bool:
        """Return whether this node has, or recently had, an attempt."""
        name = f"{run}-{attempt}"
        return any((path / name).exists() for path in (self.runs_path, self.done_path, self.rejected_path))

    def finish(self, run: RunDir) -> None:
        """Delete an attempt that the server has stored completely, and record that it was here."""
        (self.done_path / run.path.name).touch()
        trash = self.runs_path / f".trash-{secrets.token_hex(4)}"
        run.path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)
        for path in self.done_path.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > DONE_LIFETIME_S:
                    path.unlink()

    def set_aside(self, run: RunDir) -> Path:
        """Move an attempt that is unknown to the server to the directory for inspection."""
        target = self.rejected_path / run.path.name
        if target.exists():
            shutil.rmtree(target)
        run.path.rename(target)
        return target
