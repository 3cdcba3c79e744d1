"""A real node (daemon, supervisors, trainings) and a server that does nothing but store and acknowledge."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from kombu import Connection, Consumer, Queue

from runners.node.rundir import RunDir, StateDir
from runners.supervisor.processes import marked
from runners.wire.broker import Broker
from runners.wire.protocol import (
    ACKNOWLEDGE_TASK,
    APPLY_BATCH_TASK,
    BACKLOG_QUEUE,
    CANCEL_TASK,
    CONTROL_QUEUE,
    GO_TASK,
    INGEST_QUEUE,
    START_TASK,
    Acknowledge,
    Batch,
    Cancel,
    Go,
    Heartbeat,
    Peer,
    Report,
    RunSpec,
    answer_key,
    node_queue,
    sign,
)
from tests.conftest import SMALL
from tests.patience import PATIENCE_S, wait_for
from tests.signed import content_of

KEY = b"a key that both sides know"
NODE = "n1"
ROOT = Path(__file__).parent.parent.parent
NVML = Path(__file__).parent / "nvml"
"""Where a management library of a machine with GPUs lies, for PYTHONPATH."""


def answer_in_redis(url: str, batch: Batch, position: int) -> None:
    """Answer a batch of a compute node, which looks for the answer in Redis."""
    with redis.Redis.from_url(url) as client:
        envelope = sign(acknowledgement(batch, position), KEY)
        client.set(answer_key(batch.run, batch.attempt, batch.node_rank), json.dumps(envelope))


def acknowledgement(batch: Batch, position: int) -> Acknowledge:
    """Return the answer to a batch."""
    names: dict[str, Any] = {"run": batch.run, "attempt": batch.attempt, "node": batch.node}
    return Acknowledge(**names, node_rank=batch.node_rank, position=position)


class Server:
    """What the real server does with batches: apply them in order, once each, and answer with its position."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.broker = Broker(url, "server")
        self.queue = node_queue(NODE)
        self.connection: Connection | None = None
        self.committed: dict[tuple[int, int], int] = defaultdict(int)
        self.output: dict[tuple[int, int], bytes] = defaultdict(bytes)
        self.reports: dict[tuple[int, int], list[Report]] = defaultdict(list)
        self.batches: list[Batch] = []
        self.heartbeats: list[Heartbeat] = []
        self.forgotten: set[int] = set()

    def start(self, run: int, attempt: int = 1, *, key: bytes = KEY, **overrides: Any) -> None:
        """Send a signed RunSpec, and Go behind it: a node that is alone waits for no other."""
        lifetime_s = overrides.pop("lifetime_s", 600.0)
        config = {**SMALL, "launcher": overrides.pop("launcher", {})}
        fields = {"run": run, "attempt": attempt, "node": NODE, "config": config, **overrides}
        self.send(START_TASK, [sign(RunSpec.model_validate(fields), key, lifetime_s=lifetime_s)])
        self.go(run, attempt, key, lifetime_s)

    def go(self, run: int, attempt: int = 1, key: bytes = KEY, lifetime_s: float = 600.0) -> None:
        """Send a signed Go."""
        peer = Peer(node=NODE, node_rank=0, address="127.0.0.1")
        self.send(GO_TASK, [sign(Go(run=run, attempt=attempt, node=NODE, members=[peer]), key, lifetime_s=lifetime_s)])

    def cancel(self, run: int, attempt: int = 1, reason: str = "cancelled by ada") -> None:
        """Send a signed Cancel."""
        self.send(CANCEL_TASK, [sign(Cancel(run=run, attempt=attempt, node=NODE, reason=reason), KEY)])

    def acknowledge(self, run: int, attempt: int, position: int) -> None:
        """Answer a batch."""
        order = Acknowledge(run=run, attempt=attempt, node=NODE, position=position)
        self.send(ACKNOWLEDGE_TASK, [sign(order, KEY)])

    def answer(self, batch: Batch, position: int) -> None:
        """Tell the sender of a batch the position up to which its spool is stored."""
        if batch.is_polled:
            answer_in_redis(self.url, batch, position)
        else:
            self.acknowledge(batch.run, batch.attempt, position)

    def send(self, task: str, arguments: list[Any]) -> None:
        """Send a task to the node."""
        self.broker.app.send_task(task, args=arguments, queue=self.queue)

    def serve(self, seconds: float = 0.05) -> None:
        """Take what the node has sent for a while."""
        deadline = time.monotonic() + seconds
        try:
            if self.connection is None:
                self.connection = Connection(self.url, transport_options={"max_retries": 1, "interval_start": 0})
            queues = [Queue(INGEST_QUEUE), Queue(BACKLOG_QUEUE), Queue(CONTROL_QUEUE)]
            with Consumer(self.connection, queues, callbacks=[self._take], accept=["json"]):
                while (left := deadline - time.monotonic()) > 0:
                    try:
                        self.connection.drain_events(timeout=left)
                    except TimeoutError:
                        return
        except Exception:
            # Redis is away: that is what some tests are about.
            if self.connection is not None:
                self.connection.release()
            self.connection = None
            time.sleep(0.1)

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.release()

    def until(self, condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
        """Serve until a condition holds."""

        def served() -> Any:
            self.serve()
            return condition()

        return wait_for(served, what, within_s)

    def end_of(self, run: int, attempt: int = 1, within_s: float = PATIENCE_S) -> Report:
        """Serve until a run has ended and return its final report."""
        reports = self.reports[run, attempt]
        ended: Report = self.until(
            lambda: reports[-1] if reports and reports[-1].state != "running" else None,
            f"final report of run {run}, have {[report.state for report in reports]}",
            within_s,
        )
        return ended

    def lines(self, run: int, attempt: int = 1) -> list[bytes]:
        """Return what a run printed, without the supervisor's telemetry."""
        return [line for line in self.output[run, attempt].splitlines() if b'"event":"telemetry"' not in line]

    def _take(self, body: Any, message: Any) -> None:
        message.ack()
        argument = content_of(body[0][0])
        if message.headers["task"] != APPLY_BATCH_TASK:
            self.heartbeats.append(Heartbeat.model_validate(argument))
            return
        batch = Batch.from_wire(argument)
        self.batches.append(batch)
        key = batch.run, batch.attempt
        if batch.run in self.forgotten:
            self.answer(batch, -1)
            return
        if batch.sequence == self.committed[key]:
            self.committed[key] = batch.next_sequence
            self.output[key] += batch.output
            self.reports[key] += [report for report in batch.reports if report.state != "prepared"]
            if any(report.state == "prepared" for report in batch.reports):
                self.go(*key)  # again, as the real server: a job of Slurm is prepared long after its order
        self.answer(batch, self.committed[key])


class NodeMachine:
    """A machine with a state directory, on which daemons come and go."""

    def __init__(self, root: Path, url: str, *, name: str = NODE, address: str = "") -> None:
        self.name, self.address = name, address
        self.prefix: list[str] = []
        """Arguments in front of the daemon's command, which start it elsewhere."""
        self.options: tuple[str, ...] = ()
        """Options of its daemons."""
        self.state_dir, self.scripts, self.log = root / "state", root / "scripts", root / "daemon.log"
        self.scripts.mkdir()
        self.environment = {
            **os.environ,
            "REDIS_URL": url,
            "PARLAB_NODE_KEY": KEY.decode(),
            "TEST_SCRIPTS": str(self.scripts),
            "PYTHONPATH": str(ROOT),
        }
        self.daemons: list[subprocess.Popen[bytes]] = []

    @property
    def state(self) -> StateDir:
        return StateDir(self.state_dir)

    def run_dir(self, run: int, attempt: int = 1, node_rank: int = 0) -> RunDir:
        return self.state.find(run, attempt, node_rank)

    def script(self, run: int, text: str) -> None:
        """Say what a run does."""
        (self.scripts / f"{run}.py").write_text(textwrap.dedent(text))

    def open_gate(self) -> None:
        """Let scripts go on that wait for a file named open beside them."""
        (self.scripts / "open").touch()

    def arguments(self, *more: str) -> list[str]:
        given = ["--address", self.address] if self.address else []
        return [*("--node", self.name), *("--state-dir", str(self.state_dir)), *given, *self.options, *more]

    def start_daemon(
        self, module: str = "tests.runners.node_process", *options: str, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a daemon and wait until it listens."""
        seen = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            daemon = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", module, *self.arguments(*options)],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**self.environment, **environment},
                start_new_session=True,
            )
        self.daemons.append(daemon)
        wait_for(lambda: re.search(rb"takes \d+ runs", self.log.read_bytes()[seen:]), "daemon has started")
        return daemon

    def supervisor(self, run: int, node_rank: int = 0) -> psutil.Process:
        """Return the supervisor of a run."""
        directory = self.run_dir(run, 1, node_rank)
        wait_for(lambda: directory.has_go, f"run {run} may start")
        process = wait_for(directory.supervisor, f"supervisor of run {run}")
        assert isinstance(process, psutil.Process)
        return process

    def processes(self, run: int | None = None) -> list[psutil.Process]:
        """Find the living processes of a run, or of all, its supervisor included."""
        prefix = f"{self.state.id}:" + (f"{run}/" if run is not None else "")
        return [process for process, marker in marked().items() if marker.startswith(prefix)]

    def close(self) -> list[str]:
        """End everything; return what a daemon that stopped properly would not have left."""
        for daemon in self.daemons:
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGKILL)
            daemon.wait()
        if not self.state_dir.exists():
            return []
        # A supervisor needs a moment to exit after its last word.
        deadline = time.monotonic() + PATIENCE_S
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in left:
            process.kill()
        return [str(process) for process in left]


@pytest.fixture
def machine(tmp_path: Path, redis_url: str) -> Iterator[NodeMachine]:
    """A machine without a daemon yet; whatever a test started is ended, and what should have ended is reported."""
    machine = NodeMachine(tmp_path, redis_url)
    yield machine
    left = machine.close()
    if machine.log.exists():
        print(machine.log.read_text()[-8000:])  # shown when the test fails
    assert not left, f"left running: {left}"


@pytest.fixture
def server(redis_url: str) -> Iterator[Server]:
    """A server that stores and acknowledges when the test lets it."""
    server = Server(redis_url)
    yield server
    server.close()


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., RunDir]:
    """Prepare a run directory as the daemon does, for a supervisor without a daemon."""

    def prepare(script: str, *, root: Path = tmp_path, **limits: Any) -> RunDir:
        run = RunDir(root / "7-1")
        run.path.mkdir()
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(script))
        run.write_launch(
            {
                "argv": [sys.executable, str(path)],
                "environment": {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
                "shell": f"python {path}",
                "timeout_s": 3600,
                "hardware": json.loads('{"hostname": "here"}'),
                "spool_limit_mib": 64,
                "disk_grace_s": 5,
                **limits,
            }
        )
        return run

    return prepare
