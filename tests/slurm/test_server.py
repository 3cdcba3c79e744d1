"""Slurm through the whole server: a sweep from the API to jobs, pages, series and logs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from parlab.fleet import services
from parlab.lab.models import Config, Node, Run
from parlab.series import log, store
from runners.wire.protocol import RunState
from tests.conftest import SMALL
from tests.fleet.conftest import broker
from tests.fleet.workers import Workers
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import LoginNode
from tests.slurm.test_jobs import occupy

__all__ = ["broker"]

pytestmark = pytest.mark.django_db(transaction=True)

SLOTS = 3
POINTS = 100

TRAINS = """
import json, sys, time
for step in range(1, 4):
    event = {"parlab": 1, "t": time.time(), "rank": 0, "event": "step", "step": step}
    event |= {"step_time_s": 0.5, "loss": step * float(sys.argv[1])}
    print(json.dumps(event, separators=(",", ":")), flush=True)
"""


@pytest.fixture
def login(cluster: Cluster, broker: str, tmp_path: Path) -> Iterator[LoginNode]:
    """A login node of pool hpc that allows one command."""
    machine = LoginNode(cluster.home / tmp_path.name, broker, cluster)
    machine.script(0, TRAINS)
    allowed = machine.scripts / "allowed.json"
    allowed.write_text(json.dumps([command(machine)]))
    key = settings.NODE_KEY.decode()
    machine.environment |= {"TEST_SCRIPTS": "", "PARLAB_NODE_KEY": key, "PARLAB_ALLOWED_COMMANDS": str(allowed)}
    machine.options = ("--pool", "hpc", "--slots", str(SLOTS))
    machine.start_daemon()
    yield machine
    print(machine.log.read_text()[-8000:])  # shown when the test fails
    machine.clear()
    assert not machine.close()


def command(machine: LoginNode) -> list[str]:
    return [sys.executable, str(machine.scripts / "0.py")]


class Server:
    """The server's workers and beat, in this process."""

    def __init__(self, url: str) -> None:
        self._workers = Workers(url)
        self._beat_at = 0.0

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Serve until a condition holds; dispatch and look twice a second."""

        def beaten() -> Any:
            if time.monotonic() - self._beat_at < 0.5:
                return None
            services.dispatch()
            self._beat_at = time.monotonic()
            return condition()

        return self._workers.until(beaten, what)

    def close(self) -> None:
        self._workers.connection.release()


@pytest.fixture
def server(login: LoginNode, broker: str) -> Iterator[Server]:
    """The server, once the login node is registered with its partitions."""
    server = Server(broker)
    server.until(lambda: any(node.hardware["slurm"]["partitions"] for node in Node.objects.all()), "partitions")
    yield server
    server.close()


@pytest.mark.slow
def test_a_sweep_of_100_points_becomes_a_few_jobs_at_a_time_and_its_runs_are_stored(
    login: LoginNode, cluster: Cluster, server: Server, page: Client, make_config: Callable[..., Config]
) -> None:
    other = occupy(cluster, "busy")
    data = {
        **SMALL,
        "parallel": {"engine": "command"},
        "command": {"argv": [*command(login), "{train.seed}"]},
        "launcher": {"kind": "plain"},
        "cluster": {"device": "cpu", "pool": "hpc"},
        "slurm": {"partition": "busy"},
    }
    config = make_config(data=data, sweep={"train.seed": list(range(POINTS))})
    address = f"/api/experiments/{config.experiment.slug}/"
    answer = page.post(f"{address}launch/?digest={config.digest}", content_type="application/json")
    assert answer.status_code == 201, answer.content
    assert len(answer.json()["created"]) == POINTS
    first, last = Run.objects.get(number=1), Run.objects.get(number=POINTS)

    def text(run: Run) -> str:
        return page.get(f"{run.get_absolute_url()}details/").content.decode()

    server.until(lambda: f"place 1 of {SLOTS} in partition busy" in text(first), "the first run has its place")
    assert f"Slurm job {login.job(first.pk)} is PENDING" in text(first)
    assert "is busy with" in services.waiting_reason(last)
    assert len(login.jobs()) == SLOTS

    cluster.clear(other)
    most = 0

    def finished() -> bool:
        nonlocal most
        most = max(most, len(login.jobs()))
        return Run.objects.filter(state=RunState.FINISHED).count() > SLOTS

    server.until(finished, "runs of the second round have finished")
    assert most <= SLOTS
    assert Run.objects.filter(state=RunState.QUEUED).count() > POINTS - 6 * SLOTS
    run = Run.objects.filter(state=RunState.FINISHED).order_by("pk")[1]
    attempt = run.current_attempt()
    assert store.read(attempt.pk, "loss", rank=0).values.tolist() == [
        step * run.resolved["train"]["seed"] for step in (1, 2, 3)
    ]
    assert b"".join(log.read_log(attempt.pk)).count(b'"event":"step"') == 3
    shown = text(run)
    for expected in (
        "Slurm job",
        "#SBATCH --partition=busy",
        "n3",
        str(attempt.environment["slurm"]["job"]),
        "compute node",
    ):
        assert expected in shown

    page.post(f"{address}launch/?digest={config.digest}", content_type="application/json")
    assert Run.objects.count() == POINTS
    Node.objects.update(is_enabled=False)
    for active in Run.objects.active().exclude(state=RunState.QUEUED):
        services.cancel(run=active)
    server.until(lambda: not login.jobs(), "no job is left")
