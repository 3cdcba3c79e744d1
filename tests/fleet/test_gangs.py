"""A run on several nodes: all of them or none, two phases, and the first cause of its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from parlab.fleet import services
from parlab.fleet.differences import node_differences
from parlab.ingest.batches import orders
from parlab.ingest.batches.orders import for_any_node
from parlab.ingest.batches.services import batch_apply
from parlab.lab.models import Attempt, Config, Member, Node, Run
from parlab.lab.services import runs as runs_services
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.members import attempt_report
from parlab.lab.services.runs import config_launch
from runners.wire.protocol import (
    Abilities,
    Batch,
    Cancel,
    Go,
    Heartbeat,
    HeldRun,
    Rendezvous,
    Report,
    RunSpec,
    RunState,
    node_queue,
)
from runners.wire.trust import LIFETIME_S
from tests.conftest import SMALL

from .conftest import Received

pytestmark = [pytest.mark.django_db, pytest.mark.database]

THREE: dict[str, Any] = {
    **SMALL,
    "model": {**SMALL["model"], "num_layers": 3},
    "parallel": {"pipeline_parallel_size": 3},
    "cluster": {"nodes": 3, "device": "cpu"},
}
NAMES = ("a", "b", "c")


@pytest.fixture
def dispatch(django_capture_on_commit_callbacks: Any) -> Callable[[], int]:
    def run() -> int:
        with django_capture_on_commit_callbacks(execute=True):
            return services.dispatch()

    return run


@pytest.fixture
def gang(make_config: Callable[..., Config], user: User) -> Run:
    """A queued run that needs three nodes."""
    (run,) = config_launch(config=make_config(data=THREE), user=user).created
    return run


@pytest.fixture
def on_three(gang: Run, make_node: Callable[..., Node], dispatch: Callable[[], int], received: Received) -> Attempt:
    """An attempt that was sent to the nodes a, b and c."""
    for name in NAMES:
        make_node(name)
    assert dispatch() == 3
    for name in NAMES:
        received(name)
    return gang.current_attempt()


@pytest.fixture
def report(django_capture_on_commit_callbacks: Any) -> Callable[..., None]:
    """Ship a report of a member as its next batch: report(attempt, 1, "failed", reason="x")."""

    def ship(attempt: Attempt, node_rank: int, state: str, **fields: Any) -> None:
        member = attempt.members.get(node_rank=node_rank)
        sent = Report.model_validate({"state": state, "at": time.time(), **fields})
        batch = Batch(
            run=attempt.run_id,
            attempt=attempt.number,
            node=member.node_name,
            node_rank=node_rank,
            sequence=member.committed,
            next_sequence=member.committed + 1,
            reports=[sent],
        )
        with django_capture_on_commit_callbacks(execute=True):
            batch_apply(batch=batch)
        attempt.refresh_from_db()

    return ship


def prepared(node_rank: int) -> dict[str, Any]:
    return {"rendezvous": Rendezvous(address=f"10.0.0.{node_rank + 1}", port=29500 if node_rank == 0 else 0)}


def test_all_nodes_of_a_run_at_once_or_none(
    gang: Run, make_node: Callable[..., Node], received: Received, dispatch: Callable[[], int]
) -> None:
    make_node("a")
    make_node("b")
    assert dispatch() == 0
    assert services.waiting_reason(gang).startswith(
        "needs 3 nodes at once; pool default has 2 that can take it: a, b; start more daemons"
    )
    make_node("c")
    assert dispatch() == 3
    orders = [received(name) for name in NAMES]
    assert orders == [
        [RunSpec(run=gang.pk, attempt=1, node=name, config=for_any_node(gang.resolved), node_rank=rank, nodes=3)]
        for rank, name in enumerate(NAMES)
    ]
    assert dispatch() == 0


def test_the_last_node_that_is_prepared_starts_all(
    on_three: Attempt, received: Received, report: Callable[..., None]
) -> None:
    for node_rank in (2, 0):
        report(on_three, node_rank, "prepared", **prepared(node_rank))
        assert not any(received(name) for name in NAMES)
    report(on_three, 1, "prepared", **prepared(1))
    assert on_three.state == RunState.DISPATCHED
    for node_rank, name in enumerate(NAMES):
        (order,) = received(name)
        assert isinstance(order, Go)
        assert order.node_rank == node_rank
        assert [(peer.node, peer.address, peer.port) for peer in order.members] == [
            ("a", "10.0.0.1", 29500),
            ("b", "10.0.0.2", 0),
            ("c", "10.0.0.3", 0),
        ]
    report(on_three, 1, "running")
    assert on_three.state == RunState.RUNNING


def test_an_order_to_go_is_repeated_until_the_node_runs(
    on_three: Attempt, received: Received, report: Callable[..., None], dispatch: Callable[[], int]
) -> None:
    for node_rank in range(3):
        report(on_three, node_rank, "prepared", **prepared(node_rank))
    report(on_three, 0, "running")
    [received(name) for name in NAMES]
    Member.objects.update(dispatched_at=timezone.now() - timedelta(seconds=services.RESEND_S + 1))
    assert dispatch() == 2
    assert [[type(order) for order in received(name)] for name in NAMES] == [[], [Go], [Go]]


def test_the_first_cause_is_named_and_the_others_are_its_consequences(
    on_three: Attempt, received: Received, report: Callable[..., None]
) -> None:
    for node_rank in range(3):
        report(on_three, node_rank, "prepared", **prepared(node_rank))
        [received(name) for name in NAMES]
    for node_rank in range(3):
        report(on_three, node_rank, "running")
    now = time.time()
    # The report of the peer that lost its connection comes first.
    report(on_three, 0, "failed", at=now - 1, reason="rank 0: connection closed by peer", is_consequence=True)
    assert on_three.state == RunState.RUNNING, "the others still run"
    assert [received(name) for name in NAMES] == [[], [], []], "the first cause may still be reported"
    report(on_three, 1, "failed", at=now - 2, reason="ValueError: x", first_failed_rank=1, traceback="T", exit_code=3)
    cancels = [order for name in NAMES for order in received(name)]
    assert [(type(order), order.node) for order in cancels] == [(Cancel, "c")]
    assert cancels[0].reason == "node b, rank 1: ValueError: x"
    assert cancels[0].is_consequence, "a person's cancel is none"
    report(on_three, 2, "cancelled", at=now, reason="cancelled: node a ...")
    assert (on_three.state, on_three.reason) == ("failed", "node b, rank 1: ValueError: x")
    assert (on_three.traceback, on_three.exit_code) == ("T", 3)
    assert [member.is_consequence for member in on_three.members.all()] == [True, False, True]
    assert Run.objects.get().reason == on_three.reason


def test_a_consequence_whose_cause_is_not_reported_stops_the_others_after_a_while(
    on_three: Attempt, received: Received, report: Callable[..., None]
) -> None:
    at = time.time() - 60
    report(on_three, 0, "failed", at=at, reason="rank 0: connection closed by peer", is_consequence=True)
    cancels = [order for name in NAMES for order in received(name) if isinstance(order, Cancel)]
    assert [order.node for order in cancels] == ["b", "c"]
    assert cancels[0].reason == "node a: rank 0: connection closed by peer"


def test_clocks_that_differ_do_not_change_the_first_cause(
    on_three: Attempt, received: Received, report: Callable[..., None]
) -> None:
    Node.objects.filter(name="b").update(clock={"offset_s": 60.0, "error_s": 0.001})
    now = time.time()
    report(on_three, 0, "failed", at=now, reason="second")
    report(on_three, 1, "failed", at=now + 58, reason="first")
    report(on_three, 2, "failed", at=now + 1, reason="third")
    assert on_three.reason == "node b: first"


def test_a_node_that_is_lost_ends_the_run_on_the_others_and_starts_the_next_attempt(
    on_three: Attempt, broker: str, received: Received, report: Callable[..., None], dispatch: Callable[[], int]
) -> None:
    for node_rank in range(3):
        report(on_three, node_rank, "running")
    redis.Redis.from_url(broker).set(services.AWAKE_KEY, time.time() - 60, ex=15)
    Node.objects.filter(name="c").update(last_heartbeat_at=timezone.now() - timedelta(seconds=40))
    on_three.members.filter(node_rank=2).update(lease_expires_at=timezone.now() - timedelta(seconds=10))
    assert services.reap() == 1
    assert on_three.state == RunState.RUNNING
    held = HeldRun(run=on_three.run_id, attempt=1, node_rank=1, alive=True)
    services.heartbeats(messages=[beat("b", held)])
    (order,) = received("b")
    assert isinstance(order, Cancel)
    assert "node c has sent no heartbeat for 4" in order.reason
    assert order.is_consequence
    for node_rank in (0, 1):
        report(on_three, node_rank, "cancelled")
    assert on_three.state == RunState.LOST
    assert on_three.reason.startswith("node c has sent no heartbeat")
    run = Run.objects.get()
    assert (run.state, run.attempt_number) == ("queued", 2)
    assert dispatch() == 0, "only two nodes are left"


def test_a_node_that_does_not_prepare_in_time_ends_the_attempt_and_is_named(
    on_three: Attempt, broker: str, report: Callable[..., None]
) -> None:
    redis.Redis.from_url(broker).set(services.AWAKE_KEY, time.time() - 60, ex=15)
    report(on_three, 0, "prepared", **prepared(0))
    report(on_three, 2, "prepared", **prepared(2))
    assert services.reap() == 0
    Member.objects.update(assigned_at=timezone.now() - timedelta(seconds=31))
    assert services.reap() == 1
    for node_rank in (0, 2):
        report(on_three, node_rank, "cancelled")
    assert on_three.reason == "node b did not prepare the run within 30 s; see the log of its daemon"


def test_a_cancel_reaches_all_nodes(on_three: Attempt, received: Received, report: Callable[..., None]) -> None:
    report(on_three, 0, "prepared", **prepared(0))
    services.cancel(run=on_three.run)
    orders.follow([on_three.pk])
    assert [[type(order) for order in received(name)] for name in NAMES] == [[Cancel]] * 3
    for node_rank in range(3):
        report(on_three, node_rank, "cancelled", reason="cancelled by a person")
    assert (on_three.state, on_three.reason) == ("cancelled", "cancelled by a person")
    assert not on_three.members.filter(is_consequence=True).exists()


def test_small_runs_fill_gaps_until_a_large_one_has_waited_too_long(
    make_config: Callable[..., Config], make_node: Callable[..., Node], gang: Run, user: User, broker: str
) -> None:
    for name in NAMES:
        make_node(name)
    config = make_config(sweep={"train.seed": [1, 2, 3, 4]})
    small = config_launch(config=config, user=user).created
    Run.objects.filter(pk=small[0].pk).update(queued_at=gang.queued_at - timedelta(seconds=1))
    services.dispatch()
    assert states(gang, *small) == ["queued", "dispatched", "dispatched", "dispatched", "queued"]

    end(small[0], small[1])
    Run.objects.filter(pk=gang.pk).update(queued_at=timezone.now() - timedelta(seconds=61))
    services.dispatch()
    assert states(gang, small[3]) == ["queued", "queued"], "two nodes are reserved"
    assert f"is reserved for #{gang.number}, which waits for longer" in services.waiting_reason(small[3])
    assert services.waiting_reason(gang).startswith("needs 3 nodes at once; 2 of 3 are free: ")

    end(small[2])
    services.dispatch()
    assert states(gang, small[3]) == ["dispatched", "queued"]


def test_runs_that_end_in_time_fill_the_gap_before_a_reservation_and_never_move_it(
    make_config: Callable[..., Config], make_node: Callable[..., Node], gang: Run, user: User, broker: str
) -> None:
    for name in NAMES:
        make_node(name)
    (busy,) = config_launch(config=make_config(), user=user).created
    Run.objects.filter(pk=busy.pk).update(queued_at=gang.queued_at - timedelta(seconds=1))
    aged = timezone.now() - timedelta(seconds=61)
    assert services.dispatch() == 1, "the other two nodes are too few for the large run"
    begun = timezone.now() - timedelta(seconds=600)
    busy.attempts.update(state=RunState.RUNNING, started_at=begun, last_step=None)
    Run.objects.filter(pk=gang.pk).update(queued_at=aged)

    short, long = (
        config_launch(config=make_config(data={**SMALL, "launcher": {"timeout_s": limit}}), user=user).created[0]
        for limit in (2000, 3600)
    )
    services.dispatch()
    assert states(gang, short, long) == ["queued", "dispatched", "queued"], "3,000 s are left of the busy node's limit"
    assert "a run with launcher.timeout_s of at most 29" in services.waiting_reason(long)

    end(short)
    (other,) = config_launch(config=make_config(data={**SMALL, "launcher": {"timeout_s": 2000}}), user=user).created
    iterations = busy.resolved["train"]["iterations"]
    busy.attempts.update(last_step=iterations - 1)
    services.dispatch()
    assert states(gang, other) == ["queued", "queued"], "its last step will be done within minutes"
    end(busy)
    services.dispatch()
    assert states(gang, other) == ["dispatched", "queued"]


def test_a_node_takes_only_what_it_is_able_to(
    make_config: Callable[..., Config], make_node: Callable[..., Node], user: User, broker: str
) -> None:
    data = {**SMALL, "parallel": {"engine": "command"}, "command": {"argv": ["python", "train.py"]}}
    (run,) = config_launch(config=make_config(data=data), user=user).created
    able = {"engines": ["command"], "launchers": ["torchrun"], "commands": []}
    node = make_node("a", abilities=able)
    assert services.dispatch() == 0
    assert "node a allows no commands; start its daemon with PARLAB_ALLOWED_COMMANDS" in services.waiting_reason(run)
    Node.objects.update(abilities={**able, "commands": [["bash"]]})
    assert "node a does not allow python train.py" in services.waiting_reason(run)
    Node.objects.update(abilities={**able, "commands": [["python", "train.py"]]}, is_draining=True)
    assert services.dispatch() == 0
    assert "draining: a" in services.waiting_reason(run)
    Node.objects.update(is_draining=False)
    assert services.dispatch() == 1
    assert run.current_attempt().node == node


def test_srun_and_shaped_interfaces_wait_for_nodes_that_have_them(
    make_config: Callable[..., Config], make_node: Callable[..., Node], user: User, broker: str
) -> None:
    able = {"engines": ["pipeline"], "launchers": ["torchrun", "srun"], "interfaces": ["eth1"]}
    for name in NAMES:
        make_node(name, abilities=able)
    network = {"apply": "interface", "interface": "eth0", "bandwidth_gbps": 1}
    (shaped,) = config_launch(config=make_config(data={**THREE, "network": network}), user=user).created
    assert services.dispatch() == 0
    assert "node a allows no run to shape eth0; start its daemon with --shape eth0" in services.waiting_reason(shaped)
    Node.objects.update(abilities={**able, "interfaces": ["eth0"]})
    assert services.dispatch() == 3
    (spanning,) = config_launch(config=make_config(data={**THREE, "launcher": {"kind": "srun"}}), user=user).created
    assert "choose launcher.kind torchrun, deepspeed or mpirun, or a pool" in services.waiting_reason(spanning)


def test_nodes_of_a_run_have_the_same_device(
    make_config: Callable[..., Config], make_node: Callable[..., Node], user: User, broker: str
) -> None:
    data = {**THREE, "cluster": {"nodes": 3, "device": "cuda"}}
    (run,) = config_launch(config=make_config(data=data), user=user).created
    for name in NAMES:
        make_node(name, gpus=1)
    Node.objects.filter(name="c").update(hardware={"gpus": [{"index": 0, "name": "other"}]})
    assert services.dispatch() == 0
    assert "needs 3 nodes with the same device; pool default has different ones: other, test" in (
        services.waiting_reason(run)
    )
    make_node("d", gpus=1)
    assert services.dispatch() == 3
    assert sorted(member.node_name for member in run.current_attempt().members.all()) == ["a", "b", "d"]


def test_a_lease_that_a_node_asks_for_outlives_the_default(on_three: Attempt, broker: str) -> None:
    held = HeldRun(run=on_three.run_id, attempt=1, node_rank=1, alive=True)
    services.heartbeats(messages=[beat("b", held, lease_s=3600.0, is_draining=True)])
    lease = on_three.members.get(node_rank=1).lease_expires_at
    assert lease is not None
    assert lease > timezone.now() + timedelta(minutes=59)
    assert Node.objects.get(name="b").is_draining


def test_a_second_daemon_with_the_same_name_is_refused_and_flagged(db: None) -> None:
    services.heartbeats(messages=[beat("a", state_id="one", hardware={"hostname": "gpu1"})])
    services.heartbeats(messages=[beat("a", state_id="two", hardware={"hostname": "gpu2"}, slots=9)])
    node = Node.objects.get()
    assert (node.slots, node.conflict, node.has_conflict) == (1, "two@gpu2", True)
    Node.objects.update(last_heartbeat_at=timezone.now() - timedelta(minutes=1))
    services.heartbeats(messages=[beat("a", state_id="two", hardware={"hostname": "gpu2"})])
    assert Node.objects.get().identity == "two@gpu2", "the first one is gone"


def test_orders_go_to_the_daemon_that_has_the_name_of_the_node(broker: str, received: Received) -> None:
    able = Abilities(own_queue=True)
    services.heartbeats(messages=[beat("a", state_id="one", abilities=able), beat("old", state_id="any")])
    services.heartbeats(messages=[beat("a", state_id="two", abilities=able)])
    names = {"run": 1, "attempt": 1, "node_rank": 0, "reason": "a test"}
    assert orders.send_all([Cancel(node=node, **names) for node in ("a", "old")])
    with redis.Redis.from_url(broker) as client:
        assert 0 < client.ttl(node_queue("a", "one")) <= LIFETIME_S, "its daemon may never come back"
    assert [len(received("a", state)) for state in ("one", "two", "")] == [1, 0, 0]
    assert len(received("old")) == 1, "a daemon of an earlier release reads the queue of the node"

    Node.objects.update(last_heartbeat_at=timezone.now() - timedelta(minutes=1))
    services.heartbeats(messages=[beat("a", state_id="two", abilities=able)])
    assert orders.send(Cancel(node="a", **names))
    assert [len(received("a", state)) for state in ("one", "two", "")] == [0, 1, 0]


def test_abilities_and_clock_are_recorded(db: None) -> None:
    abilities = Abilities(engines=["pipeline"], software={"torch": "2.9"})
    services.heartbeats(messages=[beat("a", abilities=abilities, clock={"offset_s": 0.25, "error_s": 0.001})])
    node = Node.objects.get()
    assert (node.abilities["software"], node.clock_offset_s) == ({"torch": "2.9"}, 0.25)


def test_nodes_with_other_versions_and_wrong_clocks_are_named(make_node: Callable[..., Node]) -> None:
    nodes = [make_node(name, abilities={"software": {"torch": "2.9", "python": "3.11"}}) for name in NAMES]
    assert node_differences(nodes) == []
    nodes[1].abilities = {"software": {"torch": "2.8"}}
    nodes[2].clock = {"offset_s": -90.0, "error_s": 0.001}
    assert node_differences(nodes) == [
        "versions of torch differ: 2.8 on b, 2.9 on a, c; install the same version on all nodes",
        "the clock of node c is 90.0 s behind the server's; run a time service such as chrony on the node",
    ]


def beat(node: str, *held: HeldRun, **fields: Any) -> Heartbeat:
    facts: dict[str, Any] = {"pool": "default", "sent_at": time.time(), "slots": 1, "version": "1", "hardware": {}}
    return Heartbeat(node=node, held=list(held), **(facts | fields))


def states(*runs: Run) -> list[str]:
    return [Run.objects.get(pk=run.pk).state for run in runs]


def end(*runs: Run) -> None:
    for run in runs:
        attempt_report(attempt=run.current_attempt(), report=Report(state="finished", at=time.time()))


class MessagesInAnyOrder(TestCase):
    """Duplicated and reordered reports never make a state false."""

    ORDER = ("dispatched", "prepared", "running")

    def setUp(self) -> None:
        self.user = User.objects.create_user("ada")
        experiment = experiment_create(name="Any order", owner=self.user)
        config = config_save(experiment=experiment, data=THREE, sweep={}, user=self.user)
        (self.run_,) = runs_services.config_launch(config=config, user=self.user).created
        for name in NAMES:
            Node.objects.create(name=name, last_heartbeat_at=timezone.now())
        services.dispatch()

    @pytest.mark.slow
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(
            st.tuples(
                st.integers(min_value=0, max_value=2),
                st.sampled_from(["prepared", "running", "finished", "oom", "failed", "cancelled", "lost", "cancel"]),
                st.integers(min_value=-5, max_value=5),
                st.booleans(),
            ),
            max_size=12,
        )
    )
    def test_states_follow_from_the_members(self, events: list[tuple[int, str, int, bool]]) -> None:
        attempt = self.run_.attempts.get(number=1)
        for node_rank, event, later_s, is_consequence in events:
            before = dict(attempt.members.values_list("node_rank", "state"))
            if event == "cancel":
                Run.objects.filter(pk=self.run_.pk).update(cancel_requested_at=timezone.now())
            else:
                sent = Report.model_validate(
                    {"state": event, "at": time.time() + later_s, "reason": event, "is_consequence": is_consequence}
                )
                attempt_report(attempt=attempt, report=sent, node_rank=node_rank)
            attempt.refresh_from_db()
            members = list(attempt.members.all())
            for member in members:
                self._assert_forward(before[member.node_rank], member.state)
            self._assert_true(attempt, members)

    def _assert_forward(self, before: str, after: str) -> None:
        if before not in self.ORDER:
            assert after == before
        elif after in self.ORDER:
            assert self.ORDER.index(after) >= self.ORDER.index(before)

    def _assert_true(self, attempt: Attempt, members: list[Member]) -> None:
        run = Run.objects.get(pk=self.run_.pk)
        if any(member.is_active for member in members):
            assert not RunState(attempt.state).is_final, "a node still has processes"
            has_run = any(member.started_at or member.state == "finished" for member in members)
            assert attempt.state == ("running" if has_run else "dispatched")
        else:
            ends = {member.state for member in members}
            allowed = ends - {"finished"} or {"finished"}
            if "lost" in allowed:
                allowed.add("cancelled")
            assert attempt.state in allowed
            assert attempt.state == "finished" or any(not member.is_consequence for member in members)
        if run.attempt_number == attempt.number:
            assert (run.state, run.reason, run.started_at, run.ended_at) == (
                attempt.state,
                attempt.reason,
                attempt.started_at,
                attempt.ended_at,
            )
        else:
            assert attempt.state == "lost"
