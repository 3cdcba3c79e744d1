"""One run over three nodes with the real server, real daemons and a real engine: from launch to its end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from parlab.fleet import services
from parlab.lab.models import Attempt, Config, Member, Node
from parlab.series.models import SeriesChunk
from runners.protocol import RunState
from tests.conftest import SMALL
from tests.fleet.workers import Workers
from tests.patience import wait_for
from tests.runners.conftest import NodeMachine

pytestmark = pytest.mark.django_db(transaction=True)

OVER_THREE = {
    **SMALL,
    "model": {**SMALL["model"], "num_layers": 3},
    "parallel": {"pipeline_parallel_size": 3},
    "cluster": {"nodes": 3, "device": "cpu"},
}


@pytest.fixture
def machines(tmp_path: Path, broker: str) -> Iterator[list[NodeMachine]]:
    """Three nodes with an address each."""
    machines = []
    for number in range(3):
        directory = tmp_path / f"n{number}"
        directory.mkdir()
        machine = NodeMachine(directory, broker, name=f"n{number}", address=f"127.0.0.{number + 2}")
        machine.environment |= {"TEST_SCRIPTS": "", "PARLAB_NODE_KEY": settings.NODE_KEY.decode()}
        machine.start_daemon()
        machines.append(machine)
    yield machines
    left = [name for machine in machines for name in machine.close()]
    for machine in machines:
        print(machine.log.read_text()[-3000:])  # shown when the test fails
    assert not left, f"left running: {left}"


@pytest.fixture
def workers(machines: list[NodeMachine], broker: str) -> Iterator[Workers]:
    """The server's workers, once all nodes are online."""
    workers = Workers(broker)
    workers.until(lambda: Node.objects.count() == len(machines), "all nodes are registered")
    yield workers
    workers.connection.release()


def state_of(attempt: Attempt) -> str:
    attempt.refresh_from_db()
    return attempt.state


def test_a_run_over_three_nodes_is_launched_trains_and_is_stored(
    workers: Workers, make_config: Callable[..., Config], user: User
) -> None:
    (run,) = services.launch(config=make_config(data=OVER_THREE), user=user).created
    attempt = run.current_attempt()
    workers.until(lambda: RunState(state_of(attempt)).is_final, "the run ends")
    members = list(Member.objects.filter(attempt=attempt).select_related("node"))
    assert attempt.state == RunState.FINISHED, [(member.state, member.reason) for member in members]
    assert sorted(member.node_name for member in members) == ["n0", "n1", "n2"]
    assert all(member.prepared_at and member.started_at and member.ended_at for member in members)
    steps = SeriesChunk.objects.filter(attempt=attempt, metric="step_time_s")
    assert set(steps.values_list("rank", flat=True)) == {0, 1, 2}


def test_a_killed_rank_ends_the_run_on_every_node_and_is_its_first_cause(
    workers: Workers, machines: list[NodeMachine], make_config: Callable[..., Config], user: User
) -> None:
    endless = {**OVER_THREE, "train": {**SMALL["train"], "iterations": 100_000}}
    (run,) = services.launch(config=make_config(data=endless), user=user).created
    attempt = run.current_attempt()
    workers.until(
        lambda: SeriesChunk.objects.filter(attempt=attempt, metric="step_time_s").exists(), "the run makes steps"
    )
    member = Member.objects.get(attempt=attempt, node_rank=1)
    machine = machines[int(member.node_name[1:])]
    (victim,) = [
        process
        for process in machine.processes(run.pk)
        if "runners.engines.pipeline" in process.cmdline() and "torch.distributed.run" not in process.cmdline()
    ]
    victim.send_signal(signal.SIGKILL)
    workers.until(lambda: RunState(state_of(attempt)).is_final, "the run ends")
    assert attempt.state == RunState.FAILED
    assert "SIGKILL" in attempt.reason
    assert "rank 1" in attempt.reason
    assert member.node_name in attempt.reason
    others = Member.objects.filter(attempt=attempt).exclude(node_rank=1)
    assert all(other.is_consequence for other in others), [(other.state, other.reason) for other in others]
    for each in machines:
        wait_for(lambda: not each.processes(run.pk), "no process is left")  # noqa: B023  called at once
