"""A real Slurm cluster, and a daemon on its login node: one of each for all tests, which use different runs."""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parlab.embedded import free_port
from runners.node.jobs.state import JobRecord, JobStateDir
from tests.conftest import SMALL, start_redis
from tests.patience import wait_for
from tests.runners.conftest import NodeMachine, Server
from tests.slurm.cluster import Cluster
from tests.slurm.install import why_not

PARTITIONS = "debug,busy,apart,gone"
READY = 5
"""Runs that are started at once in advance, because a job needs some seconds to start."""
GO_AGAIN_S = 10.0

WAITS = """
import os, pathlib, sys, time
print("started on", os.environ["SLURMD_NODENAME"], "secret", os.environ.get("PARLAB_NODE_KEY"), flush=True)
while not pathlib.Path(__file__).with_suffix(".open").exists():
    time.sleep(0.05)
print("done", flush=True)
"""


class LoginNode(NodeMachine):
    """A machine whose daemon submits jobs; the compute nodes see its state directory."""

    def __init__(self, root: Path, url: str, cluster: Cluster) -> None:
        root.mkdir()
        super().__init__(root, url)
        self.cluster = cluster
        self.partitions = PARTITIONS
        self.options = ("--slots", "16")
        self.environment |= {
            "SLURM_CONF": str(cluster.conf),
            "PATH": cluster.environment["PATH"],
            "PARLAB_SLURM_POLL_S": "0.3",
            "PARLAB_SLURM_SETTLE_S": "1",
        }
        del self.environment["PYTHONPATH"]  # the daemon is started in its checkout, and jobs must find it by themselves

    @property
    def state(self) -> JobStateDir:
        return JobStateDir(self.state_dir)

    def arguments(self, *more: str) -> list[str]:
        return super().arguments("--slurm", "--partition", self.partitions, *more)

    def open(self, run: int) -> None:
        """Let the script of a run go on that waits for this."""
        (self.scripts / f"{run}.open").touch()

    def restart_daemon(self) -> None:
        """Kill the daemon and start the next one."""
        self.kill_daemon()
        self.start_daemon()

    def kill_daemon(self) -> None:
        """Kill the daemon."""
        self.daemons[-1].send_signal(signal.SIGKILL)
        self.daemons[-1].wait()

    def jobs(self) -> list[int]:
        """Return the jobs of this node that wait or run."""
        lines = self.cluster.run("squeue", "--noheader", "--format=%i %j").splitlines()
        pairs = [line.split(None, 1) for line in lines]
        return [int(job) for job, name in pairs if name.startswith(f"parlab-{self.state.id}-")]

    def clear(self) -> None:
        """Cancel all jobs of this node."""
        if jobs := self.jobs():
            self.cluster.clear(*jobs)

    def record(self, run: int, attempt: int = 1) -> JobRecord:
        return self.state.job(run, attempt)

    def job(self, run: int, attempt: int = 1) -> int:
        """Wait until a run is submitted and return the id of its job."""
        number = wait_for(lambda: self.record(run, attempt).read().get("id"), f"run {run} is submitted")
        assert isinstance(number, int)
        return number

    def wait_for_state(self, job: int, state: str) -> None:
        """Wait until Slurm has a word for the state of a job."""
        wait_for(lambda: self.job_state(job) == state, f"job {job} is {state}")

    def job_state(self, job: int) -> str:
        """Return Slurm's word for the state of a job."""
        return self.cluster.run("scontrol", "show", "job", "-o", str(job)).partition("JobState=")[2].partition(" ")[0]


class AttentiveServer(Server):
    """A server that always serves: a run that is prepared waits for the order to start only for a while."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve_always, daemon=True)
        self._thread.start()

    def serve(self, seconds: float = 0.05) -> None:
        """Let the thread serve for a while."""
        time.sleep(seconds)

    def close(self) -> None:
        """End the thread and close the connection."""
        self._stop.set()
        self._thread.join()
        super().close()

    def _serve_always(self) -> None:
        while not self._stop.is_set():
            super().serve(0.2)


class Jobs:
    """Runs of the login node: `begin` starts one, `ready` returns one that was started in advance."""

    def __init__(self, login: LoginNode, server: Server) -> None:
        self._login, self._server = login, server
        self._numbers = itertools.count(1)
        self._started: list[int] = []

    def begin(self, **slurm: Any) -> int:
        """Send a run that prints a line, waits for its gate and prints another one; return its number."""
        run = next(self._numbers)
        self._login.script(run, WAITS)
        self._server.start(run, config=config(**slurm))
        return run

    def ready(self) -> tuple[int, int]:
        """Return a run that has printed its first line, and its job."""
        if not self._started:
            self._started = [self.begin() for _ in range(READY)]
        run = self._started.pop(0)
        self.until_started(run)
        return run, self._login.job(run)

    def forget(self) -> None:
        """Start new runs in advance: those that were started have ended."""
        self._started = []

    def until_started(self, run: int) -> None:
        """Wait until a run has printed its first line.

        Go is repeated, as by the real server: a daemon that was killed may have taken the first one.
        """
        repeated_at = time.monotonic()

        def has_started() -> bool:
            nonlocal repeated_at
            if time.monotonic() > repeated_at + GO_AGAIN_S:
                repeated_at = time.monotonic()
                self._server.go(run)
            return b"started" in self._server.output[run, 1]

        self._server.until(has_started, f"run {run} has started")


def config(**slurm: Any) -> dict[str, Any]:
    """Return a small configuration whose two ranks fit on one node."""
    return {**SMALL, "slurm": slurm, "launcher": {"timeout_s": 600}}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One cluster for all tests."""
    if reason := why_not():
        pytest.skip(reason)
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Redis for the login node of all tests, which no other test empties."""
    process, url = start_own_redis(tmp_path_factory.mktemp("redis-slurm"))
    yield url
    process.kill()
    process.wait()


def start_own_redis(directory: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a Redis; return its process and URL."""
    port = free_port()
    return start_redis(port, directory), f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="session")
def running_login(cluster: Cluster, own_redis: str) -> Iterator[LoginNode]:
    """A login node with a daemon; nothing of its jobs may be left at the end."""
    machine = LoginNode(cluster.home / "login", own_redis, cluster)
    machine.start_daemon()
    yield machine
    cluster.clear()
    left = machine.close()
    assert not left, f"left running: {left}"


@pytest.fixture
def login(running_login: LoginNode, cluster: Cluster) -> Iterator[LoginNode]:
    """The login node, with a daemon even if the last test has left none."""
    if running_login.daemons[-1].poll() is not None:
        running_login.start_daemon()
    yield running_login
    print(running_login.log.read_text()[-8000:])  # shown when the test fails
    print(cluster.log())


@pytest.fixture(scope="session")
def server(own_redis: str) -> Iterator[Server]:
    """A server that stores and acknowledges."""
    server = AttentiveServer(own_redis)
    yield server
    server.close()


@pytest.fixture(scope="session")
def jobs(running_login: LoginNode, server: Server) -> Jobs:
    """Runs of the login node."""
    return Jobs(running_login, server)
