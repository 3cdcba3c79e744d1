"""Ranks whose launcher gives them only an address in common: one run for a launch, another attempt for the next."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.client import journal
from parlab.lab.models import Run, Stream
from parlab.lab.services.access.tokens import token_create
from parlab.series import store
from tests.client.test_streams import Sender, output, record

pytestmark = pytest.mark.django_db


class Cluster:
    """Nodes whose ranks report; the time passes only when it is told to."""

    def __init__(self, sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sender = sender
        self.now = timezone.now()
        monkeypatch.setattr(timezone, "now", lambda: self.now)

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def open(self, name: str, rank: int, *, parent: str = "", started_at: datetime | None = None, **fields: Any) -> Any:
        launch = {
            "key": "head:29500:4",
            "parent": parent,
            "started_at": (started_at or self.now).timestamp(),
            "waited_s": fields.pop("waited_s", 0.0),
        }
        path = f"/api/runs/{name}/streams/{name}/"
        fields = {"rank": rank, "world_size": 4, "launch": launch, "sent_at": self.now.timestamp(), **fields}
        return self._sender.open(path, **fields)

    def join(self, name: str, rank: int, **fields: Any) -> str:
        """Open a stream and return the ID of the run that it belongs to."""
        response = self.open(name, rank, **fields)
        assert response.status_code == 200, response.content
        return str(response.json()["run"]["id"])

    def send(self, run: str, name: str, position: int, body: bytes) -> None:
        response = self._sender.send(position, position + 1, body, f"/api/runs/{run}/streams/{name}/")
        assert response.json() == {"committed": position + 1}

    def end(self, run: str, name: str, position: int, state: str = "finished", at: datetime | None = None) -> None:
        report = {"kind": "end", "state": state, "at": (at or self.now).timestamp()}
        self.send(run, name, position, journal.encode(journal.Kind.REPORT, json.dumps(report).encode()))


@pytest.fixture
def cluster(client: Client, admin: User, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(Sender(client, token_create(user=admin, name="script", by=admin)[1]), monkeypatch)


@pytest.mark.slow
def test_64_ranks_with_one_key_are_one_run(cluster: Cluster) -> None:
    runs = {cluster.join(f"r{rank}", rank, parent=f"node {rank // 8}", world_size=64) for rank in range(64)}
    assert len(runs) == 1
    for rank in range(64):
        cluster.send(min(runs), f"r{rank}", 0, record(output(0, 2, rank=rank)))
    run = Run.objects.get()
    assert run.attempt_number == 1
    assert {info.rank for info in store.metrics(run.current_attempt().pk)} == set(range(64))
    assert run.launch["world_size"] == 64


def test_a_rank_that_comes_ten_minutes_late_belongs_to_the_launch(cluster: Cluster) -> None:
    run = cluster.join("a0", 0)
    for _ in range(31):
        cluster.pass_s(20)
        cluster._sender.send(0, 0, b"", f"/api/runs/{run}/streams/a0/")
    assert cluster.join("a1", 1) == run


def test_a_rank_that_comes_late_is_another_run_once_the_steps_are_far_along(cluster: Cluster) -> None:
    run = cluster.join("a0", 0)
    cluster.send(run, "a0", 0, record(output(1000, 1300)))
    assert cluster.join("a1", 1, started_at=cluster.now) == run
    cluster.pass_s(600)
    cluster.send(run, "a0", 1, record(output(1300, 1301)))
    assert cluster.join("b2", 2) != run


def test_after_half_an_hour_a_rank_is_another_run(cluster: Cluster) -> None:
    run = cluster.join("a0", 0)
    cluster.pass_s(1_900)
    cluster.send(run, "a0", 0, record(output(0, 1)))
    assert cluster.join("a1", 1) != run


def test_a_launch_after_a_failure_is_the_next_attempt_and_no_mixture(cluster: Cluster) -> None:
    run = cluster.join("a0", 0)
    assert cluster.join("a1", 1) == run
    for rank in (0, 1):
        cluster.send(run, f"a{rank}", 0, record(output(0, 50, rank=rank)))
    killed_at = cluster.now
    cluster.pass_s(5)
    cluster.end(run, "a1", 1, "failed", killed_at)
    # Rank 3 never came; rank 0 is still silent when rank 1 starts again.
    assert cluster.join("b3", 3) == run
    assert cluster.join("b1", 1) == run
    assert cluster.join("b0", 0) == run
    cluster.end(run, "a0", 1, "failed", killed_at)
    for rank in (0, 1, 3):
        cluster.send(run, f"b{rank}", 0, record(output(10, 12, rank=rank)))
    shown = Run.objects.get()
    assert (shown.attempt_number, shown.state, shown.tracked.status) == (2, "running", "RUNNING")
    assert sorted(Stream.objects.values_list("key", "attempt_number")) == [
        ("a0", 1), ("a1", 1), ("b0", 2), ("b1", 2), ("b3", 2),
    ]  # fmt: skip
    first, second = shown.attempts.order_by("number")
    assert first.state == "failed"
    assert store.read(first.pk, "loss", rank=0).steps.tolist() == list(range(50))
    assert store.read(second.pk, "loss", rank=0).steps.tolist() == [10, 11]
    assert shown.tracked.metrics.get(key="loss").step == 11


def test_a_launch_after_one_that_finished_is_another_run(cluster: Cluster) -> None:
    run = cluster.join("a0", 0)
    cluster.end(run, "a0", 0)
    cluster.pass_s(60)
    assert cluster.join("b0", 0) != run
    assert cluster.join("b1", 1) == "b0"


def test_a_launch_with_other_settings_is_another_run(cluster: Cluster) -> None:
    run = cluster.join("a0", 0, config={"lr": "0.1", "local_rank": "0"})
    cluster.end(run, "a0", 0, "failed")
    cluster.pass_s(60)
    assert cluster.join("b0", 0, config={"lr": "0.2", "local_rank": "0"}) == "b0"


def test_of_two_jobs_with_one_key_that_both_live_each_is_a_run(cluster: Cluster) -> None:
    run = cluster.join("a0", 0)
    cluster.pass_s(5)
    response = cluster.open("b0", 0)
    assert response.status_code == 409
    assert response.json()["errors"][0]["field"] == "launch"
    asked_at = cluster.now
    cluster.pass_s(15)
    cluster.send(run, "a0", 0, record(output(0, 1)))
    assert cluster.join("b0", 0, started_at=asked_at, waited_s=15) == "b0"
    # The launchers of both are known by now, so the ranks of their nodes find them.
    assert cluster.join("b1", 1) == "b0"


def test_a_killed_launch_without_a_trace_is_followed_by_the_next_attempt(cluster: Cluster) -> None:
    run = cluster.join("a0", 0)
    cluster.pass_s(5)
    asked_at = cluster.now
    assert cluster.open("b0", 0).status_code == 409
    # A rank that was not there before the kill may not slip into the dead launch.
    assert cluster.open("b1", 1).status_code == 409
    cluster.pass_s(50)
    assert cluster.join("b1", 1, started_at=asked_at, waited_s=50) == run
    assert cluster.join("b0", 0, started_at=asked_at, waited_s=50) == run
    assert set(Stream.objects.values_list("key", "attempt_number")) == {("a0", 1), ("b0", 2), ("b1", 2)}


def test_a_stream_that_is_opened_again_stays_where_it_was(cluster: Cluster) -> None:
    run = cluster.join("a0", 0)
    assert cluster.join("a1", 1) == run
    cluster.send(run, "a1", 0, record(output(0, 3, rank=1)))
    cluster.pass_s(7_200)
    again = cluster.open("a1", 1).json()
    assert (again["run"]["id"], again["committed"]) == (run, 1)


def test_the_ranks_of_one_launcher_belong_together(cluster: Cluster) -> None:
    run = cluster.join("a0", 0, parent="node a")
    cluster.end(run, "a0", 0, "failed")
    cluster.pass_s(2)
    assert cluster.join("a1", 1, parent="node a") == run
    assert Run.objects.get().attempt_number == 1
