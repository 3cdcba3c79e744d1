"""A real Slurm cluster of three nodes, and a daemon on its login node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.slurm.state import JobRecord, JobStateDir
from tests.patience import wait_for
from tests.runners.conftest import NodeMachine, Server
from tests.slurm.cluster import Cluster
from tests.slurm.install import why_not

PARTITIONS = "debug,urgent"


class LoginNode(NodeMachine):
    """A machine whose daemon submits jobs; the compute nodes see its state directory."""

    def __init__(self, root: Path, url: str, cluster: Cluster) -> None:
        super().__init__(root, url)
        self.cluster = cluster
        self.partitions = PARTITIONS
        self.environment |= {"SLURM_CONF": str(cluster.conf), "PATH": cluster.environment["PATH"]}

    @property
    def state(self) -> JobStateDir:
        return JobStateDir(self.state_dir)

    def arguments(self, *more: str) -> list[str]:
        return super().arguments("--slurm", "--partition", self.partitions, *more)

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


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[Cluster]:
    """One cluster for all tests."""
    if reason := why_not():
        pytest.skip(reason)
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, without jobs of earlier tests."""
    yield running_cluster
    running_cluster.clear()


@pytest.fixture
def login(tmp_path: Path, redis_url: str, cluster: Cluster) -> Iterator[LoginNode]:
    """A login node without a daemon yet; nothing of its jobs may be left at the end."""
    machine = LoginNode(tmp_path, redis_url, cluster)
    yield machine
    cluster.clear()
    left = machine.close()
    if machine.log.exists():
        print(machine.log.read_text()[-8000:])  # shown when the test fails
        print(cluster.log())
    assert not left, f"left running: {left}"


@pytest.fixture
def server(redis_url: str) -> Iterator[Server]:
    """A server that stores and acknowledges when the test lets it."""
    server = Server(redis_url)
    yield server
    server.close()
