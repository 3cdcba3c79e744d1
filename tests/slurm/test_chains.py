"""Chains in a real Slurm of three nodes: its limit, its signal, preemption, and the next job that waits already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from parlab.fleet import services
from parlab.lab.models import Config, Run
from runners.wire.protocol import RunState
from tests.chains.slurm_world import SlurmWorld, login_node, preempt
from tests.chains.world import chain_data, check_one_curve, states
from tests.fleet.conftest import broker
from tests.fleet.workers import Workers
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import LoginNode

__all__ = ["broker"]

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
    services.cancel(run=run)
    world.until_ended(run)
    world.until(lambda: not world.login.jobs(), "no job is left")
