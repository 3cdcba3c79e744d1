"""A handful of child processes that live and die with this one, and in an order.

Process managers that we looked at end all children at once; here the daemon must still reach Redis and
the ingest worker while it hands over its last batches.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

RESTARTS = 5
"""A child that ended by itself this often within a minute is given up."""
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Ask Linux to end this process when its parent is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class ProcessFailed(Exception):
    """A child that cannot be kept running, with the end of its log."""


@dataclass
class Child:
    """One process that is started again when it ends by itself."""

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
                # Ctrl-C in the terminal reaches only us; we end the children in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  no threads run here when children are started
            )

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def keep_alive(self) -> str | None:
        """Start the process again if it ended; return a line for people when that happened."""
        code = self.process.poll()
        if code is None:
            return None
        now = time.monotonic()
        self.ended_at = [*(at for at in self.ended_at if now - at < 60), now]
        if len(self.ended_at) > RESTARTS:
            raise ProcessFailed(
                f"{self.name} ended {len(self.ended_at)} times in a minute; its log says:\n{self.tail()}"
            )
        self.start()
        return f"{self.name} ended with {code} and was started again (log: {self.log})"

    def stop(self, timeout: float = 20.0) -> None:
        """End the process with SIGTERM, or with SIGKILL for its whole session when it does not listen."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
