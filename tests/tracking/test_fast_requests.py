"""The road without middleware, through the ASGI application: what it answers, checks, and leaves to Django."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import redis
from django.contrib.auth.models import User
from django.db import connections

from parlab.client import journal
from parlab.ingest.batches import services
from parlab.lab.models import Attempt, LatestMetric, Node, Stream, TrackedRun
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.experiments import experiment_create
from parlab.series import log, store
from parlab.tracking import runs, streams
from parlab.tracking.fast_requests import HELD_BYTES, MAX_BODY_BYTES, ReportRoad
from runners.wire.protocol import Acknowledge, Batch, PodNote, Posted, answer_key, verify
from runners.wire.trust import Key, attempt_key, seal, shared_key
from tests.conftest import place

LOG_METRIC = "/api/2.0/mlflow/runs/log-metric"


class Long:
    """The application behind the road; remembers what reaches it."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])


def request(path: str, body: bytes, *, method: str = "POST", **headers: str) -> tuple[Long, int, Mapping[str, Any]]:
    """Send a request; return the application behind the road, and the status and JSON of the road's answer."""
    long = Long()
    return long, *requests([Sent(path, body, method, headers)], long)[0]


class Sent(NamedTuple):
    path: str
    body: bytes
    method: str = "POST"
    headers: Mapping[str, str] = {}


def requests(all_sent: Sequence[Sent], long: Long) -> list[tuple[int, Mapping[str, Any]]]:
    """Send requests at the same time; return the status and JSON of each answer, 0 and {} where the road has none."""
    answers = exchanged(all_sent, long)
    for answer in answers:
        names = {name.decode().lower(): value.decode() for name, value in answer[0]["headers"]} if answer else {}
        assert not answer or names["x-content-type-options"] == "nosniff"
    return [(answer[0]["status"], json.loads(answer[1]["body"])) if answer else (0, {}) for answer in answers]


def exchanged(all_sent: Sequence[Sent], long: Long) -> list[list[Any]]:
    """Send requests at the same time; return the messages of each answer."""
    road = ReportRoad(long)

    async def gathered() -> list[list[Any]]:
        return await asyncio.gather(*(exchange(road, each) for each in all_sent))

    answers = asyncio.run(gathered())
    barrier = threading.Barrier(2)  # so that each of the two threads closes its connection

    def close() -> None:
        barrier.wait(60)
        connections.close_all()

    for future in [road.pool.submit(close) for _ in range(2)]:
        future.result()
    road.pool.shutdown()
    return answers


async def exchange(road: ReportRoad, sent: Sent) -> list[Any]:
    path, _, query = sent.path.partition("?")
    messages = [{"type": "http.request", "body": sent.body, "more_body": False}]
    answer = list[Any]()
    size = str(len(sent.body))
    named = {"host": "127.0.0.1", "content-length": size, "content-type": "application/json", **sent.headers}
    scope = {
        "type": "http", "http_version": "1.1", "method": sent.method, "path": path, "query_string": query.encode(),
        "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }  # fmt: skip

    async def receive() -> Any:
        return messages.pop()

    async def send(message: Any) -> None:
        answer.append(message)

    await road(scope, receive, send)
    return answer


@pytest.fixture
def secret(admin: User) -> str:
    return token_create(user=admin, name="script", by=admin)[1]


@pytest.fixture
def run_id(admin: User) -> str:
    experiment = experiment_create(name="road", owner=admin)
    return runs.tracked_run_start(experiment=experiment, user=admin).uuid


def metric(run_id: str) -> bytes:
    return json.dumps({"run_id": run_id, "key": "loss", "value": 2.5, "timestamp": 1, "step": 3}).encode()


@pytest.mark.django_db(transaction=True)
def test_a_report_with_a_token_is_stored_without_djangos_middleware(secret: str, run_id: str) -> None:
    long, status, answer = request(LOG_METRIC, metric(run_id), authorization=f"Bearer {secret}")
    assert (long.paths, status, answer) == ([], 200, {})
    assert LatestMetric.objects.get().value == 2.5


@pytest.mark.django_db(transaction=True)
def test_wrong_tokens_hosts_and_fields_are_refused_as_on_the_long_road(secret: str, run_id: str, settings: Any) -> None:
    wrong = request(LOG_METRIC, metric(run_id), authorization="Bearer parlab_wrong")
    assert (wrong[1], wrong[2]["error_code"]) == (401, "UNAUTHENTICATED")
    bad = request(LOG_METRIC, b"{", authorization=f"Bearer {secret}")
    assert (bad[1], bad[2]["error_code"]) == (400, "BAD_REQUEST")
    absent = request("/api/runs/r1/streams/s1/", b"x", authorization=f"Token {secret}")
    assert absent[1] == 400
    settings.ALLOWED_HOSTS = ["parlab.example"]
    with pytest.raises(json.JSONDecodeError):  # Django's page for a wrong host
        request(LOG_METRIC, metric(run_id), authorization=f"Bearer {secret}", host="evil.example")
    assert not LatestMetric.objects.exists()


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        (LOG_METRIC, "POST", {}),
        (LOG_METRIC, "POST", {"authorization": "Basic YTpi"}),
        (LOG_METRIC, "GET", {"authorization": "Bearer x"}),
        (LOG_METRIC, "POST", {"authorization": "Bearer x", "content-length": str(MAX_BODY_BYTES + 1)}),
        (LOG_METRIC, "POST", {"authorization": "Bearer x", "content-length": str(HELD_BYTES + 1)}),
        ("/api/2.0/mlflow/runs/search", "POST", {"authorization": "Bearer x"}),
        ("/login/", "POST", {"authorization": "Bearer x"}),
    ],
)
def test_everything_else_goes_to_django(path: str, method: str, headers: dict[str, str]) -> None:
    long, status, _ = request(path, b"{}", method=method, **headers)
    assert (long.paths, status) == ([path], 0)


def line(step: int, rank: int = 0, value: float = 1.5) -> bytes:
    event = {"parlab": 1, "t": 1e9 + step, "rank": rank, "event": "step", "step": step, "metrics": {"loss": value}}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def batch(run: str, key: str, position: int, data: bytes, secret: str) -> Sent:
    body = journal.encode(journal.Kind.OUTPUT, data) if data else b""
    path = f"/api/runs/{run}/streams/{key}/?position={position}&next={position + len(body)}"
    return Sent(path, body, headers={"authorization": f"Token {secret}"})


@pytest.mark.django_db(transaction=True)
def test_batches_of_many_streams_at_once_are_stored_each_in_its_run(admin: User, secret: str) -> None:
    for run, ranks in (("first", 2), ("second", 1), ("third", 1)):
        for rank in range(ranks):
            streams.stream_open(
                run_id=run, key=f"{run}-{rank}", opening=streams.Opening(experiment="road", rank=rank), user=admin
            )
    sent = [
        batch("first", "first-0", 0, line(0) + line(1), secret),
        batch("first", "first-1", 0, line(0, rank=1), secret),
        batch("second", "second-0", 0, line(5, value=0.5), secret),
        batch("second", "second-0", 7, line(6), secret),  # too early
        batch("third", "third-0", 0, b"", secret),  # a sign of life
        batch("third", "absent", 0, line(1), secret),
        batch("first", "first-0", 0, b"damaged", "parlab_wrong"),
        Sent(
            "/api/runs/first/streams/first-0/?position=0&next=9",
            b"damaged",
            headers={"authorization": f"Token {secret}"},
        ),
    ]
    long = Long()
    answers = requests(sent, long)
    assert [status for status, _ in answers] == [200, 200, 200, 200, 200, 404, 401, 400]
    assert long.paths == []
    committed = [answer.get("committed") for _, answer in answers[:5]]
    assert committed[:3] == [len(each.body) for each in sent[:3]]
    assert committed[4] == 0
    assert dict(Stream.objects.values_list("key", "committed")) == {
        "first-0": len(sent[0].body), "first-1": len(sent[1].body), "second-0": len(sent[2].body), "third-0": 0,
    }  # fmt: skip
    attempts = dict(TrackedRun.objects.values_list("uuid", "run__attempts"))
    assert store.read(attempts["first"], "loss", rank=0).steps.tolist() == [0, 1]
    assert store.read(attempts["first"], "loss", rank=1).steps.tolist() == [0]
    assert store.read(attempts["second"], "loss", rank=0).values.tolist() == [0.5]
    assert LatestMetric.objects.get(tracked__uuid="first").step == 1


@pytest.mark.django_db(transaction=True)
def test_a_batch_that_cannot_be_stored_holds_up_no_other(
    admin: User, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("good", "bad"):
        streams.stream_open(run_id=run, key=run, opening=streams.Opening(experiment="road"), user=admin)
    apply = streams.streams_apply

    def fail(*, batches: Sequence[streams.StreamBatch]) -> list[int]:
        if any(each.run_id == "bad" for each in batches):
            raise ValueError("a row that no database takes")
        return apply(batches=batches)

    monkeypatch.setattr("parlab.tracking.stream_views.streams_apply", fail)
    answers = exchanged([batch(run, run, 0, line(1), secret) for run in ("bad", "good")], Long())
    assert [answer[0]["status"] for answer in answers] == [500, 200]
    assert dict(Stream.objects.values_list("key", "committed"))["bad"] == 0


@pytest.mark.django_db(transaction=True)
def test_batches_that_pods_post_at_once_are_stored_together_and_answered_one_by_one(
    make_attempt: Callable[..., Attempt], redis_url: str, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.REDIS_URL = redis_url
    attempts = [make_attempt(state="running") for _ in range(4)]
    node = Node.objects.create(name="n1")
    for attempt in attempts:
        place(attempt, node)
    together: list[int] = []
    apply = services.batches_apply

    def counted(*, batches: Sequence[Batch]) -> Any:
        together.append(len(batches))
        time.sleep(0.2)  # those that come meanwhile wait
        return apply(batches=batches)

    monkeypatch.setattr(services, "batches_apply", counted)
    key = shared_key(settings.NODE_KEY, "n1")

    def sent(run: int, number: int, own: Key) -> Sent:
        batch = Batch(run=run, attempt=number, node="n1", sequence=0, next_sequence=6, output=b"hello\n")
        content = Posted(batch=batch.to_wire(), note=PodNote(started_at=5.0)).model_dump(mode="json")
        body = json.dumps(seal("posted", "n1", content, own, lifetime_s=None)).encode()
        return Sent(f"/api/spools/{run}/{number}/", body)

    keys = [attempt_key(key, each.run_id, each.number) for each in attempts]
    posts = [sent(each.run_id, each.number, own) for each, own in zip(attempts, keys, strict=True)]
    posts[1] = sent(attempts[1].run_id, 1, keys[0])
    posts[2] = posts[2]._replace(body=b"{")
    long = Long()
    answers = requests([*posts, posts[3]], long)
    assert long.paths == []
    assert [status for status, _ in answers] == [200, 401, 400, 200, 200]
    assert answers[1][1]["errors"][0]["message"] == "the signature is not accepted"
    for index in (0, 3, 4):
        own = keys[min(index, 3)]
        stored = verify(answers[index][1], lambda *_, own=own: own.secret, Acknowledge, node="n1")
        assert (stored.position, stored.note) == (6, PodNote(started_at=5.0))
    assert len(together) < 3
    assert [b"".join(log.read_log(each.pk)) for each in attempts] == [b"hello\n", b"", b"", b"hello\n"]
    for each in (attempts[0], attempts[3]):
        assert redis.Redis.from_url(redis_url).exists(answer_key(each.run_id, each.number, 0)), "for the controller"
