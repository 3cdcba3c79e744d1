"""Checkpoints that the next attempt of a chain may not see, because each node keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from parlab.ingest.batches.orders import due_order
from parlab.lab.models import Attempt, Config, Node, Run
from parlab.lab.services.attempts import queue_next_attempt
from parlab.lab.services.runs import config_launch, run_relaunch
from parlab.series import store
from parlab.series.columns import Columns
from runners.config import ConfigError
from runners.wire.protocol import RunSpec
from tests.conftest import SMALL, place

pytestmark = pytest.mark.database

SAVES = {"checkpoint": {"every_steps": 10}}


@pytest.fixture
def launch(make_config: Callable[..., Config], user: User) -> Callable[..., Run]:
    def make(**sections: Any) -> Run:
        data = {**SMALL, "launcher": {"chain": True}, **SAVES, **sections}
        (run,) = config_launch(config=make_config(data=data), user=user).created
        return run

    return make


def add_node(name: str, **fields: Any) -> Node:
    return Node.objects.create(**{"name": name, "slots": 1, "last_heartbeat_at": timezone.now(), **fields})


def test_a_chain_on_several_nodes_needs_a_directory_that_all_of_them_see(launch: Callable[..., Run]) -> None:
    for name in ("n1", "n2"):
        add_node(name)
    with pytest.raises(ConfigError) as refused:
        launch()
    (problem,) = refused.value.problems
    assert problem.field == "checkpoint.directory"
    assert "may start on 2 nodes of pool default (n1, n2), and each keeps its checkpoints for itself" in problem.message
    assert "set it to a directory that all of them see, or cluster.node_names" in problem.message
    assert launch(checkpoint={"every_steps": 10, "directory": "/shared"}).state == "queued"
    assert launch(cluster={"node_names": "n2"}).state == "queued"


def test_one_node_keeps_the_checkpoints_of_a_chain_by_itself(launch: Callable[..., Run]) -> None:
    add_node("n1")
    add_node("other", pool="other")
    add_node("disabled", is_enabled=False)
    add_node("gone", last_heartbeat_at=timezone.now() - timedelta(days=2))
    assert launch().state == "queued"


def test_a_daemon_of_slurm_shares_its_state_directory_with_its_nodes(launch: Callable[..., Run]) -> None:
    for name in ("login1", "login2"):
        add_node(name, abilities={"kind": "slurm"})
    assert launch().state == "queued"


def sent(attempt: Attempt, node: Node) -> RunSpec:
    """Return the order to prepare an attempt."""
    Attempt.objects.filter(pk=attempt.pk).update(state="dispatched")
    member = place(attempt, node, state="dispatched")
    order = due_order(Attempt.objects.with_members().select_related("run").get(pk=attempt.pk), member)
    assert isinstance(order, RunSpec)
    return order


def test_the_next_attempt_is_told_which_step_is_saved_until_the_run_is_launched_anew(
    launch: Callable[..., Run], user: User
) -> None:
    node = add_node("n1")
    run = launch()
    first = run.current_attempt()
    assert "saved_step" not in sent(first, node).model_dump()
    steps = np.array([10, 20])
    store.append(first.pk, {("checkpoint/bytes", 0): Columns(steps, steps.astype(float), np.full(2, 1e6))})
    run.refresh_from_db()
    assert sent(queue_next_attempt(run), node).saved_step == 20
    Run.objects.update(state="failed", attempt_number=2)
    anew = run_relaunch(run=Run.objects.get(), user=user)
    assert sent(anew, node).saved_step is None
