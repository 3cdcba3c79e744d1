"""The endpoints of streams: exactly once by position, and bad input."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.client import journal
from parlab.lab.models import Run, Stream
from parlab.lab.services.access.tokens import token_create
from parlab.series import log, store

pytestmark = pytest.mark.django_db

PATH = "/api/runs/first/streams/a1/"


def output(first: int, last: int, rank: int = 0) -> bytes:
    lines = [
        {"parlab": 1, "t": 1e9 + step, "rank": rank, "event": "step", "step": step, "metrics": {"loss": float(step)}}
        for step in range(first, last)
    ]
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def record(data: bytes) -> bytes:
    return journal.encode(journal.Kind.OUTPUT, data)


class Sender:
    """Sends what a client sends."""

    def __init__(self, client: Client, token: str) -> None:
        self._client = client
        self.headers = {"Authorization": f"Token {token}"}

    def open(self, path: str = PATH, **fields: Any) -> Any:
        body = json.dumps({"experiment": "Streams", **fields})
        return self._client.put(path, body, content_type="application/json", headers=self.headers)

    def send(self, position: int, following: int, body: bytes, path: str = PATH, **headers: str) -> Any:
        return self._client.post(
            f"{path}?position={position}&next={following}",
            body,
            content_type="application/octet-stream",
            headers={**self.headers, **headers},
        )


@pytest.fixture
def sender(client: Client, admin: User) -> Sender:
    return Sender(client, token_create(user=admin, name="script", by=admin)[1])


def steps() -> list[int]:
    return [int(step) for step in store.read(Run.objects.get().current_attempt().pk, "loss", rank=0).steps]


def test_duplicate_early_and_late_batches_change_nothing(sender: Sender) -> None:
    assert sender.open().json()["committed"] == 0
    first, second = record(output(0, 3)), record(output(3, 5))
    assert sender.send(100, 200, second).json() == {"committed": 0}
    assert sender.send(0, 100, first).json() == {"committed": 100}
    assert sender.send(0, 100, first).json() == {"committed": 100}
    assert sender.send(100, 200, zlib.compress(second), **{"Content-Encoding": "deflate"}).json() == {"committed": 200}
    assert sender.send(0, 100, first).json() == {"committed": 200}
    assert sender.open().json()["committed"] == 200
    assert steps() == [0, 1, 2, 3, 4]
    assert b"".join(log.read_log(Run.objects.get().current_attempt().pk)) == output(0, 5)


def test_streams_of_ranks_have_positions_of_their_own(sender: Sender) -> None:
    other = "/api/runs/first/streams/b2/"
    sender.open()
    sender.open(other, rank=1)
    sender.send(0, 10, record(output(0, 2)))
    sender.send(0, 10, record(output(0, 3, rank=1)), other)
    assert Run.objects.count() == 1
    assert store.read(Run.objects.get().current_attempt().pk, "loss", rank=1).steps.tolist() == [0, 1, 2]
    assert sorted(Stream.objects.values_list("rank", "committed")) == [(0, 10), (1, 10)]


def test_a_second_process_of_a_living_rank_is_refused_with_a_remedy(sender: Sender) -> None:
    sender.open()
    response = sender.open("/api/runs/first/streams/c3/")
    assert response.status_code == 409
    assert "another run ID" in response.json()["errors"][0]["remedy"]


def test_an_end_ends_the_run_once_all_ranks_have_ended(sender: Sender) -> None:
    other = "/api/runs/first/streams/b2/"
    sender.open(config={"lr": "0.1"})
    sender.open(other, rank=1, config={"lr": "0.2", "only": "here"})
    end = journal.encode(journal.Kind.REPORT, json.dumps({"kind": "end", "state": "finished", "exit_code": 0}).encode())
    sender.send(0, 10, end)
    assert Run.objects.get().state == "running"
    sender.send(0, 10, end, other)
    run = Run.objects.get()
    assert run.state == "finished"
    assert dict(run.tracked.parameters.values_list("key", "value")) == {"lr": "0.1", "only": "here"}


@pytest.mark.parametrize(
    ("body", "query", "status"),
    [
        (b"not a record", "position=0&next=5", 400),
        (record(b"x\n")[:-1], "position=0&next=5", 400),
        (record(b"x\n") + b"z", "position=0&next=5", 400),
        (b"", "position=-1&next=5", 400),
        (b"", "position=5&next=1", 400),
        (b"", "position=0&next=99999999999999999999", 400),
        (b"", "", 400),
        (b"x" * (5 << 20), "position=0&next=5", 413),
        (b"x" * (3 << 20), "position=0&next=5", 400),
    ],
)
def test_bad_batches_store_nothing_and_name_a_remedy(sender: Sender, body: bytes, query: str, status: int) -> None:
    sender.open()
    response = sender._client.post(
        f"{PATH}?{query}", body, content_type="application/octet-stream", headers=sender.headers
    )
    assert response.status_code == status
    assert response.json()["errors"][0]["remedy"]
    assert Stream.objects.get().committed == 0


def test_a_packed_body_that_grows_beyond_the_limit_is_refused(sender: Sender) -> None:
    sender.open()
    for body, status in ((zlib.compress(bytes(64 << 20)), 413), (b"xyz", 400), (zlib.compress(b"x" * 99)[:-4], 400)):
        assert sender.send(0, 5, body, **{"Content-Encoding": "deflate"}).status_code == status
    assert sender.send(0, 5, b"", **{"Content-Encoding": "br"}).status_code == 415


@pytest.mark.parametrize(
    "fields",
    [{"rank": -1}, {"rank": "x"}, {"config": {"a": 1}}, {"experiment": ""}, {"kind": "other"}, {"name": "n" * 501}],
)
def test_bad_descriptions_name_the_field(sender: Sender, fields: dict[str, Any]) -> None:
    response = sender.open(**fields)
    error = response.json()["errors"][0]
    assert response.status_code == 400
    assert error["field"].split(".")[0] in fields
    assert not Run.objects.exists()


def test_who_may_not_add_runs_is_refused(client: Client, user: User, sender: Sender) -> None:
    user.is_superuser = False
    user.save()
    assert sender.open().status_code == 403
    assert Sender(client, "parlab_wrong").open().status_code == 401
    assert client.put(PATH, "{}", content_type="application/json").status_code == 401
    assert client.get(PATH).status_code == 401


def test_unknown_streams_and_ids_are_refused(sender: Sender) -> None:
    assert sender.send(0, 5, b"").status_code == 404
    assert sender.open("/api/runs/bad%20id/streams/a1/").status_code == 400
    assert sender.open(f"/api/runs/{'x' * 65}/streams/a1/").status_code == 400
    assert sender._client.delete(PATH, headers=sender.headers).status_code == 405


def test_reports_that_make_no_sense_are_ignored(sender: Sender) -> None:
    sender.open()
    reports = [b"{", b"[]", b'{"kind": "end", "state": "happy"}', b'{"kind": "config", "config": 5}', b'{"kind": 5}']
    body = b"".join(journal.encode(journal.Kind.REPORT, report) for report in reports)
    assert sender.send(0, 5, body).json() == {"committed": 5}
    assert Run.objects.get().state == "running"
