"""Chains over real daemons: limits, lost nodes and a person, through the whole server to one curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.fleet import services
from parlab.lab.models import Config, Node, Run
from parlab.publishing.figures.chains import Joined
from runners.wire.protocol import RunState
from tests.chains.world import World, chain_data, check_one_curve, kill_all_of, machine_of, states, two_nodes
from tests.conftest import SMALL
from tests.fleet.conftest import broker
from tests.fleet.workers import Workers
from tests.runners.conftest import NodeMachine

__all__ = ["broker"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

STEPS = 1000
"""Steps of our own engine: more than it makes until a notice is seen, on any machine."""


@pytest.fixture
def machines(tmp_path: Path, broker: str) -> Iterator[list[NodeMachine]]:
    """Two nodes that allow the script; both see the directory of its checkpoints."""
    machines = two_nodes(tmp_path, broker)
    yield machines
    left = [name for machine in machines for name in machine.close()]
    for machine in machines:
        print(machine.log.read_text()[-3000:])  # shown when the test fails
    assert not left, f"left running: {left}"


@pytest.fixture
def world(machines: list[NodeMachine], broker: str) -> Iterator[World]:
    workers = Workers(broker)
    workers.until(lambda: Node.objects.count() == len(machines), "all nodes are registered")
    yield World(workers, machines)
    workers.connection.release()


def launched(
    world: World, make_config: Callable[..., Config], user: User, *, steps: int | str, every: int = 0, **launcher: int
) -> Run:
    """Launch a chain of steps of 20 ms."""
    data = chain_data(steps, 0.02, every, launcher=launcher, directory=world.checkpoints)
    (run,) = services.launch(config=make_config(data=data), user=user).created
    return run


def test_a_training_over_limits_is_one_run_with_one_curve(
    world: World, make_config: Callable[..., Config], user: User, page: Client
) -> None:
    run = launched(world, make_config, user, steps=250, timeout_s=4, warn_before_s=2, grace_s=2)
    chain = world.until_ended(run)
    assert states(run) == [*[RunState.CHECKPOINTED] * (len(chain.attempts) - 1), RunState.FINISHED]
    assert len(chain.attempts) >= 3
    assert run.attempts.first().reason == "its ranks wrote a checkpoint ahead of launcher.timeout_s 4 s"  # type: ignore[union-attr]
    assert (run.state, chain.steps, chain.repeated) == ("finished", 250, 0)
    assert world.at_once == 1, "two attempts were alive at once"
    check_one_curve(run, 250)
    text = page.get(run.get_absolute_url()).content.decode()
    assert f"{len(chain.attempts)} attempts in" in text
    assert "250 steps, none made again." in text
    answer = page.get(f"/api/experiments/{run.experiment.slug}/runs/{run.number}/").json()
    assert [each["state"] for each in answer["chain"]["attempts"]][-1] == "finished"


def test_a_killed_node_and_a_spot_notice_cost_only_the_steps_since_the_last_checkpoint(
    world: World,
    machines: list[NodeMachine],
    make_config: Callable[..., Config],
    user: User,
    settings: Any,
) -> None:
    settings.BAD_NODE_ATTEMPTS = 0  # which of the two nodes takes an attempt is left to chance
    run = launched(world, make_config, user, steps=1500, every=10, timeout_s=600, max_attempts=2)
    for number in (1, 2, 3):
        world.until_attempt(run, number)
        machine = machine_of(run, machines)
        kill_all_of(machine)
        machine.start_daemon()
    world.until_attempt(run, 4)
    machine = machine_of(run, machines)
    notice = machine.state_dir.with_name("notice")
    notice.write_text("terminate in 2 minutes")
    world.until(lambda: states(run)[3] == RunState.PREEMPTED, "the fourth attempt is preempted")
    world.until_attempt(run, 5)
    assert machine_of(run, machines) is not machine, "the node that is taken away takes no attempt"
    notice.unlink()
    chain = world.until_ended(run)
    assert states(run) == [*[RunState.LOST] * 3, RunState.PREEMPTED, RunState.FINISHED]
    assert "terminate in 2 minutes; its ranks wrote a checkpoint" in run.attempts.get(number=4).reason
    assert (chain.steps, world.at_once) == (1500, 1)
    assert chain.repeated <= 3 * 40, "steps since the last checkpoint, and until the node was killed"
    check_one_curve(run, 1500)


def test_a_run_over_two_nodes_ends_and_goes_on_together(
    world: World, machines: list[NodeMachine], make_config: Callable[..., Config], user: User
) -> None:
    launcher = {"timeout_s": 8, "warn_before_s": 4, "grace_s": 3}
    data = chain_data(
        100_000, 0.02, launcher=launcher, cluster={"nodes": 2, "gpus_per_node": 1}, directory=world.checkpoints
    )
    data |= {"train": {"global_batch_size": 2}, "parallel": {"engine": "command", "data_parallel_size": 2}}
    (run,) = services.launch(config=make_config(data=data), user=user).created
    world.until_attempt(run, 2)
    first = run.attempts.get(number=1)
    assert first.state == RunState.CHECKPOINTED
    assert [member.state for member in first.members.all()] == ["checkpointed", "checkpointed"]
    notice = machines[1].state_dir.with_name("notice")
    notice.write_text("gone in 2 minutes")
    world.until(lambda: states(run)[1] == RunState.PREEMPTED, "the second attempt is preempted", 60)
    assert run.attempts.get(number=2).reason.startswith("node n1: its node is taken away: gone in 2 minutes")
    notice.unlink()
    world.until_attempt(run, 3)
    services.cancel(run=run)
    world.until_ended(run)
    assert run.state == "cancelled"
    assert run.reason == "cancelled by a person; its ranks wrote a checkpoint"


def test_a_person_ends_a_chain_and_a_crash_loop_ends_itself(
    world: World, make_config: Callable[..., Config], user: User, page: Client
) -> None:
    run = launched(world, make_config, user, steps=100_000, timeout_s=4, warn_before_s=3, grace_s=2)
    world.until_attempt(run, 2)
    number = run.attempt_number
    address = f"/api/experiments/{run.experiment.slug}/runs/{run.number}/end-chain/"
    assert page.post(address).status_code == 200
    world.until_ended(run)
    assert (run.state, run.attempt_number) == ("checkpointed", number)
    assert run.reason.startswith(f"the chain was ended by a person after attempt {number}: its ranks wrote")
    assert page.post(address).json()["errors"][0]["message"] == f"run #{run.number} has already ended: checkpointed"
    crashing = launched(world, make_config, user, steps="not a number", timeout_s=600, chain_max_stalled=2)
    world.until_ended(crashing)
    assert (crashing.state, crashing.attempt_number) == ("failed", 2)
    assert crashing.reason.startswith("no new step in 2 attempts in a row (launcher.chain_max_stalled 2)")
    assert "ValueError: invalid literal for int()" in crashing.reason


def test_a_training_of_our_own_engine_has_the_losses_of_one_that_was_never_stopped(
    world: World, machines: list[NodeMachine], make_config: Callable[..., Config], user: User
) -> None:
    length = {"train": {**SMALL["train"], "iterations": STEPS}}
    limit = {"timeout_s": 600}
    kept = {"every_steps": 100, "directory": world.checkpoints}
    launcher = {"chain": True, "grace_s": 60, **limit}
    data = {**SMALL, **length, "launcher": launcher, "checkpoint": kept, "cluster": {"device": "cpu"}}
    (chained,) = services.launch(config=make_config(data=data), user=user).created
    world.until_attempt(chained, 1, 300)
    notice = machine_of(chained, machines).state_dir.with_name("notice")
    notice.write_text("terminate in 2 minutes")
    chain = world.until_ended(chained, 600)
    notice.unlink()
    assert states(chained) == [RunState.PREEMPTED, RunState.FINISHED], chained.reason
    assert (chain.steps, chain.repeated) == (STEPS, 0)

    whole = {**SMALL, **length, "launcher": limit, "cluster": {"device": "cpu"}}
    (alone,) = services.launch(config=make_config(data=whole), user=user).created
    world.until(lambda: Run.objects.get(pk=alone.pk).is_final, "the other one has ended", 600)
    alone.refresh_from_db()
    assert losses(chained) == losses(alone)


def losses(run: Run) -> list[float]:
    """Return the loss of every step of a run, of all its attempts."""
    ranks = Joined(run.current_attempt()).read_ranks("loss")
    return [value for columns in ranks.values() for value in columns.values.tolist()]
