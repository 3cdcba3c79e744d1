"""Where the ranks of a run work, and as whom: in the run directory, or with `--run-as` in one of another account.

Nothing in a directory of another account is trusted: the supervisor fills it before it gives it away, and later reaches
what it reads there by descriptors that it opened before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runners.engines.checkpoints.folder import Lock
from runners.node.launch.share import HOSTFILE
from runners.node.run_as import Account, without_secrets
from runners.node.rundir import RunDir, folder_lock
from runners.supervisor import processes

FOLDER_TRY_S = 1.0
"""Time of one try to take a folder of checkpoints, between two looks for orders."""


class Workplace:
    """The working directory of the ranks."""

    def __init__(self, run: RunDir, launch: Mapping[str, Any]) -> None:
        """Create the directory if it is not that of the run; raises OSError."""
        self._memory_limit_mib: int | None = launch.get("memory_limit_mib")
        self.account = Account(**launch["run_as"]) if launch.get("run_as") else None
        self.path = Path(launch["directory"]) if self.account else run.path
        if self.account:
            self.path.mkdir(mode=0o700)
            shutil.copyfile(run.config, self.path / run.config.name)
        self._hostfile = run.path / HOSTFILE
        self._checkpoints: str | None = launch.get("checkpoints")
        if self._checkpoints:
            self._make_checkpoints(Path(self._checkpoints))

    def _make_checkpoints(self, path: Path) -> None:
        """Create the folder of the run's checkpoints, which belongs to the account of the ranks."""
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)

    def take_folder(self, path: Path, attempt: int) -> Lock:
        """Take the folder of the checkpoints for an attempt. Raises Taken while another one may write there."""
        is_own = str(path) == self._checkpoints
        with self.account.acting() if self.account and not is_own else contextlib.nullcontext():
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder_lock(path), attempt)
            lock.take(FOLDER_TRY_S)
        return lock

    def hand_over(self) -> None:
        """Give everything in the directory to the account of the ranks, the directory last."""
        if self.account is None:
            return
        if self._hostfile.exists():
            shutil.copyfile(self._hostfile, self.path / HOSTFILE)
        for directory, _, names in os.walk(self.path, topdown=False):
            for path in (*(os.path.join(directory, name) for name in names), directory):
                os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)

    def environment(self, added: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the ranks: that of this process and more."""
        base = self.account.environment(without_secrets(os.environ)) if self.account else os.environ
        return {**base, **added}

    def popen_options(self) -> dict[str, Any]:
        """Return how subprocess starts the command: where, as whom, with which limits."""
        return {
            "cwd": self.path,
            "preexec_fn": self._before_exec(),
            **(self.account.popen_options() if self.account else {}),
        }

    def _before_exec(self) -> Callable[[], None]:
        may_gain = self.account is None
        return processes.die_with(os.getpid(), self._memory_limit_mib, may_gain_privileges=may_gain)
