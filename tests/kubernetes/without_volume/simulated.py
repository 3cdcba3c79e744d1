"""`python -m tests.kubernetes.without_volume.simulated`: pods that train nothing and post what they write.

A pod writes a spool and posts it with the code of real ones; it has no supervisor and no ranks. Standard input
describes them (`Pods`), and what they have seen is printed (`Seen`).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from runners.node.jobs.shipper import NodeShipper
from runners.node.jobs.state import JobDir, JobStateDir
from runners.node.kubernetes.without_volume.order import Server
from runners.node.kubernetes.without_volume.posting import GATHER_S, HttpServer
from runners.supervisor.shipping import BrokerAway
from runners.supervisor.spool import SpoolWriter
from runners.wire.trust import Key, attempt_key

STEP_S, TURN_S = 0.5, 0.1
REST_S = 60.0
NODE = "bench"
NUMBERS = 6
"""Of each step: its time, loss, memory and three timers."""


class Pods(NamedTuple):
    """Pods of one process."""

    url: str
    key: tuple[str, str]
    """ID and secret, as hexadecimal digits, of the key of their controller."""
    attempts: list[tuple[int, int]]
    directory: str
    seconds: float


class Seen(NamedTuple):
    """What they have seen."""

    lags: list[float]
    """From each step to the answer that it is stored."""
    errors: list[str]
    steps: int
    left: int
    """Pods whose spool was not stored in time."""


class SimulatedPod:
    """Writes a step now and then, and posts its spool."""

    def __init__(self, run: JobDir, server: Server) -> None:
        run.path.mkdir()
        self._run = run
        self._shipper = NodeShipper(run, HttpServer(run, server), NODE, give_up_s=float("inf"), gather_s=GATHER_S)
        self._waiting: deque[tuple[int, float]] = deque()
        self.lags, self.errors, self.steps = list[float](), list[str](), 0

    def work(self, seconds: float) -> bool:
        """Train for a while; return whether everything was stored soon after."""
        began = time.monotonic()
        with SpoolWriter(self._run.spool) as writer:
            while (now := time.monotonic()) < began + seconds + REST_S:
                if now > began + (self.steps + 1) * STEP_S and now < began + seconds:
                    self._step(writer)
                self._turn(now)
                if now > began + seconds and not self._waiting:
                    return True
                time.sleep(TURN_S)
        return False

    def _step(self, writer: SpoolWriter) -> None:
        self.steps += 1
        event = {"parlab": 1, "t": time.time(), "rank": 0, "event": "step", "step": self.steps, "step_time_s": STEP_S}
        event |= {"loss": 5.0 / self.steps, "samples": 16, "memory_bytes": 2**30}
        event |= {"timers_s": dict.fromkeys(("forward", "backward", "optimizer"), STEP_S / 3)}
        writer.append_output(json.dumps(event).encode() + b"\n")
        self._waiting.append((writer.position, time.monotonic()))

    def _turn(self, now: float) -> None:
        try:
            self._shipper.turn(now)
        except BrokerAway as error:
            if "did not answer a moment ago" not in str(error):
                self.errors.append(str(error)[:200])
        stored = self._run.acknowledged()
        while self._waiting and self._waiting[0][0] <= stored:
            self.lags.append(time.monotonic() - self._waiting.popleft()[1])


def main() -> None:
    """Simulate them."""
    given = Pods(**json.load(sys.stdin))
    root = Path(given.directory)
    root.mkdir()
    state, key = JobStateDir(root), Key(given.key[0], bytes.fromhex(given.key[1]))
    pods = [
        SimulatedPod(state.find(run, attempt), Server(given.url, NODE, attempt_key(key, run, attempt)))
        for run, attempt in given.attempts
    ]
    ends: list[bool] = []
    threads = [threading.Thread(target=lambda pod=pod: ends.append(pod.work(given.seconds))) for pod in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lags, errors = [lag for pod in pods for lag in pod.lags], [error for pod in pods for error in pod.errors]
    seen = Seen(lags, errors, sum(pod.steps for pod in pods), len(pods) - ends.count(True))
    sys.stdout.write(json.dumps(seen._asdict()))


if __name__ == "__main__":
    main()
