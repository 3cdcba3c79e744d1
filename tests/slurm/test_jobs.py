"""Runs as jobs of a real Slurm: submitted, run on a compute node, shipped by the login node, ended in Slurm's words."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import SMALL
from tests.patience import wait_for
from tests.runners.conftest import Server
from tests.slurm.cluster import NODES, Cluster
from tests.slurm.conftest import LoginNode

WAITS = """
import os, pathlib, time
print("started on", os.environ["SLURMD_NODENAME"], "secret", os.environ.get("PARLAB_NODE_KEY"), flush=True)
while not (pathlib.Path(__file__).parent / "open").exists():
    time.sleep(0.05)
print("done", flush=True)
"""


def config(**slurm: Any) -> dict[str, Any]:
    """Return a small configuration whose two ranks fit on one node."""
    return {**SMALL, "slurm": slurm, "launcher": {"timeout_s": 600}}


def test_a_run_becomes_a_job_and_its_output_reaches_the_server(login: LoginNode, server: Server) -> None:
    login.script(1, WAITS)
    login.start_daemon()
    server.start(1, config=config())
    server.until(lambda: b"started" in server.output[1, 1], "the run has started")
    job = login.job(1)
    running = server.reports[1, 1][0]
    assert running.state == "running"
    described = running.environment["slurm"]
    assert (described["job"], described["partition"]) == (str(job), "debug")
    assert described["node"] in ("n1", "n2", "n3")
    assert "#SBATCH --nodes=1" in described["script"]
    login.open_gate()
    assert server.end_of(1).state == "finished"
    lines = server.lines(1)
    assert lines[-1] == b"done"
    assert b"secret None" in lines[0]
    server.until(lambda: not login.run_dir(1).exists, "the run is deleted on the login node")
    login.wait_for_state(job, "COMPLETED")
    server.until(lambda: not login.record(1).path.exists(), "so is its job")


def test_the_heartbeat_carries_the_pending_reason_and_the_place_in_the_queue(
    login: LoginNode, server: Server, cluster: Cluster
) -> None:
    occupy(cluster)
    for run in (1, 2):
        login.script(run, WAITS)
    login.start_daemon()
    server.start(1, config=config())
    first = login.job(1)
    server.start(2, config=config())
    second = login.job(2)

    def texts() -> dict[int, str]:
        return {held.run: held.waiting for held in server.heartbeats[-1].held} if server.heartbeats else {}

    server.until(lambda: "place 1 of 2 in partition debug" in texts().get(1, ""), f"the first waits: {texts}")
    assert f"Slurm job {first} is PENDING" in texts()[1]
    server.until(lambda: "place 2 of 2 in partition debug" in texts().get(2, ""), f"the second waits: {texts}")
    server.cancel(1)
    assert server.end_of(1).reason == "cancelled by ada"
    server.until(lambda: "place 1 of 1" in texts()[2], "the second one moves up")
    cluster.run("scancel", str(second))
    end = server.end_of(2)
    assert end.state == "cancelled"
    assert end.reason == f"Slurm job {second} ended as CANCELLED: it was cancelled in Slurm, outside of parlab"


def test_a_cancel_ends_the_job(login: LoginNode, server: Server) -> None:
    job = begin(login, server)
    server.cancel(1)
    end = server.end_of(1)
    assert (end.state, end.reason) == ("cancelled", "cancelled by ada")
    wait_for(lambda: login.job_state(job) in ("CANCELLED", "COMPLETED"), "the job has ended")


def test_a_job_that_is_cancelled_in_slurm_ends_in_its_words(login: LoginNode, server: Server, cluster: Cluster) -> None:
    job = begin(login, server)
    cluster.run("scancel", str(job))
    end = server.end_of(1)
    assert end.state == "cancelled"
    assert f"Slurm job {job} on n1 ended as CANCELLED: it was cancelled in Slurm" in end.reason
    assert len([report for report in server.reports[1, 1] if report.is_final]) == 1


def test_a_preempted_job_is_lost_so_that_the_next_attempt_may_start(
    login: LoginNode, server: Server, cluster: Cluster
) -> None:
    begin(login, server)
    occupy(cluster, "urgent")
    end = server.end_of(1)
    assert end.state == "lost"
    assert "ended as PREEMPTED: a job of higher priority took its nodes" in end.reason


def test_a_killed_supervisor_is_lost_and_its_ranks_end(login: LoginNode, server: Server) -> None:
    job = begin(login, server)
    login.supervisor(1).send_signal(signal.SIGKILL)
    end = server.end_of(1)
    assert end.state == "lost"
    assert f"Slurm job {job} on n1 ended as FAILED" in end.reason
    assert "its supervisor was killed" in end.reason
    wait_for(lambda: not login.processes(1), "no process of the run is left")


def test_a_daemon_that_was_killed_finds_its_jobs_again_by_name(
    login: LoginNode, server: Server, cluster: Cluster
) -> None:
    login.script(1, WAITS)
    daemon = login.start_daemon()
    server.start(1, config=config())
    job = login.job(1)
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    # As if it had been killed between sbatch and writing the id down.
    login.record(1).write(id=None)
    login.start_daemon()
    assert login.job(1) == job
    server.until(lambda: b"started" in server.output[1, 1], "the run has started")
    login.open_gate()
    assert server.end_of(1).state == "finished"
    names = cluster.run("squeue", "--noheader", "--states=all", "--format=%i|%j").splitlines()
    assert len([line for line in names if line.endswith(f"-{login.state.id}-1-1")]) == 1


def test_what_ended_while_the_daemon_was_away_is_seen_when_it_is_back(
    login: LoginNode, server: Server, cluster: Cluster
) -> None:
    job = begin(login, server)
    login.daemons[0].send_signal(signal.SIGKILL)
    login.daemons[0].wait()
    cluster.run("scancel", str(job))
    login.wait_for_state(job, "CANCELLED")
    login.start_daemon()
    assert "ended as CANCELLED" in server.end_of(1).reason


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ({"partition": "nowhere"}, "slurm.partition: the daemon of pool default may not use partition nowhere;"),
        ({"partition": "gone"}, "slurm.partition: Slurm has no partition gone; use one of debug, urgent"),
        ({"time_limit_s": 7200}, "slurm.time_limit_s: time_limit_s 7200 is above the limit of partition debug, 60 min"),
        ({"constraint": "a100"}, "slurm.constraint: Slurm refused the job: sbatch: error: "),
        ({"gres": "gpu:8"}, "slurm.gres: Slurm refused the job: sbatch: error: "),
    ],
)
def test_a_job_that_cannot_be_fails_with_field_value_and_remedy(
    login: LoginNode, server: Server, slurm: dict[str, Any], message: str
) -> None:
    login.partitions = "debug,gone"
    login.script(1, WAITS)
    login.start_daemon()
    server.start(1, config=config(**slurm))
    end = server.end_of(1)
    assert end.state == "failed"
    assert message in end.reason


def test_runs_wait_for_a_controller_that_is_down(login: LoginNode, server: Server, cluster: Cluster) -> None:
    login.script(1, WAITS)
    login.open_gate()
    cluster.stop_controller()
    try:
        login.start_daemon()
        server.start(1, config=config())
        expected = "not submitted yet, because Slurm does not answer"
        server.until(
            lambda: any(expected in held.waiting for beat in server.heartbeats[-1:] for held in beat.held),
            "the heartbeat has the reason",
        )
    finally:
        cluster.start_controller()
    assert server.end_of(1).state == "finished"


def test_a_run_fails_if_the_controller_stays_down(login: LoginNode, server: Server, cluster: Cluster) -> None:
    cluster.stop_controller()
    try:
        login.start_daemon(PARLAB_SLURM_GRACE_S="1")
        server.start(1, config=config())
        end = server.end_of(1)
    finally:
        cluster.start_controller()
    assert end.state == "failed"
    assert "Slurm did not answer for" in end.reason
    assert "start slurmctld and munged" in end.reason


def test_a_killed_slurmd_does_not_end_a_run(login: LoginNode, server: Server, cluster: Cluster) -> None:
    begin(login, server)
    cluster.kill_node("n1")
    cluster.start_node("n1")
    login.open_gate()
    assert server.end_of(1).state == "finished"
    assert server.lines(1)[-1] == b"done"


@pytest.fixture
def unshared(login: LoginNode, cluster: Cluster) -> Iterator[None]:
    """Hide the state directory of the login node from all compute nodes."""
    hidden = shlex.quote(str(login.state.root))
    before = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {hidden} && exec "$0" "$@"')
    for node in NODES:
        cluster.stop_node(node)
        cluster.start_node(node, *before)
    cluster.wait_until_idle()
    yield
    for node in NODES:
        cluster.stop_node(node)
        cluster.start_node(node)
    cluster.wait_until_idle()


@pytest.mark.usefixtures("unshared")
def test_a_state_directory_that_is_not_shared_is_reported(login: LoginNode, server: Server) -> None:
    login.script(1, WAITS)
    login.start_daemon()
    server.start(1, config=config())
    end = server.end_of(1)
    assert end.state == "failed"
    assert f"a node does not see {login.run_dir(1).path}; start the daemon with a --state-dir" in end.reason


@pytest.mark.slow
def test_a_job_beyond_its_time_limit_fails_in_slurms_words(login: LoginNode, server: Server) -> None:
    begin(login, server, time_limit_s=60)
    end = server.end_of(1, within_s=300)
    assert end.state == "failed"
    assert "ended as TIMEOUT: its time limit 00:01:00 is over; raise slurm.time_limit_s" in end.reason


def begin(login: LoginNode, server: Server, **slurm: Any) -> int:
    """Start run 1 on the first node, wait until it has printed something, and return the id of its job."""
    login.script(1, WAITS)
    login.start_daemon()
    server.start(1, config=config(**slurm))
    server.until(lambda: b"started" in server.output[1, 1], "the run has started")
    return login.job(1)


def occupy(cluster: Cluster, partition: str = "debug") -> None:
    """Fill all nodes with a job of somebody else."""
    cluster.run(
        *("sbatch", f"--partition={partition}", "--exclusive", "--nodes=3", "--output=/dev/null", "--chdir=/"),
        "--wrap=sleep 600",
    )
