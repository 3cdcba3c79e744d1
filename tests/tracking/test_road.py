"""The road without middleware, through the ASGI application: what it answers, checks, and leaves to Django."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections

from parlab.lab import services as lab
from parlab.lab.models import LatestMetric
from parlab.tracking import runs
from parlab.tracking.road import HELD_BYTES, MAX_BODY_BYTES, ReportRoad

LOG_METRIC = "/api/2.0/mlflow/runs/log-metric"


class Long:
    """The application behind the road; remembers what reaches it."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])


def request(path: str, body: bytes, *, method: str = "POST", **headers: str) -> tuple[Long, int, Mapping[str, Any]]:
    """Send a request; return the application behind the road, and the status and JSON of the road's answer."""
    long, messages, sent = Long(), [{"type": "http.request", "body": body, "more_body": False}], list[Any]()
    named = {"host": "127.0.0.1", "content-length": str(len(body)), "content-type": "application/json", **headers}
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "query_string": b"", "scheme": "http",
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }  # fmt: skip

    async def receive() -> Any:
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    road = ReportRoad(long)
    asyncio.run(road(scope, receive, send))
    road.pool.submit(connections.close_all).result()
    road.pool.shutdown()
    if not sent:
        return long, 0, {}
    names = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    assert names["x-content-type-options"] == "nosniff"
    return long, sent[0]["status"], json.loads(sent[1]["body"])


@pytest.fixture
def secret(admin: User) -> str:
    return lab.token_create(user=admin, name="script", by=admin)[1]


@pytest.fixture
def run_id(admin: User) -> str:
    experiment = lab.experiment_create(name="road", owner=admin)
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
