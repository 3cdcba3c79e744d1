"""One run over three nodes with the real server, real daemons and a real engine: from launch to its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Max
from django.utils import timezone

from parlab.fleet import services
from parlab.lab.models import Attempt, Config, Member, Node, Run
from parlab.series.models import SeriesChunk
from runners.wire.protocol import RunState
from tests.conftest import SMALL
from tests.fleet.workers import Workers
from tests.patience import PATIENCE_S, wait_for
from tests.runners.conftest import ROOT, NodeMachine

pytestmark = pytest.mark.django_db(transaction=True)

OVER_THREE = {
    **SMALL,
    "model": {**SMALL["model"], "num_layers": 3},
    "parallel": {"pipeline_parallel_size": 3},
    "cluster": {"nodes": 3, "device": "cpu"},
}


@pytest.fixture
def machines(tmp_path: Path, broker: str, request: pytest.FixtureRequest) -> Iterator[list[NodeMachine]]:
    """Three nodes with an address each; with the parameter `script`, runs start scripts instead of engines."""
    machines = []
    for number in range(3):
        directory = tmp_path / f"n{number}"
        directory.mkdir()
        machine = NodeMachine(directory, broker, name=f"n{number}", address=f"127.0.0.{number + 2}")
        machine.environment["PARLAB_NODE_KEY"] = settings.NODE_KEY.decode()
        if getattr(request, "param", "") != "script":
            machine.environment["TEST_SCRIPTS"] = ""
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


@pytest.mark.slow
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


@pytest.mark.slow
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


TICKS = """
import json, os, time
rank, step = int(os.environ["NODE_RANK"]), 0
while True:
    step += 1
    event = {"parlab": 1, "t": time.time(), "rank": rank, "event": "step", "step": step, "step_time_s": 0.1}
    print(json.dumps(event, separators=(",", ":")), flush=True)
    time.sleep(0.1)
"""


class Ticking:
    """A run over three nodes whose ranks make steps until they are ended."""

    def __init__(self, run: Run, workers: Workers, machines: list[NodeMachine]) -> None:
        self.run, self.workers = run, workers
        members = Member.objects.filter(attempt=run.current_attempt()).select_related("node")
        self.by_rank = {member.node_rank: machines[int(member.node_name[1:])] for member in members}
        for machine in machines:
            machine.script(run.pk, TICKS)  # before Go, which this process sends

    def member(self, node_rank: int) -> Member:
        return Member.objects.get(attempt__run=self.run, attempt__number=1, node_rank=node_rank)

    def last_step(self, node_rank: int) -> int:
        chunks = SeriesChunk.objects.filter(attempt__run=self.run, metric="step_time_s", rank=node_rank)
        return int(chunks.aggregate(last=Max("last_step"))["last"] or 0)

    def until_all_go_on(self) -> None:
        """Serve until each rank has made a step that is not stored yet."""
        before = {rank: self.last_step(rank) for rank in self.by_rank}
        self.workers.until(lambda: all(self.last_step(rank) > before[rank] for rank in before), "all ranks go on")


@pytest.fixture
def ticking(
    workers: Workers, machines: list[NodeMachine], make_config: Callable[..., Config], user: User
) -> Iterator[Ticking]:
    """The run, once all of its ranks make steps."""
    (run,) = services.launch(config=make_config(data=OVER_THREE), user=user).created
    workers.until(lambda: run.current_attempt().members.count() == 3, "the run has its nodes")
    ticking = Ticking(run, workers, machines)
    ticking.until_all_go_on()
    yield ticking
    run.refresh_from_db()
    if not run.is_final:
        services.cancel(run=run)
    for machine in machines:
        if machine.daemons[-1].poll() is not None:  # a test that failed has left it so
            machine.start_daemon()
    workers.until(lambda: not any(machine.processes() for machine in machines), "no process is left")


@pytest.mark.slow
@pytest.mark.parametrize("machines", ["script"], indirect=True)
def test_a_drained_node_is_upgraded_during_a_run_and_takes_no_other_meanwhile(
    ticking: Ticking, workers: Workers, make_config: Callable[..., Config], user: User
) -> None:
    machine = ticking.by_rank[1]
    command = [
        sys.executable,
        "-m",
        "runners.node.daemon",
        "drain",
        "--lease",
        "1h",
        "--state-dir",
        str(machine.state_dir),
    ]
    subprocess.run(command, cwd=ROOT, env=machine.environment, check=True, timeout=PATIENCE_S)
    node = Node.objects.get(name=machine.name)
    workers.until(lambda: Node.objects.filter(pk=node.pk, is_draining=True).exists(), "the server knows")
    machine.daemons[-1].terminate()
    assert machine.daemons[-1].wait(PATIENCE_S) == 0
    workers.serve(0.5)
    lease_expires_at = ticking.member(1).lease_expires_at
    assert lease_expires_at is not None
    assert lease_expires_at > timezone.now() + timedelta(minutes=50)
    Node.objects.update(slots=2)
    (second,) = services.launch(
        config=make_config(data={**OVER_THREE, "train": {**SMALL["train"], "iterations": 5}}), user=user
    ).created
    assert services.dispatch() == 0
    assert services.waiting_reason(second).endswith(f"; node {machine.name} is draining")
    services.cancel(run=second)
    position = ticking.last_step(1)
    machine.start_daemon()  # the new version
    workers.until(lambda: ticking.last_step(1) > position, "the new daemon has taken over its share")
    workers.until(lambda: not Node.objects.get(pk=node.pk).is_draining, "it takes runs again")
    ticking.until_all_go_on()
    assert [member.state for member in Member.objects.filter(attempt__run=ticking.run)] == ["running"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("machines", ["script"], indirect=True)
def test_a_node_beyond_its_lease_ends_the_run_everywhere_also_on_itself_when_it_is_back(
    ticking: Ticking, workers: Workers, machines: list[NodeMachine], broker: str
) -> None:
    run, machine = ticking.run, ticking.by_rank[2]
    machine.daemons[-1].kill()
    machine.daemons[-1].wait()
    redis.Redis.from_url(broker).set(services.AWAKE_KEY, time.time() - 600, ex=600)

    def is_lost() -> bool:
        # Heartbeats that were sent before the end may still renew the lease.
        Member.objects.filter(pk=ticking.member(2).pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
        services.reap()
        return ticking.member(2).state == RunState.LOST

    workers.until(is_lost, "the lease is over")
    first = Attempt.objects.get(run=run, number=1)
    workers.until(lambda: RunState(state_of(first)).is_final, "the other nodes end it")
    assert first.state == RunState.LOST
    assert machine.name in first.reason
    assert all(ticking.member(node_rank).is_consequence for node_rank in (0, 1))
    for node_rank in (0, 1):
        wait_for(lambda: not ticking.by_rank[node_rank].processes(run.pk), "no process is left")  # noqa: B023
    run.refresh_from_db()
    assert (run.state, run.attempt_number) == (RunState.QUEUED, 2)
    assert machine.processes(run.pk), "nobody has told the node that was away"
    services.cancel(run=run)
    machine.start_daemon()
    workers.until(lambda: not machine.processes(run.pk), "the node ends it when it is back")
    assert state_of(first) == RunState.LOST
