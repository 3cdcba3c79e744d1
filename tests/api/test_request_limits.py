"""Limits of requests: of a user over every road, and of wrong tokens from an address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.services.access import request_limits
from parlab.lab.services.access.request_limits import SharedCounter
from parlab.lab.services.access.tokens import token_create

ROADS = {
    "/api/experiments/": "Token",
    "/api/2.0/mlflow/experiments/get?experiment_id=0": "Bearer",
    "/api/runs/none/streams/one/": "Token",
}


@pytest.fixture(autouse=True)
def counters(user: User) -> Iterator[None]:
    User.objects.filter(pk=user.pk).update(is_superuser=True)
    for counter in (request_limits.requests, request_limits.bad_tokens):
        counter.clear()
    yield
    for counter in (request_limits.requests, request_limits.bad_tokens):
        counter.clear()


@pytest.mark.parametrize("road", ROADS)
def test_a_user_above_the_limit_waits_on_every_road(road: str, user: User, settings: Any) -> None:
    settings.REQUESTS_PER_MINUTE = 3
    _, secret = token_create(user=user, name="loop", by=user)
    client = Client(headers={"Authorization": f"{ROADS[road]} {secret}"})
    assert 429 not in [client.get(road).status_code for _ in range(3)]
    answer = client.get(road)
    assert answer.status_code == 429
    assert 1 <= int(answer["Retry-After"]) <= 20
    assert "more than 3 requests" in answer.content.decode()
    browser = Client()
    browser.force_login(user)
    assert browser.get("/").status_code == 429
    settings.REQUESTS_PER_MINUTE = 0
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize("road", [*ROADS, "/experiments/none/runs.csv"])
def test_wrong_tokens_from_an_address_are_limited_and_right_ones_are_not(
    road: str, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "BAD_TOKENS", 3)
    _, secret = token_create(user=user, name="right", by=user)
    kind = ROADS.get(road, "Token")
    wrong = Client(headers={"Authorization": f"{kind} parlab_wrong"}, REMOTE_ADDR="192.0.2.1")
    statuses = [wrong.get(road).status_code for _ in range(4)]
    assert (statuses[0], statuses[-1]) == (401, 429)
    assert 1 <= int(wrong.get(road)["Retry-After"]) <= 20
    right = Client(headers={"Authorization": f"{kind} {secret}"}, REMOTE_ADDR="192.0.2.1")
    assert right.get(road).status_code in (200, 404)
    assert wrong.get(road, REMOTE_ADDR="192.0.2.2").status_code == 401


def test_processes_share_a_limit(redis_url: str, settings: Any) -> None:
    settings.REDIS_URL = redis_url
    one, other = SharedCounter("test"), SharedCounter("test")
    assert [one.take("ada", 10) for _ in range(6)] == [0] * 6
    assert [other.take("ada", 10) for _ in range(4)] == [0] * 4
    assert 1 <= one.take("ada", 10) <= 6
    assert 1 <= other.take("ada", 10) <= 6
    assert other.take("grace", 10) == 0, "each key has a limit of its own"


def test_most_requests_ask_nobody_and_the_limit_holds_all_the_same(redis_url: str, settings: Any) -> None:
    settings.REDIS_URL = redis_url
    processes = [SharedCounter("test") for _ in range(4)]
    with redis.Redis.from_url(redis_url) as client:
        before = client.info("stats")["total_commands_processed"]
        answers = [process.take("ada", 1000) for _ in range(300) for process in processes]
        asked = client.info("stats")["total_commands_processed"] - before
    assert 1000 <= answers.count(0) <= 1020  # a few come back while it counts
    assert asked < 4 * (100 + 2 * (1200 - 1000) + 50)


def test_while_redis_is_away_each_process_counts_alone(settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    counter = SharedCounter("test")
    assert [counter.take("ada", 3) for _ in range(3)] == [0] * 3
    assert 1 <= counter.take("ada", 3) <= 20
