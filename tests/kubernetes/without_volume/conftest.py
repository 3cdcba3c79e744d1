"""A controller whose pods share no volume with it, and runs that tick in them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from parlab.fleet import services
from parlab.lab.models import Config, Node, Run
from parlab.series import log
from runners.wire.protocol import RunState
from tests.chains.world import World
from tests.fleet.conftest import broker
from tests.fleet.workers import Workers
from tests.kubernetes.controllers import Controller
from tests.kubernetes.plane.cluster import Plane
from tests.kubernetes.without_volume.gate import Gate

__all__ = ["broker"]

COMMAND = [sys.executable, str(Path(__file__).with_name("ticking.py"))]
Launch = Callable[..., Run]


@pytest.fixture
def gate(live_server: Any) -> Iterator[Gate]:
    """The address of the server for pods, which can be closed."""
    gate = Gate(live_server.thread.port)
    yield gate
    gate.close()


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> str:
    """What runs become: pods, unless the test asks for another one."""
    return str(getattr(request, "param", "pods"))


@pytest.fixture
def controller(
    plane: Plane,
    namespace: str,
    broker: str,
    tmp_path: Path,
    gate: Gate,
    objects: str,
    request: pytest.FixtureRequest,
) -> Iterator[Controller]:
    """A controller whose pods see nothing of its state directory."""
    if objects == "jobset":
        request.getfixturevalue("jobsets")
    machine = Controller(tmp_path, broker, plane, namespace)
    allowed = tmp_path / "allowed.json"
    allowed.write_text(json.dumps([COMMAND]))
    machine.volume = ("--volume", "none", "--server", gate.url)
    machine.environment |= {
        "TEST_SCRIPTS": "",
        "PARLAB_NODE_KEY": settings.NODE_KEY.decode(),
        "PARLAB_ALLOWED_COMMANDS": str(allowed),
        "PARLAB_KUBERNETES_REST_S": "60",
        "PARLAB_KUBERNETES_OBJECTS": objects,
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
