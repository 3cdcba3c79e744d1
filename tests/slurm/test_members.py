"""A run on three nodes that Slurm gives: one job, one member per node, a real engine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import wait_for
from tests.runners.nodes import Nodes
from tests.runners.test_nodes import events, over_three, states
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import WAITS, LoginNode


class JobMembers(Nodes):
    """The members of one job, behind the daemon of the login node."""

    def __init__(self, root: Path, login: LoginNode) -> None:
        super().__init__(root, login.environment["REDIS_URL"], 0)
        self.machines = [login] * 3


@pytest.fixture
def members(
    cluster: Cluster, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[JobMembers]:
    """Three members behind a login node with a daemon."""
    login = LoginNode(cluster.home / tmp_path.name, redis_url, cluster)
    if request.param == "engine":
        login.environment["TEST_SCRIPTS"] = ""
    monkeypatch.setattr("tests.runners.nodes.node_name", lambda node_rank: login.name)
    members = JobMembers(tmp_path, login)
    login.start_daemon()
    yield members
    members.connection.release()
    print(login.log.read_text()[-8000:])  # shown when the test fails
    login.clear()
    assert not login.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torchrun", "srun"])
@pytest.mark.parametrize("members", ["engine"], indirect=True)
def test_a_pipeline_trains_over_three_nodes_of_one_job(members: JobMembers, cluster: Cluster, kind: str) -> None:
    members.start(over_three(launcher={"kind": kind}))
    assert states(members.ends()) == ["finished"] * 3
    nodes = set()
    for node_rank in range(3):
        assert states(members.reports[node_rank]) == ["prepared", "running", "finished"]
        assert {step["rank"] for step in events(members.output[node_rank], "step")} == {node_rank}
        described = members.reports[node_rank][1].environment["slurm"]
        assert described["nodes"] == "n[1-3]"
        nodes.add(described["node"])
    assert nodes == {"n1", "n2", "n3"}
    name = f"parlab-{members.machines[0].state.id}-1-1"
    assert len(cluster.run("squeue", "--noheader", "--states=all", f"--name={name}").splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("members", ["script"], indirect=True)
def test_a_killed_supervisor_ends_the_job_and_is_the_cause(members: JobMembers) -> None:
    login = members.machines[0]
    login.script(1, WAITS)
    members.start(over_three())
    for node_rank in range(3):
        members.says(node_rank, b"started on")
    victim = wait_for(login.state.find(1, 1, 1).supervisor, "supervisor of node 1")
    victim.send_signal(signal.SIGKILL)
    ends = members.ends()
    assert (ends[1].state, ends[1].is_consequence) == ("lost", False)
    assert "its supervisor was killed" in ends[1].reason
    assert [end.is_consequence for end in ends] == [True, False, True]
    wait_for(lambda: not login.processes(1), "no process of the run is left")


@pytest.mark.slow
@pytest.mark.parametrize("members", ["script"], indirect=True)
def test_the_ranks_of_a_broken_job_end_also_where_slurmd_is_away(members: JobMembers, cluster: Cluster) -> None:
    login = members.machines[0]
    login.script(1, WAITS)
    members.start(over_three())
    for node_rank in range(3):
        members.says(node_rank, b"started on")
    away = members.reports[2][1].environment["slurm"]["node"]
    victim = wait_for(login.state.find(1, 1, 1).supervisor, "supervisor of node 1")
    cluster.kill_node(away)
    try:
        victim.send_signal(signal.SIGKILL)
        wait_for(lambda: not login.processes(1), "no process of the run is left")
    finally:
        cluster.start_node(away)
    ends = members.ends()
    assert [(end.state, end.is_consequence) for end in ends] == [("lost", True), ("lost", False), ("lost", True)]
