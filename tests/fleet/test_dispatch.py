"""Queued runs go to nodes with room: in order, once, signed."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from parlab.fleet import services
from parlab.ingest.batches.orders import for_any_node
from parlab.lab.models import Attempt, Config, Member, Node, Run
from parlab.lab.services.runs import config_launch
from runners.wire.protocol import LEASE_S, RunSpec, RunState
from tests.conftest import SMALL, place

from .conftest import Received

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture
def dispatch(django_capture_on_commit_callbacks: Any) -> Callable[[], int]:
    """Dispatch, and let happen what happens after a commit, though a test never commits."""

    def run() -> int:
        with django_capture_on_commit_callbacks(execute=True):
            return services.dispatch()

    return run


def test_a_launch_reaches_the_node_as_a_signed_spec(
    make_config: Callable[..., Config],
    make_node: Callable[..., Node],
    received: Received,
    user: User,
    django_capture_on_commit_callbacks: Any,
) -> None:
    make_node("gpu1")
    with django_capture_on_commit_callbacks(execute=True):
        (run,) = services.launch(config=make_config(), user=user).created
    attempt = run.current_attempt()
    assert received("gpu1") == [RunSpec(run=run.pk, attempt=1, node="gpu1", config=for_any_node(run.resolved))]
    run.refresh_from_db()
    assert run.state == attempt.state == RunState.DISPATCHED
    assert attempt.node is not None
    assert attempt.node.name == "gpu1"
    lease = attempt.members.get().lease_expires_at
    assert lease is not None
    assert 0 < (lease - timezone.now()).total_seconds() <= LEASE_S


def test_a_node_gets_no_more_runs_than_it_has_slots_and_oldest_come_first(
    make_config: Callable[..., Config],
    make_node: Callable[..., Node],
    received: Received,
    dispatch: Callable[[], int],
    user: User,
) -> None:
    runs = config_launch(config=make_config(sweep={"train.seed": [1, 2, 3, 4]}), user=user).created
    make_node("gpu1", slots=2)
    make_node("gpu2", slots=1)
    assert dispatch() == 3
    sent = [message.run for node in ("gpu1", "gpu2") for message in received(node)]
    assert sorted(sent) == [run.pk for run in runs[:3]]
    assert dispatch() == 0
    assert Attempt.objects.get(run=runs[3]).state == RunState.QUEUED


@pytest.mark.parametrize(
    "unfit",
    [{"online": False}, {"is_enabled": False}, {"pool": "other"}],
    ids=["offline", "disabled", "of another pool"],
)
def test_nothing_goes_to_a_node_that_is(
    unfit: dict[str, Any],
    make_config: Callable[..., Config],
    make_node: Callable[..., Node],
    dispatch: Callable[[], int],
    broker: str,
    user: User,
) -> None:
    make_node("gpu1", **unfit)
    config_launch(config=make_config(), user=user)
    assert dispatch() == 0


def test_a_cuda_run_waits_for_enough_gpus_and_holds_up_nobody(
    make_config: Callable[..., Config],
    make_node: Callable[..., Node],
    received: Received,
    dispatch: Callable[[], int],
    user: User,
) -> None:
    make_node("small", gpus=1, slots=4)
    make_node("big", gpus=3, slots=4)
    config = make_config(data={**SMALL, "cluster": {"device": "cuda"}}, sweep={"train.seed": [1, 2]})
    first, second = config_launch(config=config, user=user).created
    (third,) = config_launch(config=make_config(data={**SMALL, "cluster": {"device": "cpu"}}), user=user).created
    assert dispatch() == 2
    # Two ranks need two GPUs: of big's three only one is left for the second run.
    by_run = {attempt.run_id: attempt for attempt in Attempt.objects.with_members()}
    assert getattr(by_run[first.pk].node, "name", None) == "big"
    assert by_run[second.pk].state == RunState.QUEUED
    assert by_run[third.pk].state == RunState.DISPATCHED


def test_an_unconfirmed_start_is_sent_again_after_a_while(
    make_attempt: Callable[..., Attempt],
    make_node: Callable[..., Node],
    received: Received,
    dispatch: Callable[[], int],
) -> None:
    attempt = make_attempt(state="dispatched")
    sent_at = timezone.now()
    place(attempt, make_node("gpu1"), dispatched_at=sent_at, lease_expires_at=sent_at)
    assert dispatch() == 0
    Member.objects.update(dispatched_at=sent_at - timedelta(seconds=services.RESEND_S + 1))
    assert dispatch() == 1
    assert dispatch() == 0, "it has just been sent"
    assert [(message.run, message.attempt) for message in received("gpu1")] == [(attempt.run_id, 1)]
    assert attempt.members.get().lease_expires_at == sent_at, "only the node renews a lease"


def test_an_unconfirmed_start_that_was_cancelled_is_cancelled_again_not_started(
    make_attempt: Callable[..., Attempt],
    make_node: Callable[..., Node],
    received: Received,
    dispatch: Callable[[], int],
) -> None:
    attempt = make_attempt(state="dispatched")
    long_ago = timezone.now() - timedelta(seconds=services.RESEND_S + 1)
    place(attempt, make_node("gpu1"), dispatched_at=long_ago, lease_expires_at=long_ago)
    Run.objects.update(cancel_requested_at=long_ago)
    assert dispatch() == 1
    assert [message.purpose for message in received("gpu1")] == ["cancel"]


def test_a_broker_that_is_away_loses_nothing(
    make_config: Callable[..., Config], make_node: Callable[..., Node], user: User, dispatch: Callable[[], int]
) -> None:
    make_node("gpu1")
    (run,) = config_launch(config=make_config(), user=user).created
    assert dispatch() == 1
    assert run.current_attempt().state == RunState.DISPATCHED, "it is sent again when the broker is back"


def test_dispatching_many_runs_costs_no_more_queries_than_a_few(
    make_config: Callable[..., Config],
    make_node: Callable[..., Node],
    user: User,
    broker: str,
    django_assert_max_num_queries: Any,
) -> None:
    make_node("gpu1", slots=120)
    config_launch(config=make_config(sweep={"train.seed": list(range(200))}), user=user)
    with django_assert_max_num_queries(16):
        assert services.dispatch() == 120
    assert Run.objects.filter(state=RunState.DISPATCHED).count() == 120
    assert Member.objects.count() == 120
    with django_assert_max_num_queries(6):  # a full fleet
        assert services.dispatch() == 0
