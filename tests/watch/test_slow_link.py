"""A slow cable between two nodes: real sweeps by real daemons, and the alert that names the pair."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from parlab.fleet.services import dispatch
from parlab.lab.models import Node
from parlab.watch import health, services
from parlab.watch.analysis.measures import LINK_RATES
from parlab.watch.models import Alert, Order, Result, Watch
from parlab.watch.ordering import order_place
from runners.links.interface import tbf_arguments
from tests.fleet.conftest import broker
from tests.fleet.workers import Workers
from tests.patience import TRAINING_S
from tests.runners.conftest import NodeMachine
from tests.runners.namespaces import DEVICE, Network

__all__ = ["broker"]

pytestmark = pytest.mark.django_db(transaction=True)

SLOW_BITS_PER_S = 5e8
"""Of a cable; without a limit two namespaces of one machine reach many times as much."""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """Two network namespaces."""
    network = Network(tmp_path, 2)
    try:
        try:
            network.open()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces need root and the program ip: {error}")
        yield network
    finally:
        network.close()


@pytest.fixture
def redis_url(network: Network) -> str:
    """The Redis that all nodes reach."""
    return network.url


@pytest.fixture
def machines(tmp_path: Path, network: Network, broker: str) -> Iterator[list[NodeMachine]]:
    """A daemon in each namespace."""
    machines = []
    try:
        for number in range(2):
            directory = tmp_path / f"n{number}"
            directory.mkdir()
            machine = NodeMachine(directory, broker, name=f"n{number}")
            machines.append(machine)
            machine.prefix = network.prefix(number)
            machine.environment |= {"PARLAB_NODE_KEY": settings.NODE_KEY.decode(), "TEST_SCRIPTS": ""}
            machine.start_daemon()
        yield machines
    finally:
        left = [name for machine in machines for name in machine.close()]
        for machine in machines:
            print(machine.log.read_text()[-3000:])  # shown when the test fails
    assert not left, f"left running: {left}"


class Sweeps:
    """The server: its workers, and what it does every few seconds."""

    def __init__(self, broker: str) -> None:
        self.workers = Workers(broker)

    def run(self, watch: Watch) -> None:
        """Serve until the orders of a watch have ended; all sweeps have to succeed."""

        def advanced() -> bool:
            services.watch_advance(watch=Watch.objects.get(pk=watch.pk))
            dispatch()
            return not watch.orders.filter(state=Order.State.OPEN).exists()

        self.workers.until(advanced, "all sweeps have ended", TRAINING_S)
        assert not watch.orders.exclude(problem="").exists(), list(watch.orders.values("problem"))


@pytest.fixture
def sweeps(machines: list[NodeMachine], broker: str) -> Iterator[Sweeps]:
    """The server, once all nodes are online."""
    sweeps = Sweeps(broker)
    sweeps.workers.until(lambda: Node.objects.count() == len(machines), "all nodes are registered")
    yield sweeps
    sweeps.workers.connection.release()


def add_earlier(watch: Watch, count: int) -> None:
    """Store results of earlier days whose rates of links are those of the first sweep, with the noise of a quiet node.

    Rates of processors and memory are left out: they depend on what else this machine does.
    """
    first = watch.results.get()
    rates = {name: value for name, value in first.values.items() if name.startswith(LINK_RATES)}
    assert len(rates) == 2, first.values
    draw = np.random.default_rng(watch.pk)
    Result.objects.bulk_create(
        Result(
            watch=watch,
            line=f"day {day}",
            at=first.at - timedelta(days=day),
            node=first.node,
            environment=first.environment,
            values={name: value * float(np.exp(draw.normal(0.0, 0.02))) for name, value in rates.items()},
        )
        for day in range(1, count + 1)
    )


@pytest.mark.slow
def test_a_slow_cable_is_an_alert_that_names_the_pair(
    sweeps: Sweeps, network: Network, user: User, page: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.is_superuser = True
    user.save()
    settings.HEALTH_SWEEPS = settings.LEAVE_OUT_NODES = True
    monkeypatch.setattr(health, "JOIN_SWEEPS", 1)
    health.sweeps_check()
    link = Watch.objects.get(name="Link of n0 and n1")
    sweeps.run(link)
    add_earlier(link, 24)
    services.watch_refresh(watch=link)
    assert not Alert.objects.exists()

    shape = ["tc", "-n", network.names[1], "qdisc", "add", "dev", DEVICE, "root", *tbf_arguments(SLOW_BITS_PER_S)]
    subprocess.run(shape, check=True, capture_output=True)
    order_place(watch=link, count=4, reason="by hand")
    sweeps.run(link)
    alert = link.alerts.get()
    assert (alert.cause, alert.is_worse) == ("link n0 - n1", True)
    assert {part["measure"] for part in alert.parts} >= {"health:all-reduce:0-1", "health:link:0-1"}
    assert alert.largest["size"] < -0.1
    text = page.get(alert.get_absolute_url()).content.decode()
    assert "Link of n0 and n1: " in text
    assert text.count("Leave out") == 2, "of two nodes with one cable parlab leaves out neither by itself"
    assert not Node.objects.exclude(left_out="").exists()
