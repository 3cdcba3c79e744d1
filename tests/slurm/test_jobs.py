"""Runs as jobs of a real Slurm: submitted, run on a compute node, shipped, ended in Slurm's words."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from runners.node.jobs.pool import Pace
from runners.node.jobs.state import JobStateDir
from runners.node.keeper import Limits
from runners.node.slurm import cluster as commands
from runners.node.slurm.keeper import SlurmKeeper
from runners.node.slurm.pool import Pool
from runners.supervisor.spool import final_report
from runners.wire.protocol import RunSpec
from tests.patience import PATIENCE_S, wait_for
from tests.runners.conftest import NODE, ROOT, Server
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import Jobs, LoginNode, config


def test_a_run_becomes_a_job_and_its_output_reaches_the_server(login: LoginNode, server: Server, jobs: Jobs) -> None:
    run, job = jobs.ready()
    running = server.reports[run, 1][0]
    assert running.state == "running"
    described = running.environment["slurm"]
    assert (described["job"], described["partition"]) == (str(job), "debug")
    assert described["node"] in ("n1", "n2", "n3")
    assert "#SBATCH --nodes=1" in described["script"]
    login.open(run)
    assert server.end_of(run).state == "finished"
    lines = server.lines(run)
    assert lines[-1] == b"done"
    assert b"secret None" in lines[0]
    server.until(lambda: not login.run_dir(run).exists, "the run is deleted on the login node")
    login.wait_for_state(job, "COMPLETED")
    server.until(lambda: not login.record(run).path.exists(), "so is its job")


def test_the_heartbeat_carries_the_pending_reason_and_the_place_in_the_queue(
    login: LoginNode, server: Server, cluster: Cluster, jobs: Jobs
) -> None:
    other = occupy(cluster, "busy")
    runs = [jobs.begin(partition="busy")]
    numbers = [login.job(runs[0])]
    runs.append(jobs.begin(partition="busy"))
    numbers.append(login.job(runs[1]))
    server.until(lambda: "place 1 of 2 in partition busy" in waiting(server, runs[0]), "the first waits")
    assert f"Slurm job {numbers[0]} is PENDING" in waiting(server, runs[0])
    server.until(lambda: "place 2 of 2 in partition busy" in waiting(server, runs[1]), "the second waits")
    server.cancel(runs[0])
    assert server.end_of(runs[0]).reason == "cancelled by ada"
    server.until(lambda: "place 1 of 1" in waiting(server, runs[1]), "the second one moves up")
    cluster.run("scancel", str(numbers[1]))
    end = server.end_of(runs[1])
    assert end.state == "cancelled"
    assert end.reason == f"Slurm job {numbers[1]} ended as CANCELLED: it was cancelled in Slurm, outside of parlab"
    cluster.clear(other)


def test_a_cancel_ends_the_job(login: LoginNode, server: Server, jobs: Jobs) -> None:
    run, job = jobs.ready()
    server.cancel(run)
    end = server.end_of(run)
    assert (end.state, end.reason) == ("cancelled", "cancelled by ada")
    wait_for(lambda: login.job_state(job) in ("CANCELLED", "COMPLETED"), "the job has ended")


def test_a_job_that_is_cancelled_in_slurm_ends_in_its_words(
    login: LoginNode, server: Server, cluster: Cluster, jobs: Jobs
) -> None:
    run, job = jobs.ready()
    cluster.run("scancel", str(job))
    end = server.end_of(run)
    assert end.state == "cancelled"
    assert f"Slurm job {job} on n1 ended as CANCELLED: it was cancelled in Slurm" in end.reason
    assert len([report for report in server.reports[run, 1] if report.is_final]) == 1


def test_a_preempted_job_is_preempted_so_that_the_next_attempt_may_start(
    server: Server, cluster: Cluster, jobs: Jobs
) -> None:
    run = jobs.begin(partition="busy")
    jobs.until_started(run)
    other = occupy(cluster, "urgent")
    end = server.end_of(run)
    assert end.state == "preempted"
    assert "ended as PREEMPTED: a job of higher priority took its nodes" in end.reason
    cluster.clear(other)


def test_a_requeued_job_is_preempted_and_does_not_start_again(
    login: LoginNode, server: Server, cluster: Cluster, jobs: Jobs
) -> None:
    run, job = jobs.ready()
    cluster.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    cluster.run("scontrol", "requeue", str(job))
    end = server.end_of(run)
    assert end.state == "preempted"
    assert f"Slurm job {job} was requeued (" in end.reason
    wait_for(lambda: login.job_state(job) == "CANCELLED" and not login.processes(run), "it does not start again")
    assert len([line for line in server.lines(run) if line.startswith(b"started")]) == 1


def test_a_killed_supervisor_is_lost_and_its_ranks_end(login: LoginNode, server: Server, jobs: Jobs) -> None:
    run, job = jobs.ready()
    node = server.reports[run, 1][0].environment["slurm"]["node"]
    login.supervisor(run).send_signal(signal.SIGKILL)
    end = server.end_of(run)
    assert end.state == "lost"
    assert f"Slurm job {job} on {node} ended as FAILED" in end.reason
    assert "its supervisor was killed" in end.reason
    wait_for(lambda: not login.processes(run), "no process of the run is left")


@pytest.mark.slow
def test_a_daemon_that_was_killed_finds_its_jobs_again_by_name(
    login: LoginNode, server: Server, cluster: Cluster, jobs: Jobs
) -> None:
    run, job = jobs.ready()
    ended_run, ended_job = jobs.ready()
    login.kill_daemon()
    # As if it had been killed between sbatch and writing the id down.
    login.record(run).write(id=None)
    cluster.run("scancel", str(ended_job))
    login.wait_for_state(ended_job, "CANCELLED")
    login.start_daemon()
    assert login.job(run) == job
    assert "ended as CANCELLED" in server.end_of(ended_run).reason
    login.open(run)
    assert server.end_of(run).state == "finished"
    names = cluster.run("squeue", "--noheader", "--states=all", "--format=%i|%j").splitlines()
    assert len([line for line in names if line.endswith(f"-{login.state.id}-{run}-1")]) == 1


@pytest.mark.slow
def test_stop_all_cancels_all_jobs_also_those_whose_id_is_not_recorded(
    login: LoginNode, server: Server, jobs: Jobs
) -> None:
    run, job = jobs.ready()
    login.kill_daemon()
    login.record(run).write(id=None)
    command = [sys.executable, "-m", "runners.node.daemon", "stop-all", "--slurm", "--state-dir", str(login.state_dir)]
    done = subprocess.run(command, cwd=ROOT, env=login.environment, capture_output=True, text=True, timeout=PATIENCE_S)
    jobs.forget()
    assert done.returncode == 0, done.stderr
    assert login.job_state(job) == "CANCELLED"
    login.start_daemon()
    end = server.end_of(run)
    assert (end.state, end.reason) == ("cancelled", "the node's daemon was stopped")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"partition": "nowhere"}, "slurm.partition: the daemon of pool default may not use partition nowhere;"),
    ({"partition": "gone"}, "slurm.partition: Slurm has no partition gone; use one of apart, busy, debug, urgent"),
    ({"time_limit_s": 7200}, "slurm.time_limit_s: time_limit_s 7200 is above the limit of partition debug, 60 min"),
    ({"constraint": "a100"}, "slurm.constraint: Slurm refused the job: sbatch: error: "),
    ({"gres": "gpu:8"}, "slurm.gres: Slurm refused the job: sbatch: error: "),
    ({"partition": "apart"}, "; start the daemon with a --state-dir on a file system that the login node and all"),
]


def test_a_job_that_cannot_be_fails_with_field_value_and_remedy(login: LoginNode, server: Server, jobs: Jobs) -> None:
    runs = [jobs.begin(**slurm) for slurm, _ in WRONG]
    for run, (slurm, message) in zip(runs, WRONG, strict=True):
        end = server.end_of(run)
        assert end.state == "failed", slurm
        assert message in end.reason
    assert f"a node does not see {login.run_dir(runs[-1]).path}; " in server.end_of(runs[-1]).reason


@pytest.mark.slow
def test_runs_wait_for_a_controller_that_is_down_and_fail_if_it_stays_down(
    login: LoginNode, server: Server, cluster: Cluster, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.stop_controller()
    try:
        run = jobs.begin()
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        end = end_with_impatient_keeper(JobStateDir(login.state_dir.with_name("impatient")))
        expected = "not submitted yet, because Slurm does not answer"
        server.until(lambda: expected in waiting(server, run), "the heartbeat has the reason")
    finally:
        cluster.start_controller()
    assert "Slurm did not answer for" in end
    assert "start slurmctld and munged" in end
    jobs.until_started(run)
    login.open(run)
    assert server.end_of(run).state == "finished"


def end_with_impatient_keeper(state: JobStateDir) -> str:
    """Submit a run to a Slurm that does not answer, without patience; return how it ended."""
    pool = Pool(("debug",), Pace(away_grace_s=0, poll_s=0))
    keeper = SlurmKeeper(
        state, hardware={}, limits=Limits(), command=lambda *_: [], pool=pool, slurm=commands.Slurm(command_s=30)
    )
    keeper.start(RunSpec(run=1, attempt=1, node=NODE, config=config()))
    run = state.find(1, 1)

    def ended() -> Any:
        keeper.watch()
        return final_report(run.spool)

    report = wait_for(ended, "the run has failed")
    assert report.state == "failed"
    return str(report.reason)


@pytest.mark.slow
def test_a_killed_slurmd_does_not_end_a_run(login: LoginNode, server: Server, cluster: Cluster, jobs: Jobs) -> None:
    run, _ = jobs.ready()
    cluster.kill_node("n1")
    cluster.start_node("n1")
    login.open(run)
    assert server.end_of(run).state == "finished"
    assert server.lines(run)[-1] == b"done"


@pytest.mark.slow
def test_a_job_beyond_its_time_limit_ends_in_slurms_words(server: Server, jobs: Jobs) -> None:
    run = jobs.begin(time_limit_s=60)
    end = server.end_of(run, within_s=300)
    assert end.state == "time-limit"
    assert "ended as TIMEOUT: its time limit 00:01:00 is over; raise slurm.time_limit_s" in end.reason


def waiting(server: Server, run: int) -> str:
    """Return why a run waits on its node, from the last heartbeat."""
    held = server.heartbeats[-1].held if server.heartbeats else []
    return next((each.waiting for each in held if each.run == run), "")


def occupy(cluster: Cluster, partition: str) -> int:
    """Fill node n3 with a job of another user; return its number."""
    options = (f"--partition={partition}", "--nodelist=n3", "--exclusive", "--output=/dev/null", "--chdir=/")
    job = int(cluster.run("sbatch", "--parsable", *options, "--wrap=sleep 600"))
    wait_for(lambda: cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%T") == "RUNNING", "n3 is taken")
    return job
