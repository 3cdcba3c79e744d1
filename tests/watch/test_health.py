"""Health sweeps: when they run, what they store, what an alert of a node does, and nodes that are left out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from parlab.fleet.excluded_nodes import node_leave_out, node_put_back
from parlab.fleet.services import dispatch, waiting_reason
from parlab.ingest.summaries.summary import summary_of
from parlab.lab.models import Config, Node, Run
from parlab.lab.services.runs import config_launch
from parlab.series.columns import Columns
from parlab.watch import health
from parlab.watch.analysis.measures import measure_of, values_of
from parlab.watch.detecting import watch_detect
from parlab.watch.models import Alert, Watch
from parlab.watch.triggers import schedule_check
from tests.conftest import SMALL
from tests.watch.conftest import history, repeats

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin_user(user: User) -> User:
    user.is_superuser = True
    user.save()
    return user


@pytest.fixture
def add_node(db: None) -> Callable[..., Node]:
    """Register a node that is online: add_node("n1", gpus=8)."""

    def add(name: str = "n1", *, gpus: int = 0, **fields: Any) -> Node:
        hardware = {"gpus": [{"name": "H100"}] * gpus}
        abilities = {"engines": ["health", "pipeline"], "launchers": ["torchrun"], "kind": "daemon"}
        row = {"hardware": hardware, "abilities": abilities, "last_heartbeat_at": timezone.now(), **fields}
        return Node.objects.create(name=name, **row)

    return add


def test_a_node_that_joins_is_measured_at_once_and_then_every_day(
    admin_user: User, add_node: Callable[..., Node]
) -> None:
    node = add_node(gpus=8)
    health.sweeps_check()
    health.sweeps_check()
    watch = Watch.objects.get(node=node)
    assert [order.reason for order in watch.orders.all()] == ["node joined"]
    assert watch.config is not None
    assert watch.config.data["cluster"]["node_names"] == "n1"
    assert watch.config.data["parallel"]["data_parallel_size"] == 8
    assert watch.next_at is not None
    order = schedule_check(watch=watch, now=watch.next_at + timedelta(seconds=1))
    assert order is not None
    Node.objects.update(last_heartbeat_at=timezone.now() - timedelta(hours=1))
    watch = Watch.objects.get(node=node)
    assert watch.next_at is not None
    assert schedule_check(watch=watch, now=watch.next_at + timedelta(seconds=1)) is None


def test_nodes_of_a_pool_are_measured_with_their_neighbours(admin_user: User, add_node: Callable[..., Node]) -> None:
    nodes = [add_node(name) for name in ("n1", "n2", "n3")]
    add_node("other", pool="slow")
    health.sweeps_check()
    links = Watch.objects.exclude(peer=None).order_by("name")
    assert [watch.name for watch in links] == ["Link of n1 and n2", "Link of n2 and n3", "Link of n3 and n1"]
    assert links[0].config is not None
    assert links[0].config.data["cluster"] | {"nodes": 2, "node_names": "n1,n2"} == links[0].config.data["cluster"]
    orders = health.sweep_order(node=nodes[0], user=admin_user)
    assert {order.watch.name for order in orders} == {"Health of n1", "Link of n1 and n2", "Link of n3 and n1"}


def test_nodes_without_the_engine_and_queues_of_slurm_are_not_measured(
    admin_user: User, add_node: Callable[..., Node]
) -> None:
    add_node("old", abilities={"engines": ["pipeline"], "launchers": ["torchrun"]})
    add_node("login", abilities={"engines": ["health"], "launchers": [], "kind": "slurm"})
    health.sweeps_check()
    assert not Watch.objects.exists()
    with pytest.raises(ValueError, match="old cannot run engine health"):
        health.sweep_order(node=Node.objects.get(name="old"), user=admin_user)


def test_a_node_with_more_gpus_than_before_gets_a_sweep_of_all_of_them(
    admin_user: User, add_node: Callable[..., Node]
) -> None:
    node = add_node(gpus=4)
    health.sweeps_check()
    Node.objects.update(hardware={"gpus": [{"name": "H100"}] * 8})
    health.sweeps_check()
    watch = Watch.objects.get(node=node)
    assert watch.config is not None
    assert watch.config.data["parallel"]["data_parallel_size"] == 8


def test_the_rates_of_a_sweep_are_the_highest_after_warm_up_and_become_measures() -> None:
    def columns(values: list[float]) -> Columns:
        steps = np.arange(1, len(values) + 1)
        return Columns(steps, steps.astype(float), np.array(values, float))

    series = {
        "warmup": {0: columns([1, 0, 0]), 1: columns([1, 0, 0])},
        "health/matrix": {0: columns([9e12, 7e12, 8e12]), 1: columns([9e12, 4e12, 3e12])},
        "health/all-reduce:0-1": {0: columns([1e9, 2e9, float("nan")])},
    }
    summary = summary_of(series, {})
    assert summary["health"] == {"matrix": {"0": 8e12, "1": 4e12}, "all-reduce:0-1": {"0": 2e9}}
    values = values_of(summary)
    assert values == {"health:matrix:0": 8e12, "health:matrix:1": 4e12, "health:all-reduce:0-1": 2e9}
    assert measure_of("health:matrix:1").title == "Matrix rate of rank 1"
    assert measure_of("health:all-reduce:0-1").title == "All-reduce of ranks 0-1"
    assert not measure_of("health:matrix:1").is_better_lower


def slow_gpu(watch: Watch) -> Alert:
    history(watch, repeats(12, level=8e12, noise=0.002), measure="health:matrix:3")
    assert watch_detect(watch=watch) == []
    history(watch, repeats(5, level=6e12, noise=0.002, seed=2), measure="health:matrix:3")
    (alert,) = watch_detect(watch=watch)
    return alert


def test_a_gpu_that_becomes_slower_is_an_alert_of_its_own(
    admin_user: User, add_node: Callable[..., Node], settings: Any
) -> None:
    node = add_node(gpus=4)
    health.sweeps_check()
    alert = slow_gpu(Watch.objects.get(node=node))
    assert alert.is_worse
    assert [part["measure"] for part in alert.parts] == ["health:matrix:3"]
    assert alert.cause == "node n1"
    assert not health.alert_follow(alert=alert), "the setting is off"
    settings.LEAVE_OUT_NODES = True
    assert health.alert_follow(alert=alert)
    node.refresh_from_db()
    assert "Matrix rate of rank 3 \N{MINUS SIGN}2" in node.left_out


def slow_link(watch: Watch) -> Alert:
    history(watch, repeats(24, level=9e9), measure="health:all-reduce:0-1")
    history(watch, repeats(4, level=4e9, seed=2), measure="health:all-reduce:0-1")
    (alert,) = watch_detect(watch=watch)
    return alert


def test_a_slow_link_is_that_of_the_pair_until_all_links_of_one_node_are_slow(
    admin_user: User, add_node: Callable[..., Node], settings: Any
) -> None:
    nodes = [add_node(name) for name in ("n1", "n2", "n3")]
    settings.LEAVE_OUT_NODES = True
    health.sweeps_check()
    links = [Watch.objects.get(name=f"Link of {ends}") for ends in ("n1 and n2", "n2 and n3", "n3 and n1")]
    first = slow_link(links[0])
    assert first.cause == "link n1 - n2"
    assert not health.alert_follow(alert=first), "it may be either node"
    second = slow_link(links[1])
    assert (second.cause, second.leader) == ("node n2", first), "both links are one alert"
    first.refresh_from_db()
    assert first.cause == "node n2"
    assert health.alert_follow(alert=second)
    for node in nodes:
        node.refresh_from_db()
    assert [bool(node.left_out) for node in nodes] == [False, True, False]
    assert nodes[1].left_out.startswith("Link of n2 and n3: All-reduce between n2 and n3 \N{MINUS SIGN}5")
    third = slow_link(links[2])
    assert third.cause == "link n3 - n1", "with all links slow no node stands out"


def test_a_node_that_is_left_out_gets_only_sweeps_and_waiting_runs_name_the_reason(
    admin_user: User,
    add_node: Callable[..., Node],
    make_config: Callable[..., Config],
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    node = add_node()
    node_leave_out(node=node, reason="GPU 3 is slow", by="mia")
    with pytest.raises(ValueError, match="reason is empty"):
        node_leave_out(node=node, reason=" ", by="mia")
    config_launch(config=make_config(data=SMALL), user=admin_user)
    waiting = Run.objects.get()
    assert "node n1 is left out: GPU 3 is slow; put it back on its page" in waiting_reason(waiting)
    sweep = make_config(data=health.sweep_data([node]))
    config_launch(config=sweep, user=admin_user)
    dispatch()
    states = dict(Run.objects.values_list("config", "state"))
    assert states[sweep.pk] == "dispatched"
    assert states[waiting.config_id] == "queued"
    with django_capture_on_commit_callbacks(execute=False):
        assert node_put_back(node=node, by="mia")
    assert "left out" not in waiting_reason(waiting)


def test_a_sweep_is_alone_on_its_node(
    admin_user: User, add_node: Callable[..., Node], make_config: Callable[..., Config]
) -> None:
    node = add_node(slots=2)
    add_node("n2", slots=2)
    config_launch(config=make_config(data=health.sweep_data([node])), user=admin_user)
    config_launch(config=make_config(data=SMALL | {"cluster": {"node_names": "n1"}}), user=admin_user)
    dispatch()
    first, second = Run.objects.order_by("pk")
    assert (first.state, second.state) == ("dispatched", "queued")
    assert "node n1 is busy" in waiting_reason(second)
    Node.objects.filter(name="n1").update(last_heartbeat_at=None)
    assert "no node of pool default is online: n1" in waiting_reason(second)
