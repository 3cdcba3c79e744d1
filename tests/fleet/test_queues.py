"""Nodes that submit runs as jobs of Slurm: one slot is one job on any number of nodes, and a job may wait there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from parlab.fleet import services
from parlab.ingest.batches.orders import for_any_node
from parlab.lab.models import Attempt, Member
from runners.config import RunConfig
from runners.wire.protocol import Abilities, Heartbeat, HeldRun, NodeKind, RunSpec
from tests.conftest import SMALL

from .conftest import Received

pytestmark = pytest.mark.django_db
WIDE = {**SMALL, "cluster": {"pool": "hpc", "nodes": 2, "gpus_per_node": 1}}


def beat(*held: HeldRun, kind: NodeKind = "slurm") -> None:
    services.heartbeats(
        messages=[
            Heartbeat(
                node="login1",
                pool="hpc",
                sent_at=time.time(),
                slots=2,
                version="0.1.0",
                hardware={},
                held=list(held),
                abilities=Abilities(kind=kind),
            )
        ]
    )


@pytest.fixture
def queued(make_config: Callable[..., Any], make_attempt: Callable[..., Attempt]) -> Callable[..., Attempt]:
    """Queue a run on two nodes of the pool."""
    config = make_config(data=WIDE)
    return lambda number=1: make_attempt(state="queued", config=config, point={"train.seed": number})


def test_all_members_of_a_run_go_to_the_node_that_submits_the_job(
    queued: Callable[..., Attempt], received: Received, django_capture_on_commit_callbacks: Any
) -> None:
    beat()
    attempts = [queued(number) for number in range(3)]
    with django_capture_on_commit_callbacks(execute=True):
        services.dispatch()
    orders = received("login1")
    assert all(isinstance(order, RunSpec) and order.nodes == 2 for order in orders)
    assert sorted((order.run, order.node_rank) for order in orders) == [
        (attempt.run_id, rank) for attempt in attempts[:2] for rank in (0, 1)
    ], "two slots are two jobs"
    reason = services.waiting_reason(attempts[2].run)
    assert "node login1 is busy with #1" in reason


def test_the_page_of_a_run_shows_why_its_job_waits(
    queued: Callable[..., Attempt], received: Received, page: Client, django_capture_on_commit_callbacks: Any
) -> None:
    beat()
    attempt = queued()
    with django_capture_on_commit_callbacks(execute=True):
        services.dispatch()
    text = "Slurm job 12 is PENDING: Priority, place 3 of 9 in partition gpu"
    held = [HeldRun(run=attempt.run_id, attempt=1, node_rank=rank, alive=True, waiting=text) for rank in (0, 1)]
    beat(*held)
    attempt.run.refresh_from_db()
    assert services.waiting_reason(attempt.run) == text
    for url in (attempt.run.get_absolute_url(), attempt.run.experiment.get_absolute_url()):
        assert text in page.get(url).content.decode()
    Member.objects.update(state="running")
    beat(*(each.model_copy(update={"waiting": ""}) for each in held))
    assert services.waiting_reason(attempt.run) == ""


def test_a_run_on_gpus_goes_to_kubernetes_which_itself_knows_how_many_a_node_has(
    make_config: Callable[..., Any],
    make_attempt: Callable[..., Attempt],
    received: Received,
    django_capture_on_commit_callbacks: Any,
) -> None:
    wide = {**WIDE, "cluster": {**WIDE["cluster"], "device": "cuda"}, "kubernetes": {"image": "team/train:7"}}
    attempt = make_attempt(state="queued", config=make_config(data=wide), point={})
    beat()
    services.dispatch()
    assert "needs 1 GPUs on one node" in services.waiting_reason(attempt.run), "Slurm has stated none"
    beat(kind="kubernetes")
    with django_capture_on_commit_callbacks(execute=True):
        services.dispatch()
    orders = received("login1")
    assert sorted(order.node_rank for order in orders) == [0, 1]
    assert all(isinstance(order, RunSpec) and order.config["kubernetes"]["image"] == "team/train:7" for order in orders)


def test_daemons_of_the_last_release_get_no_section_that_they_do_not_know(make_config: Callable[..., Any]) -> None:
    resolved = RunConfig.model_validate(SMALL).resolved()
    assert "kubernetes" in resolved
    assert "kubernetes" not in for_any_node(resolved)
