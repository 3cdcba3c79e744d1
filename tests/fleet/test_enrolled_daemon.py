"""A real daemon that has enrolled with a code, whose key is rotated while a run is active, and then revoked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from parlab.fleet import services
from parlab.lab.models import Attempt, Config, Node, NodeKey, RefusedMessage
from parlab.lab.services.access.node_keys import node_code_create, node_key_rotate, node_keys_revoke
from runners.wire.protocol import RunState
from tests.fleet.workers import Workers
from tests.patience import wait_for
from tests.runners.conftest import NodeMachine

pytestmark = pytest.mark.django_db(transaction=True)


# It ends once the test has opened the gate.
WAITS = """
    import os, time
    print("begins", flush=True)
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "open")):
        time.sleep(0.05)
"""


@pytest.fixture
def machine(tmp_path: Path, broker: str) -> Iterator[NodeMachine]:
    """A node without the shared key."""
    machine = NodeMachine(tmp_path, broker, name="gpu1")
    del machine.environment["PARLAB_NODE_KEY"]
    yield machine
    left = machine.close()
    print(machine.log.read_text()[-5000:] if machine.log.exists() else "")
    assert not left, f"left running: {left}"


@pytest.mark.slow
def test_a_node_with_a_code_enrols_runs_rotates_and_is_revoked(
    machine: NodeMachine, broker: str, make_config: Callable[..., Config], user: User
) -> None:
    workers = Workers(broker)
    code = node_code_create(node_name="gpu1", by=user)
    command = [sys.executable, "-m", "runners.node.daemon", "enrol", "--code", code, *machine.arguments()]
    with subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE) as enrolment:
        workers.until(lambda: enrolment.poll() is not None, "the node is enrolled")
        assert enrolment.returncode == 0, enrolment.stderr and enrolment.stderr.read()
    machine.start_daemon()
    workers.until(lambda: Node.objects.filter(name="gpu1").exists(), "the node registers itself")
    (run,) = services.launch(config=make_config(), user=user).created
    machine.script(run.pk, WAITS)
    attempt = run.current_attempt()

    def state() -> str:
        attempt.refresh_from_db()
        return attempt.state

    workers.until(lambda: state() == RunState.RUNNING, "the run is active")
    first = NodeKey.objects.get()
    second = node_key_rotate(node_name="gpu1", by=user)

    def keys() -> list[str]:
        return [key.state for key in NodeKey.objects.filter(pk__in=[first.pk, second.pk]).order_by("pk")]

    workers.until(lambda: keys() == ["replaced", "active"], "the node signs with its next key")
    machine.open_gate()
    workers.until(lambda: RunState(state()).is_final, "the run ends")
    assert attempt.state == RunState.FINISHED, attempt.reason
    node_keys_revoke(node_name="gpu1", by=user)

    def is_refused() -> bool:
        return RefusedMessage.objects.filter(sender="gpu1", reason__contains="was revoked").exists()

    workers.until(is_refused, "messages of the node are refused")
    workers.connection.release()
    wait_for(lambda: not machine.run_dir(run.pk).exists, "the run was stored")
    assert Attempt.objects.get().state == RunState.FINISHED
