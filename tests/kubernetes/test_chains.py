"""A chain in pods: over limits, an eviction and a preemption it is one run with one curve."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from parlab.fleet import services
from parlab.lab.models import Config, Node, Run
from runners.wire.protocol import RunState
from tests.chains.world import World, chain_data, check_one_curve, command, states
from tests.fleet.conftest import broker
from tests.fleet.workers import Workers
from tests.kubernetes.controllers import Controller
from tests.kubernetes.plane.cluster import Plane

__all__ = ["broker"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.kubernetes]


@pytest.fixture
def controller(plane: Plane, namespace: str, broker: str, tmp_path: Path) -> Iterator[Controller]:
    """A controller of pool hpc that allows the script."""
    machine = Controller(tmp_path, broker, plane, namespace)
    allowed = tmp_path / "allowed.json"
    allowed.write_text(json.dumps([command()]))
    machine.environment |= {
        "TEST_SCRIPTS": "",
        "PARLAB_NODE_KEY": settings.NODE_KEY.decode(),
        "PARLAB_ALLOWED_COMMANDS": str(allowed),
    }
    machine.options = ("--pool", "hpc", "--slots", "2")
    machine.start_daemon()
    yield machine
    print(machine.log.read_text()[-8000:])  # shown when the test fails
    plane.clear(namespace)
    assert not machine.close()


@pytest.fixture
def world(controller: Controller, broker: str) -> Iterator[World]:
    workers = Workers(broker)
    world = World(workers, [controller])
    workers.until(lambda: Node.objects.online().filter(pool="hpc").exists(), "the controller is registered")
    yield world
    workers.connection.release()


def test_a_training_over_a_limit_an_eviction_and_a_killed_controller_is_one_run(
    world: World, plane: Plane, controller: Controller, make_config: Callable[..., Config], user: User
) -> None:
    limits = {"timeout_s": 15, "warn_before_s": 5, "grace_s": 5}
    data = chain_data(600, 0.03, 10, launcher=limits, cluster={"pool": "hpc"}, kubernetes={"ttl_s": 0})
    (run,) = services.launch(config=make_config(data=data), user=user).created
    world.until_attempt(run, 2)
    assert states(run)[0] == RunState.CHECKPOINTED
    plane.end_pod(controller.namespace, controller.pod_name(run.pk, 2), "Evicted")
    world.until_attempt(run, 3)
    assert states(run)[1] == RunState.PREEMPTED
    assert "ended as Evicted: its node evicted it" in run.attempts.get(number=2).reason
    controller.kill_daemon()
    controller.start_daemon()
    chain = world.until_ended(run, within_s=240)
    assert states(run)[-1] == RunState.FINISHED
    assert (chain.steps, world.at_once) == (600, 1)
    check_one_curve(run, 600)
    world.until(lambda: not controller.pods(), "ended pods are deleted once the server has stored their run")


def test_what_a_waiting_run_says_is_on_its_page(
    world: World, controller: Controller, make_config: Callable[..., Config], user: User
) -> None:
    data = chain_data(10, 0.03, cluster={"pool": "hpc"}, kubernetes={"resources": {"nvidia.com/gpu": "64"}})
    (run,) = services.launch(config=make_config(data=data), user=user).created

    def reason() -> str:
        return services.waiting_reason(Run.objects.get(pk=run.pk))

    world.until(lambda: "Insufficient nvidia.com/gpu" in reason(), "the words of the scheduler")
    assert reason().startswith(f"Kubernetes: pod {controller.pod_name(run.pk)} is Pending: 0/3 nodes are available")
    services.cancel(run=run)
    world.until_ended(run)
    world.until(lambda: not controller.pods(), "its pod is gone")
