"""The page of a node: its health, and leaving it out of dispatch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Node
from parlab.watch import health
from parlab.watch.detecting import watch_detect
from parlab.watch.models import Alert, Watch
from tests.watch.conftest import history, repeats


@pytest.fixture
def measured(user: User, page: Client) -> list[Node]:
    """Three nodes with two ranks each, of which the last node has a slow one."""
    user.is_superuser = True
    user.save()
    nodes = []
    for name in ("n1", "n2", "n3"):
        abilities = {"engines": ["health"], "launchers": ["torchrun"], "kind": "daemon"}
        node = Node.objects.create(name=name, abilities=abilities, last_heartbeat_at=timezone.now())
        watch = health.node_watch(node=node, user=user)
        assert watch is not None
        history(watch, repeats(12, level=8e12, noise=0.002), measure="health:matrix:0")
        watch_detect(watch=watch)
        nodes.append(node)
    return nodes


def test_the_page_compares_a_node_with_its_peers_and_lists_its_changes(page: Client, measured: list[Node]) -> None:
    watch = Watch.objects.get(node=measured[2])
    history(watch, repeats(5, level=6e12, noise=0.002, seed=2), measure="health:matrix:0")
    (alert,) = watch_detect(watch=watch)
    text = page.get("/nodes/n3/").content.decode()
    assert alert.get_absolute_url() in text
    assert "<strong>\N{MINUS SIGN}2" in text
    assert "of 3" in text
    assert "Matrix rate of rank 0" in text
    assert 'href="/nodes/n3/"' in page.get("/nodes/").content.decode()


def test_an_alert_leaves_its_node_out_and_puts_it_back(page: Client, measured: list[Node]) -> None:
    watch = Watch.objects.get(node=measured[2])
    history(watch, repeats(5, level=6e12, noise=0.002, seed=2), measure="health:matrix:0")
    (alert,) = watch_detect(watch=watch)
    address = alert.get_absolute_url()
    assert "Leave out" in page.get(address).content.decode()
    answer = page.post("/nodes/n3/leave-out/", {"reason": "slow", "next": address})
    assert answer["Location"] == address
    assert "Put back" in page.get(address).content.decode()
    assert "left out" in page.get("/nodes/").content.decode()
    page.post("/nodes/n3/put-back/", {"next": "https://elsewhere.example/"})
    measured[2].refresh_from_db()
    assert measured[2].left_out == ""
    assert Alert.objects.get().is_open, "the alert still waits for its answer"


def test_measure_now_orders_a_sweep_or_says_why_not(page: Client, measured: list[Node]) -> None:
    text = page.post("/nodes/n1/measure/", follow=True).content.decode()
    assert "Ordered 3 sweeps of n1" in text, "its own, and those of the links to both neighbours"
    Node.objects.filter(name="n1").update(last_heartbeat_at=None)
    text = page.post("/nodes/n1/measure/", follow=True).content.decode()
    assert "node n1 is offline; start its daemon" in text


def test_a_reader_cannot_leave_a_node_out(client: Client, measured: list[Node]) -> None:
    reader: Callable[..., User] = User.objects.create_user
    client.force_login(reader("reader"))
    assert client.post("/nodes/n1/leave-out/", {"reason": "slow"}).status_code == 403
    assert "Leave out" not in client.get("/nodes/n1/").content.decode()
