"""`/metrics`: what it tells of the server and of runs, and to whom."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from parlab.client.json_log import JsonLines
from parlab.lab.models import Attempt, Role, Run
from parlab.lab.services.access.projects import member_set, project_create
from parlab.lab.services.access.tokens import token_create
from parlab.request_times import RequestTimes, part_of
from parlab.shared_counters import SharedCounters, counters
from parlab.task_times import note_end, note_start
from runners.wire.message_filter import message
from runners.wire.protocol import APPLY_BATCH_TASK

SECRET = "a-token-of-prometheus"
SUMMARY = {"steps": {"last": 12}, "loss": {"last": 2.5}, "gpu_utilization": {"mean": 91.0, "min": 80.0}, "mfu": 0.41}
DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "parlab.json"


@pytest.fixture(autouse=True)
def prometheus(settings: Any, db: None) -> Client:
    """A client with the token of the server."""
    settings.METRICS_TOKEN = SECRET
    settings.METRICS_NETWORKS = []
    return Client(headers={"Authorization": f"Bearer {SECRET}"})


def values(client: Client, path: str = "/metrics?runs=1") -> dict[str, dict[tuple[str, ...], float]]:
    """Read the metrics with the parser of Prometheus' client: name -> values of labels -> value."""
    answer = client.get(path)
    assert answer.status_code == 200, answer.content
    assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.content.decode()):
        assert family.type in ("gauge", "counter", "histogram"), family.name
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def runs_of(client: Client) -> set[tuple[str, ...]]:
    return set(values(client).get("parlab_run_step", {}))


@pytest.fixture
def running(make_attempt: Callable[..., Attempt]) -> Run:
    run = make_attempt(state="running").run
    Run.objects.filter(pk=run.pk).update(summary=SUMMARY, step_time_s=0.5, tokens_per_s=1e4, memory_max_bytes=2e9)
    return run


def test_it_is_told_to_nobody_without_a_token(client: Client, settings: Any) -> None:
    assert client.get("/metrics").status_code == 401
    assert Client(headers={"Authorization": "Bearer wrong"}).get("/metrics").status_code == 401
    settings.METRICS_TOKEN = ""
    assert Client(headers={"Authorization": "Bearer "}).get("/metrics").status_code == 401
    assert client.post("/metrics").status_code == 405


def test_an_address_may_read_without_a_token(client: Client, settings: Any) -> None:
    settings.METRICS_NETWORKS = ["10.0.0.0/8"]
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", REMOTE_ADDR="10.1.2.3").status_code == 200


def test_a_token_of_an_account_needs_the_scope_read(user: User) -> None:
    _, read = token_create(user=user, name="read", by=user, scopes=["read"])
    _, write = token_create(user=user, name="write", by=user, scopes=["write"])
    for secret, status in ((read, 200), (write, 403)):
        assert Client(headers={"Authorization": f"Token {secret}"}).get("/metrics").status_code == status


def test_runs_come_on_request(prometheus: Client, running: Run) -> None:
    assert "parlab_run_step" not in values(prometheus, "/metrics")
    found = values(prometheus)
    key = ("shared", running.experiment.slug, "1")
    assert found["parlab_run_step"] == {key: 12}
    assert found["parlab_run_loss"] == {key: 2.5}
    assert found["parlab_run_mfu_ratio"] == {key: pytest.approx(0.41)}
    assert found["parlab_run_step_time_seconds"] == {key: 0.5}
    assert found["parlab_run_tokens_per_second"] == {key: 1e4}
    assert found["parlab_run_gpu_utilization_percent"] == {key: 91}
    assert found["parlab_active_runs"] == {("running",): 1}


def test_the_number_of_runs_is_limited(prometheus: Client, running: Run, settings: Any) -> None:
    Run.objects.create(
        **{name: getattr(running, name) for name in ("experiment", "config", "point", "resolved", "created_by")},
        number=2,
        point_digest="other",
        state="running",
        summary=SUMMARY,
    )
    settings.METRICS_RUNS = 1
    assert {run for *_, run in runs_of(prometheus)} == {"2"}
    assert values(prometheus)["parlab_runs_left_out"] == {(): 1}


def test_runs_of_a_private_project_are_told_to_its_members_alone(prometheus: Client, running: Run, user: User) -> None:
    member, outsider = (User.objects.create_user(name, password="a member of the lab") for name in ("bob", "eve"))
    project = project_create(name="Vision", user=user)
    member_set(project=project, user=member, role=Role.VIEWER)
    running.experiment.project = project
    running.experiment.save()

    def reader(account: User, **place: Any) -> Client:
        _, secret = token_create(user=account, name="metrics", by=account, scopes=["read"], **place)
        return Client(headers={"Authorization": f"Bearer {secret}"})

    assert runs_of(reader(member, project=project)) == {("vision", running.experiment.slug, "1")}
    assert runs_of(reader(outsider)) == set()
    assert runs_of(prometheus) == set()


def test_a_label_is_escaped(prometheus: Client, make_node: Callable[..., Any]) -> None:
    make_node(pool='a "pool"\\')
    assert values(prometheus)["parlab_nodes"] == {('a "pool"\\', "online"): 1}


def test_queues_have_their_length_and_lag(prometheus: Client, redis_url: str, settings: Any) -> None:
    settings.REDIS_URL = redis_url
    client = redis.Redis.from_url(redis_url)
    sent = {"payload": json.dumps({"number": int((time.time() - 90) * 1e6)})}
    client.lpush("ingest", message("ingest", APPLY_BATCH_TASK, sent), message("ingest", APPLY_BATCH_TASK, {}))
    client.lpush("backlog", b"not a message")
    found = values(prometheus)
    assert found["parlab_queue_messages"]["ingest",] == 2
    assert 90 <= found["parlab_queue_lag_seconds"]["ingest",] < 900
    assert found["parlab_queue_lag_seconds"]["backlog",] == 0
    assert found["parlab_ready"]["redis",] == 1


def test_without_redis_the_numbers_of_the_database_remain(prometheus: Client, running: Run) -> None:
    found = values(prometheus)
    assert found["parlab_ready"]["redis",] == 0
    assert found["parlab_active_runs"] == {("running",): 1}
    assert "parlab_queue_messages" not in found


async def _answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["path"] == "/broken":
        raise RuntimeError
    kind = b"text/event-stream" if scope["path"].endswith("/stream/") else b"text/html"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})


def test_requests_and_tasks_of_all_processes_are_counted(prometheus: Client, redis_url: str, settings: Any) -> None:
    settings.REDIS_URL = redis_url

    async def send(_: Any) -> None: ...

    counters.flush()
    for path in ("/experiments/", "/api/inbox/", "/runs/stream/"):
        asyncio.run(RequestTimes(_answer)({"type": "http", "path": path}, send, send))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        asyncio.run(RequestTimes(_answer)({"type": "http", "path": "/broken"}, send, send))  # type: ignore[arg-type]
    other = SharedCounters()  # another process
    other.add("http_requests", ("page", "2xx"), 5)
    other.flush()
    task = type("Task", (), {"name": "parlab.fleet.reap"})
    note_start(task_id="1")
    note_end(task_id="1", task=task, state="SUCCESS")
    counters.flush()

    found = values(prometheus)
    requests = found["parlab_http_requests_total"]
    assert (requests["page", "2xx"], requests["api", "2xx"], requests["page", "5xx"]) == (7, 1, 1)
    assert found["parlab_http_request_seconds_count"]["page",] == 2  # a stream has no time
    assert found["parlab_http_request_seconds_bucket"]["page", "+Inf"] == 2
    assert found["parlab_tasks_total"]["parlab.fleet.reap", "success"] == 1


def test_what_is_counted_while_redis_is_away_is_added_later(redis_url: str, settings: Any) -> None:
    mine = SharedCounters()
    mine.add("http_requests", ("page", "2xx"))
    mine.flush()  # nothing listens
    settings.REDIS_URL = redis_url
    mine.flush()
    assert redis.Redis.from_url(redis_url).hgetall("parlab:counters") == {b"http_requests|page|2xx": b"1"}


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/api/2.0/mlflow/runs/create", "mlflow"),
        ("/api/experiments/", "api"),
        ("/experiments/secret-name/", "page"),
        ("/health", "probe"),
        ("/static/a.css", "static"),
    ],
)
def test_a_path_is_told_by_its_part_alone(path: str, part: str) -> None:
    assert part_of(path) == part


def test_the_dashboard_asks_for_metrics_that_there_are(
    prometheus: Client, running: Run, redis_url: str, settings: Any, make_node: Callable[..., Any]
) -> None:
    test_requests_and_tasks_of_all_processes_are_counted(prometheus, redis_url, settings)
    make_node()
    names = set(values(prometheus)) | {"parlab_refused_messages_total"}
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            asked = set(re.findall(r"parlab_\w+", target["expr"]))
            assert asked, panel["title"]
            assert asked <= names, panel["title"]


def test_logs_are_json_on_request(settings: Any) -> None:
    try:
        raise ValueError("three\nlines\nlong")
    except ValueError as error:
        record = logging.LogRecord("parlab.fleet", logging.ERROR, "a.py", 1, "node %s", ("gpu1",), None)
        record.exc_info = (type(error), error, error.__traceback__)
    line = JsonLines().format(record)
    row = json.loads(line)
    assert "\n" not in line
    assert (row["level"], row["logger"], row["message"]) == ("ERROR", "parlab.fleet", "node gpu1")
    assert "ValueError: three" in row["exception"]
    assert row["time"].endswith("+00:00")
