"""Nodes that exclude themselves: after attempts that they ended, and after faults of their hardware."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from parlab.fleet import services
from parlab.fleet.bad_nodes import exclusions_expire, nodes_judge
from parlab.fleet.excluded_nodes import node_leave_out, node_put_back
from parlab.ingest.batches.orders import due_order
from parlab.lab.models import Attempt, AuditEntry, Event, Exclusion, InboxItem, Member, Node, Run
from parlab.lab.services.members import attempt_report
from parlab.lab.services.node_faults import is_node_fault
from runners.wire.protocol import Report, RunSpec, RunState
from tests.conftest import place

pytestmark = [pytest.mark.django_db, pytest.mark.database]

Make = Callable[..., Attempt]


@pytest.fixture
def lose(make_attempt: Make) -> Callable[..., Member]:
    """Let an attempt on a node end: lose(node, "reason", state="lost", host="n2", ago_s=60)."""
    numbers = iter(range(1, 100))

    def end(node: Node, reason: str = "node gpu1 was restarted during the run", **given: Any) -> Member:
        attempt = make_attempt(state="running", point={"train.seed": next(numbers)})
        environment = {given.get("system", "slurm"): {"node": given["host"]}} if "host" in given else {}
        place(attempt, node, environment=environment)
        at = timezone.now().timestamp() - given.get("ago_s", 0)
        report = Report(state=given.get("state", "lost"), at=at, reason=reason)
        assert attempt_report(attempt=attempt, report=report)
        return attempt.members.get()

    return end


def excluded(node: Node) -> str:
    node.refresh_from_db()
    return node.left_out


@pytest.mark.parametrize(
    ("state", "reason", "is_fault"),
    [
        ("lost", "node gpu1 has sent no heartbeat for 33 s; check its daemon and its network", True),
        ("lost", "its supervisor on gpu1 was killed; the processes of the run were ended", True),
        ("lost", "Slurm job 7 on n2 ended as NODE_FAIL: one of its nodes failed", True),
        ("lost", "Slurm job 7 on n2 ended as PREEMPTED: a job of higher priority took its nodes", False),
        ("lost", "pod parlab-a-7-1-0 on n2: the node is not ready, and nothing came from it for 41 s", True),
        ("lost", "Kubernetes does not know pod parlab-a-7-1-0 any more, and its supervisor left no report", False),
        ("lost", "pod parlab-a-7-1-0 on n2 ended as Error: it was started a second time, which would", False),
        ("lost", "Slurm job 7 was requeued (no reason given) and then cancelled", False),
        ("lost", "prepared, but not told to start within 60 s; check the other nodes of the run", False),
        ("failed", "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered on rank 3", True),
        ("failed", "exit code 1 on rank 3; the node failed its health check: GPU 3: 2 of 4 NVLinks are active", True),
        ("failed", "ValueError: no good (exit code 1)", False),
        ("oom", "out of memory on rank 1", False),
        ("cancelled", "cancelled by ada", False),
    ],
)
def test_what_counts_against_a_node(state: str, reason: str, is_fault: bool) -> None:
    assert is_node_fault(state, reason, "", is_consequence=False) is is_fault
    assert not is_node_fault(state, reason, "", is_consequence=True)


def test_the_third_attempt_that_a_node_ends_excludes_it_for_a_day(
    make_node: Callable[..., Node], lose: Callable[..., Member]
) -> None:
    bad, good = make_node("gpu1"), make_node("gpu2")
    lose(good)
    for _ in range(2):
        lose(bad)
    assert (nodes_judge(), excluded(bad)) == (0, "")
    lose(bad)
    assert (nodes_judge(), nodes_judge()) == (1, 0)
    assert excluded(bad) == ("it ended 3 attempts within 24 h, the last one: node gpu1 was restarted during the run")
    assert excluded(good) == ""
    exclusion = bad.exclusions.get()
    assert exclusion.until is not None
    assert exclusion.until - exclusion.at == timedelta(hours=24)
    item = InboxItem.objects.open().get(kind=Event.Kind.NODE_EXCLUDED)
    assert (item.node, item.data["place"]) == (bad, "gpu1")
    assert Event.objects.filter(kind=Event.Kind.NODE_EXCLUDED, text__startswith="Node gpu1 gets no runs").count() == 1
    entry = AuditEntry.objects.get()
    assert (entry.username, entry.route) == ("parlab", "node-act")
    assert "it ended 3 attempts" in entry.path


def test_ends_of_long_ago_and_those_that_others_caused_do_not_count(
    make_node: Callable[..., Node], lose: Callable[..., Member]
) -> None:
    node = make_node()
    lose(node, ago_s=90_000)
    lose(node, ago_s=90_000)
    lose(node, "Slurm job 7 on n2 ended as PREEMPTED: a job of higher priority took its nodes")
    lose(node, "ValueError: no good", state="failed")
    lose(node)
    assert nodes_judge() == 0


def test_a_node_that_was_put_back_begins_anew(make_node: Callable[..., Node], lose: Callable[..., Member]) -> None:
    node = make_node()
    for _ in range(3):
        lose(node)
    nodes_judge()
    assert node_put_back(node=node, by="ada")
    assert (excluded(node), nodes_judge()) == ("", 0)
    assert node.exclusions.get().ended_by == "ada"
    item = InboxItem.objects.get(kind=Event.Kind.NODE_EXCLUDED)
    assert (item.is_open, item.done_reason) == (False, "put back by ada")
    for _ in range(3):
        lose(node)
    assert nodes_judge() == 1


def test_an_exclusion_ends_by_itself_and_that_of_a_person_does_not(
    make_node: Callable[..., Node], lose: Callable[..., Member]
) -> None:
    bad, person = make_node("gpu1"), make_node("gpu2")
    for _ in range(3):
        lose(bad)
    nodes_judge()
    node_leave_out(node=person, reason="new cables", by="ada")
    Exclusion.objects.update(at=timezone.now() - timedelta(days=9))
    assert exclusions_expire() == 0
    Exclusion.objects.exclude(until=None).update(until=timezone.now() - timedelta(seconds=1))
    assert (exclusions_expire(), excluded(bad), excluded(person)) == (1, "", "new cables")
    assert not InboxItem.objects.open().exists()


@pytest.mark.usefixtures("broker")
def test_the_next_attempt_goes_to_another_node(
    make_node: Callable[..., Node], lose: Callable[..., Member], make_attempt: Make
) -> None:
    bad = make_node("gpu1", slots=8)
    for _ in range(3):
        lose(bad)
    Run.objects.filter(state=RunState.QUEUED).update(state=RunState.CANCELLED)
    Attempt.objects.filter(state=RunState.QUEUED).update(state=RunState.CANCELLED)
    waiting = make_attempt(state="queued", point={"train.seed": 99})
    assert services.dispatch() == 0
    assert services.waiting_reason(waiting.run).startswith("node gpu1 is left out: it ended 3 attempts within 24 h")
    make_node("gpu2")
    assert services.dispatch() == 1
    assert [node.name for node in waiting.nodes] == ["gpu2"]


def test_a_fault_of_the_hardware_excludes_at_once_and_only_once(make_node: Callable[..., Node]) -> None:
    node = make_node()
    fault = {"device": "GPU 3", "kind": "ecc", "text": "2 uncorrectable ECC errors", "is_fatal": True}
    noted = {"device": "GPU 4", "kind": "remap", "text": "a row waits to be remapped", "is_fatal": False}
    Node.objects.update(hardware={"gpus": [], "faults": [noted]})
    assert nodes_judge() == 0
    Node.objects.update(hardware={"gpus": [], "faults": [fault, noted]})
    assert nodes_judge() == 1
    assert excluded(node) == "it failed its health check: GPU 3: 2 uncorrectable ECC errors"
    node_put_back(node=node, by="ada")
    assert nodes_judge() == 0, "a person has put it back in spite of this fault"
    Node.objects.update(hardware={"gpus": [], "faults": [{**fault, "device": "GPU 5"}]})
    assert nodes_judge() == 1


@pytest.fixture
def login(make_node: Callable[..., Node]) -> Node:
    return make_node("login", slots=8, abilities={"kind": "slurm"})


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(
    ("system", "reason"),
    [
        ("slurm", "Slurm job 7 on n2 ended as NODE_FAIL: one of its nodes failed"),
        ("kubernetes", "pod parlab-a-7-1-0 on n2: the node is not ready, and nothing came from it for 41 s"),
    ],
)
def test_a_bad_node_of_a_batch_system_is_excluded_from_later_jobs(
    system: str, reason: str, login: Node, lose: Callable[..., Member], make_attempt: Make
) -> None:
    Node.objects.filter(pk=login.pk).update(abilities={"kind": system})
    login.refresh_from_db()
    for _ in range(3):
        lose(login, reason, host="n2", system=system)
    reason = "node n3 failed its health check: GPU 0: XID 79; later jobs leave it out"
    lose(login, reason, host="n3", system=system)
    Run.objects.filter(state=RunState.QUEUED).update(state=RunState.CANCELLED)
    Attempt.objects.filter(state=RunState.QUEUED).update(state=RunState.CANCELLED)
    assert nodes_judge() == 2
    assert excluded(login) == "", "its other nodes take jobs"
    assert set(login.exclusions.open().values_list("host", "cause")) == {("n2", "attempts"), ("n3", "health")}
    attempt = make_attempt(state="queued", point={"train.seed": 99})
    assert services.dispatch() == 1
    attempt.refresh_from_db()
    order = due_order(attempt, attempt.members.get())
    assert isinstance(order, RunSpec)
    assert order.config[system]["exclude"] == "n2,n3"
    node_put_back(node=login, by="ada", host="n2")
    assert login.exclusions.open().get().host == "n3"


def test_the_page_of_a_node_shows_why_and_until_when_and_puts_it_back(
    page: Any, login: Node, lose: Callable[..., Member], user: User
) -> None:
    for _ in range(3):
        lose(login, "Slurm job 7 on n2 ended as NODE_FAIL: one of its nodes failed", host="n2")
    nodes_judge()
    shown = page.get("/nodes/login/").content.decode()
    assert "Excluded compute nodes" in shown
    assert "it ended 3 attempts within 24 h" in shown
    assert f"Until {timezone.now() + timedelta(hours=24):%Y-%m-%d}" in shown
    listed = page.get("/api/nodes/login/").json()
    assert [(each["host"], each["cause"]) for each in listed["excluded"]] == [("n2", "attempts")]
    assert "excluded: n2</span>" in page.get("/nodes/").content.decode()
    inbox = page.get("/inbox/").content.decode()
    assert "n2</span> <b" in inbox
    page.post("/nodes/login/put-back/", {"host": "n2"})
    assert not login.exclusions.open().exists()
    assert AuditEntry.objects.filter(user=user, route="node-act").exists()
