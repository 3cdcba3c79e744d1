"""Child processes that end with this process, in a defined order.

Existing process managers end all children at once. Here the daemon must still reach Redis and the ingest worker while
it sends its last batches.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RESTARTS = 5
"""Maximum number of restarts of a child within a minute."""
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Make Linux end this process when its parent ends for any reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class ProcessFailed(Exception):
    """A child process cannot be kept running; the message contains the end of its log."""


@dataclass
class Child:
    """A process that is restarted when it ends unexpectedly."""

    name: str
    argv: list[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)
    ended_at: list[float] = field(default_factory=list)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal reaches only this process, which ends the children in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  no threads run when children are started
            )

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def keep_alive(self) -> str | None:
        """Restart the process if it has ended; return a message in this case."""
        code = self.process.poll()
        if code is None:
            return None
        now = time.monotonic()
        self.ended_at = [*(at for at in self.ended_at if now - at < 60), now]
        if len(self.ended_at) > RESTARTS:
            raise ProcessFailed(
                f"{self.name} ended {len(self.ended_at)} times within a minute; the end of its log:\n{self.tail()}"
            )
        self.start()
        return f"{self.name} exited with code {code} and was restarted (log: {self.log})"

    def stop(self, timeout: float = 20.0) -> None:
        """End the process with SIGTERM; after the timeout, send SIGKILL to its whole session."""
        end_together([self], timeout)


def end_together(children: Sequence[Child], timeout: float = 20.0) -> None:
    """End processes at the same time, as `Child.stop` ends one."""
    for child in children:
        child.process.terminate()
    deadline = time.monotonic() + timeout
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
