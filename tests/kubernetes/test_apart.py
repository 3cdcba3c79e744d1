"""Pods that share no volume with their controller: they post their spools to the real server over HTTP."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import settings
from django.contrib.auth.models import User

from parlab.fleet import services
from parlab.lab.models import Config, Node, Run
from parlab.series import log, store
from runners.wire.protocol import RunState
from tests.chains.world import World
from tests.fleet.conftest import broker
from tests.fleet.workers import Workers
from tests.kubernetes.controllers import Controller, members_of
from tests.kubernetes.gate import Gate
from tests.kubernetes.plane.cluster import Plane
from tests.patience import wait_for
from tests.runners.test_nodes import over_three

__all__ = ["broker"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.kubernetes]

COMMAND = [sys.executable, str(Path(__file__).with_name("ticking.py"))]
AWAY_S = 20.0
Launch = Callable[..., Run]


@pytest.fixture
def gate(live_server: Any) -> Iterator[Gate]:
    """The address of the server for pods, which can be closed."""
    gate = Gate(live_server.thread.port)
    yield gate
    gate.close()


@pytest.fixture
def controller(plane: Plane, namespace: str, broker: str, tmp_path: Path, gate: Gate) -> Iterator[Controller]:
    """A controller whose pods see nothing of its state directory."""
    machine = Controller(tmp_path, broker, plane, namespace)
    allowed = tmp_path / "allowed.json"
    allowed.write_text(json.dumps([COMMAND]))
    machine.volume = ("--volume", "none", "--server", gate.url)
    machine.environment |= {
        "TEST_SCRIPTS": "",
        "PARLAB_NODE_KEY": settings.NODE_KEY.decode(),
        "PARLAB_ALLOWED_COMMANDS": str(allowed),
        "PARLAB_KUBERNETES_REST_S": "60",
    }
    machine.options = ("--pool", "hpc", "--slots", "3")
    machine.start_daemon()
    yield machine
    print(machine.log.read_text()[-8000:])  # shown when the test fails
    plane.wait_until_served()
    plane.clear(namespace)
    assert not machine.close()


@pytest.fixture
def world(controller: Controller, broker: str) -> Iterator[World]:
    workers = Workers(broker)
    world = World(workers, [controller])
    workers.until(lambda: Node.objects.online().filter(pool="hpc").exists(), "the controller is registered")
    yield world
    workers.connection.release()


@pytest.fixture
def launch(world: World, make_config: Callable[..., Config], user: User) -> Launch:
    """Launch a run."""

    def launched(data: dict[str, Any]) -> Run:
        (run,) = services.launch(config=make_config(data=data), user=user).created
        return run

    return launched


def ticks(count: int, delay_s: float, **sections: Any) -> dict[str, Any]:
    """Return the configuration of a run that ticks."""
    return {
        "parallel": {"engine": "command"},
        "command": {"argv": [*COMMAND, str(count), str(delay_s)]},
        "launcher": {"kind": "plain", "grace_s": 5, "timeout_s": 600, "max_attempts": 1},
        "cluster": {"device": "cpu", "pool": "hpc"},
        **sections,
    }


def text(run: Run) -> bytes:
    return b"".join(log.read_log(run.current_attempt().pk))


def ticked(run: Run) -> list[int]:
    """Return the ticks in the log of a run, as they came."""
    return [int(line.split()[1]) for line in text(run).splitlines() if line.startswith(b"tick ")]


def ended(world: World, run: Run, state: RunState, within_s: float = 120.0) -> str:
    """Wait for the end of a run, which must be this one; return its reason."""

    def has_ended() -> bool:
        run.refresh_from_db()
        return run.is_final

    world.until(has_ended, "the run ends", within_s)
    assert (run.state, run.reason) == (state, run.reason)
    assert ticked(run) == list(range(1, len(ticked(run)) + 1)), "every line once"
    return str(run.reason)


def gone(world: World, controller: Controller, run: Run) -> None:
    """Check that nothing of a run is left at the controller, and no pod of it lives."""

    def nothing() -> bool:
        living = [each for each in controller.pods() if each["status"]["phase"] in ("Pending", "Running")]
        return not living and not controller.run_dir(run.pk).exists and not controller.processes(run.pk)

    world.until(nothing, "nothing of the run is left")


def test_a_gang_trains_while_the_server_is_away_for_a_while(
    world: World, controller: Controller, plane: Plane, gate: Gate, launch: Launch
) -> None:
    steps = 1500
    sections = {"train": {"global_batch_size": 4, "micro_batch_size": 1, "iterations": steps, "warmup_steps": 1}}
    cluster = {"nodes": 3, "device": "cpu", "pool": "hpc"}
    run = launch(over_three(cluster=cluster, kubernetes={"cpu": 5}, **sections))
    world.until(lambda: world.steps(run) > 20, "it trains")
    pods = [controller.pod(run.pk, 1, node_rank) for node_rank in range(3)]
    assert {pod["spec"]["nodeName"] for pod in pods if pod} == {"n1", "n2", "n3"}
    assert not any("persistentVolumeClaim" in volume for pod in pods if pod for volume in pod["spec"]["volumes"])
    assert settings.NODE_KEY.decode() not in json.dumps(pods), "no pod has the key of the controller"
    gate.shut()
    shut_at = time.monotonic()
    world.until(lambda: time.monotonic() - shut_at > 3, "what the server had taken is stored")
    before = world.steps(run)
    world.until(lambda: time.monotonic() - shut_at > AWAY_S, "the server is away", AWAY_S + 30)
    assert world.steps(run) == before
    gate.open()
    ended(world, run, RunState.FINISHED, 300)
    attempt = run.current_attempt()
    assert store.read(attempt.pk, "loss", rank=2).steps.tolist() == list(range(1, steps + 1))
    shown = b"".join(log.read_log(attempt.pk))
    assert shown.count(b": Scheduled: Successfully assigned") == 3, "events of all pods are lines of the log"
    assert {member.state for member in attempt.members.all()} == {"finished"}
    assert attempt.environment["kubernetes"]["shipped_by"] == "pod, over HTTP"
    gone(world, controller, run)


def test_a_cancel_ends_a_pod_also_while_the_controller_was_away(
    world: World, controller: Controller, launch: Launch
) -> None:
    run = launch(ticks(5000, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    controller.kill_daemon()
    services.cancel(run=run)
    controller.start_daemon()
    assert ended(world, run, RunState.CANCELLED) == "cancelled by a person"
    gone(world, controller, run)


def test_a_killed_supervisor_is_lost_with_all_that_it_has_said(
    world: World, controller: Controller, launch: Launch
) -> None:
    run = launch(ticks(5000, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    controller.supervisor(run.pk).send_signal(signal.SIGKILL)
    assert "its supervisor was killed" in ended(world, run, RunState.LOST)
    gone(world, controller, run)


def test_a_killed_first_process_is_lost(world: World, controller: Controller, launch: Launch) -> None:
    run = launch(ticks(5000, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    first: psutil.Process = wait_for(lambda: members_of(controller.pod_name(run.pk)), "its pod")[0]
    first.send_signal(signal.SIGKILL)
    assert "with exit code 137: its supervisor was killed" in ended(world, run, RunState.LOST)
    gone(world, controller, run)


def test_an_eviction_while_the_server_is_away_is_told_with_all_output_once_it_is_back(
    world: World, controller: Controller, plane: Plane, gate: Gate, launch: Launch
) -> None:
    run = launch(ticks(5000, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    before = len(ticked(run))
    gate.shut()
    shut_at = time.monotonic()
    world.until(lambda: time.monotonic() - shut_at > 3, "the server is away")
    plane.end_pod(controller.namespace, controller.pod_name(run.pk), "Evicted")
    world.until(lambda: time.monotonic() - shut_at > 8, "the pod waits for the server")
    gate.open()
    assert "ended as Evicted: its node evicted it" in ended(world, run, RunState.PREEMPTED)
    assert len(ticked(run)) > before + 25, "what it printed while the server was away"
    gone(world, controller, run)


def test_a_run_that_ends_while_the_server_is_away_is_finished_once_it_is_back(
    world: World, controller: Controller, gate: Gate, launch: Launch
) -> None:
    run = launch(ticks(40, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    gate.shut()
    controller.kill_daemon()
    shut_at = time.monotonic()
    world.until(lambda: time.monotonic() - shut_at > 8, "it ends meanwhile")
    gate.open()
    controller.start_daemon()
    ended(world, run, RunState.FINISHED)
    assert len(ticked(run)) == 40
    gone(world, controller, run)


def test_what_the_server_does_not_take_in_time_is_said(
    world: World, controller: Controller, gate: Gate, launch: Launch
) -> None:
    controller.kill_daemon()
    controller.start_daemon(PARLAB_KUBERNETES_REST_S="4")
    run = launch(ticks(40, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    gate.shut()
    reason = ended(world, run, RunState.FINISHED)
    assert (
        "bytes of its spool within 4 s after its end (PARLAB_KUBERNETES_REST_S): they are gone with the pod" in reason
    )
    assert 3 < len(ticked(run)) < 40
    gate.open()
    gone(world, controller, run)


def test_checkpoints_need_a_claim_of_the_user(world: World, launch: Launch) -> None:
    run = launch(ticks(10, 0.1, launcher={"kind": "plain", "chain": True}))
    reason = ended(world, run, RunState.FAILED)
    assert reason.startswith("checkpoint.directory: directory of the pool is gone with the pod")
