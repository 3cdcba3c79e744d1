"""Chains in a real Slurm of three nodes: its limit, its signal, preemption, and the next job that waits already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from parlab.fleet import services
from parlab.fleet.excluded_nodes import node_leave_out
from parlab.lab.models import Config, Node, Run
from parlab.publishing.figures.chains import Joined
from runners.wire.protocol import RunState
from tests.chains.slurm_world import SlurmWorld, login_node, preempt
from tests.chains.world import chain_data, check_one_curve, states
from tests.conftest import SMALL
from tests.engines.checkpointed import Ranks
from tests.fleet.conftest import broker
from tests.fleet.workers import Workers
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import Jobs, LoginNode

__all__ = ["broker"]

PATIENT_S = 300.0
"""On a busy machine ranks may need several limits to begin."""

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def login(cluster: Cluster, broker: str, tmp_path: Path) -> Iterator[LoginNode]:
    """A login node of pool hpc that allows the script; all nodes see the directory of its checkpoints."""
    machine = login_node(cluster.home / tmp_path.name, broker, cluster)
    machine.start_daemon()
    yield machine
    print(machine.log.read_text()[-8000:])  # shown when the test fails
    print(cluster.log())
    machine.clear()
    assert not machine.close()


@pytest.fixture
def world(login: LoginNode, broker: str) -> Iterator[SlurmWorld]:
    workers = Workers(broker)
    yield SlurmWorld(workers, login)
    workers.connection.release()


def launched(make_config: Callable[..., Config], user: User, data: dict[str, Any]) -> Run:
    (run,) = services.launch(config=make_config(data=data), user=user).created
    return run


def test_a_training_over_limits_a_preemption_and_a_requeue_is_one_run(
    world: SlurmWorld, cluster: Cluster, make_config: Callable[..., Config], user: User
) -> None:
    limits = {"timeout_s": 12, "warn_before_s": 4, "grace_s": 5}
    data = chain_data(900, 0.02, 10, launcher=limits, cluster={"pool": "hpc"})
    run = launched(make_config, user, data)
    world.until_attempt(run, 2)
    assert states(run)[0] == RunState.CHECKPOINTED
    other = preempt(world, run)
    world.until_attempt(run, 3)
    cluster.clear(other)
    assert states(run)[1] == RunState.PREEMPTED
    assert "ended as PREEMPTED: a job of higher priority took its nodes" in run.attempts.get(number=2).reason
    job = run.current_attempt().environment["slurm"]["job"]
    cluster.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    cluster.run("scontrol", "requeue", job)
    world.until_attempt(run, 4)
    assert states(run)[2] == RunState.PREEMPTED
    assert f"Slurm job {job} was requeued (" in run.attempts.get(number=3).reason
    chain = world.until_ended(run)
    assert states(run)[-1] == RunState.FINISHED
    assert world.ahead >= set(range(2, run.attempt_number + 1)), "each next job waited before the end of the one before"
    assert (chain.steps, world.at_once) == (900, 1)
    check_one_curve(run, 900)
    world.until(lambda: not world.login.jobs(), "the job that waited for a further attempt is gone")


def test_slurms_signal_warns_the_ranks_ahead_of_its_limit(
    world: SlurmWorld, make_config: Callable[..., Config], user: User
) -> None:
    limits = {"timeout_s": 3600, "warn_before_s": 45}
    data = chain_data(100_000, 0.05, launcher=limits, cluster={"pool": "hpc"}, slurm={"time_limit_s": 60})
    run = launched(make_config, user, data)
    world.until_attempt(run, 2)
    first = run.attempts.get(number=1)
    assert (first.state, first.exit_code) == ("checkpointed", 85)
    assert first.reason == "its ranks wrote a checkpoint ahead of the time limit of its Slurm job"
    services.end_chain(run=run)
    world.until(lambda: world.login.state.ahead() == {}, "a person has ended the chain: its next job is gone")
    with suppress(ValueError):  # on a busy machine the job has met its limit
        services.cancel(run=run)
    world.until_ended(run)
    world.until(lambda: not world.login.jobs(), "no job is left")


def engine_data(iterations: int, launcher: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Return the configuration of a chain of two ranks of engine pipeline under torchrun."""
    return {
        **SMALL,
        "train": {**SMALL["train"], "iterations": iterations},
        "launcher": {"chain": True, "grace_s": 10, **launcher},
        "checkpoint": {"every_steps": 50},
        "cluster": {"pool": "hpc", "device": "cpu"},
        **sections,
    }


def test_a_chain_of_our_own_engine_over_limits_a_preemption_and_a_requeue_has_the_losses_of_one_training(
    world: SlurmWorld, cluster: Cluster, make_config: Callable[..., Config], user: User, tmp_path: Path
) -> None:
    data = engine_data(1_000_000, {"timeout_s": 30, "warn_before_s": 6, "chain_max_stalled": 10})
    run = launched(make_config, user, data)
    number = after_a_limit(world, run, 1)
    other = preempt(world, run)
    world.until_attempt(run, number + 1, PATIENT_S, steps=0)
    cluster.clear(other)
    job = run.current_attempt().environment["slurm"]["job"]
    cluster.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    cluster.run("scontrol", "requeue", job)
    number = after_a_limit(world, run, run.attempt_number + 1)
    assert world.ahead >= set(range(2, number + 1)), "each next job waited before the end of the one before"
    services.end_chain(run=run)
    services.cancel(run=run)
    chain = world.until_ended(run)
    ends = states(run)
    assert (ends.count(RunState.PREEMPTED), ends[-1]) == (2, RunState.CANCELLED)
    assert set(ends[:-1]) == {RunState.CHECKPOINTED, RunState.PREEMPTED}
    assert (chain.repeated, world.at_once) == (0, 1)
    (curve,) = Joined(run.current_attempt()).read_ranks("loss").values()  # of the last stage
    whole = data | {"train": {**data["train"], "iterations": chain.steps}, "checkpoint": {}, "launcher": {}}
    with Ranks(whole, tmp_path / "none") as ranks:
        assert set(ranks.ended()) == {0}, ranks.text
        assert dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) == ranks.losses()


def after_a_limit(world: SlurmWorld, run: Run, first: int) -> int:
    """Serve until an attempt after the first one makes steps, all between them having met their limit.

    On a busy machine an attempt may meet it before its ranks have started.
    """
    world.until_attempt(run, first + 1, PATIENT_S, steps=0)
    assert set(states(run)[first - 1 : -1]) <= {RunState.CHECKPOINTED, RunState.TIME_LIMIT}
    return run.attempt_number


def test_a_checkpoint_after_slurms_limit_counts_also_where_slurm_ended_the_launcher(
    world: SlurmWorld, make_config: Callable[..., Config], user: User
) -> None:
    data = engine_data(10_000_000, {"timeout_s": 3600}, slurm={"time_limit_s": 60})
    run = launched(make_config, user, data)
    world.until(lambda: states(run)[0] not in ("queued", "dispatched", "running"), "the limit", 180)
    first = run.attempts.get(number=1)
    assert first.state == RunState.CHECKPOINTED, first.reason
    assert "ended as TIMEOUT: its time limit 00:01:00 is over" in first.reason
    assert first.reason.endswith("; its ranks wrote a checkpoint")
    services.end_chain(run=run)
    services.cancel(run=run)
    world.until_ended(run)


def test_a_node_that_dies_is_lost_in_slurms_words_and_the_chain_goes_on_elsewhere(
    world: SlurmWorld, cluster: Cluster, make_config: Callable[..., Config], user: User, jobs: Jobs
) -> None:
    jobs.forget()  # those that wait on that node end with it
    run = launched(make_config, user, chain_data(100_000, 0.02, 10, cluster={"pool": "hpc"}))
    world.until_attempt(run, 1)
    node = run.current_attempt().environment["slurm"]["node"]
    job = run.current_attempt().environment["slurm"]["job"]
    with cluster.impatient():
        cluster.kill_machine(node)
        try:
            world.until_attempt(run, 2)
        finally:
            cluster.start_node(node)
    first, second = run.attempts.get(number=1), run.attempts.get(number=2)
    assert first.state == RunState.LOST
    assert first.reason.startswith(f"Slurm job {job} on {node} ended as NODE_FAIL: one of its nodes failed")
    assert second.environment["slurm"]["node"] != node
    services.end_chain(run=run)
    services.cancel(run=run)
    world.until_ended(run)
    world.until(lambda: not world.login.jobs(), "no job is left")
    cluster.wait_until_up(node)


def test_a_node_that_is_left_out_does_not_run_the_attempt_whose_job_waited_already(
    world: SlurmWorld, cluster: Cluster, make_config: Callable[..., Config], user: User
) -> None:
    fill = ("sbatch", "--parsable", "--exclusive", "--output=/dev/null", "--chdir=/", "--wrap=sleep 600")
    others = [cluster.run(*fill, f"--nodelist={node}") for node in ("n2", "n3")]
    world.until(lambda: cluster.run("squeue", "--noheader", "--states=RUNNING").count("\n") == 1, "n1 alone is free")
    limits = {"timeout_s": 15, "warn_before_s": 8, "grace_s": 5}
    run = launched(make_config, user, chain_data(100_000, 0.02, launcher=limits, cluster={"pool": "hpc"}))
    world.until_attempt(run, 1)
    world.until(lambda: 2 in world.ahead, "the next job waits already")
    assert node_leave_out(node=Node.objects.get(), host="n1", reason="a cable", by="ada")
    world.until(lambda: states(run)[0] == RunState.CHECKPOINTED, "the limit")
    world.until(lambda: "PENDING" in services.waiting_reason(Run.objects.get(pk=run.pk)), "no other node is free")
    cluster.clear(*others)
    second = world.until_attempt(run, 2)
    assert second.environment["slurm"]["node"] in ("n2", "n3")
    services.end_chain(run=run)
    services.cancel(run=run)
    world.until_ended(run)
    world.until(lambda: not world.login.jobs(), "no job is left")
