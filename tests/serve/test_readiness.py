"""What addresses answer while the database, Redis or a disk is away, and whether the server is ready."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import OperationalError, connection
from django.test import Client
from redis import ConnectionError as NoRedis

from parlab.api.outages import outage_of
from parlab.lab.models import Artifact, Experiment
from parlab.lab.services.access.tokens import token_create
from parlab.serve import readiness
from parlab.tracking.artifacts import artifact_store
from parlab.tracking.runs import tracked_run_start

ROADS = {
    "/api/experiments/": ("errors", "Token"),
    "/api/2.0/mlflow/experiments/get?experiment_id=0": ("error_code", "Bearer"),
    "/experiments/": ("", ""),
}


@pytest.fixture
def clients(user: User) -> dict[str, Client]:
    User.objects.filter(pk=user.pk).update(is_superuser=True)
    _, secret = token_create(user=user, name="script", by=user)
    clients = {}
    for road, (_, kind) in ROADS.items():
        headers = {"Authorization": f"{kind} {secret}"} if kind else {}
        clients[road] = Client(headers=headers, raise_request_exception=False)
        if not kind:
            clients[road].force_login(user)
    return clients


@pytest.mark.parametrize("road", ROADS)
def test_without_the_database_each_address_answers_503_in_its_form(
    road: str, clients: dict[str, Client], settings: Any
) -> None:
    settings.DEBUG = False

    def away(*_: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    with connection.execute_wrapper(away):
        answer = clients[road].get(road)
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert "The database does not answer." in answer.content.decode()
    if ROADS[road][0]:
        assert ROADS[road][0] in answer.json()
    else:
        assert "Not available at the moment" in answer.content.decode()
    assert clients[road].get("/health").content == b"OK"


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (NoRedis("refused"), "Redis does not answer."),
        (OSError(28, "No space left on device"), "The disk of the server does not answer (No space left on device)."),
        (FileNotFoundError(2, "No such file", "/etc/other"), ""),
        (ValueError("a mistake of ours"), ""),
    ],
)
def test_other_outages_are_told_from_mistakes(error: Exception, outage: str) -> None:
    assert outage_of(error) == outage
    wrapped = RuntimeError()
    wrapped.__cause__ = error
    assert outage_of(wrapped) == outage


@pytest.fixture
def stored(experiment: Experiment, user: User, settings: Any, tmp_path: Path) -> Artifact:
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"
    return artifact_store(tracked=tracked_run_start(experiment=experiment, user=user), path="a.txt", blocks=[b"a"])


def test_without_the_disk_of_the_artifacts_mlflow_reads_why(
    stored: Artifact, clients: dict[str, Client], tmp_path: Path, settings: Any
) -> None:
    settings.DEBUG = False
    client = clients["/api/2.0/mlflow/experiments/get?experiment_id=0"]
    tracked = stored.tracked
    address = f"/api/2.0/mlflow-artifacts/artifacts/{tracked.run.experiment_id}/{tracked.uuid}/artifacts/a.txt"
    assert client.get(address).status_code == 200
    (tmp_path / "artifacts").rename(tmp_path / "unmounted")
    for answer in (client.get(address), client.put(address, b"new", content_type="text/plain")):
        assert (answer.status_code, answer.json()["error_code"]) == (503, "TEMPORARILY_UNAVAILABLE")
        assert "The disk of the server does not answer" in answer.json()["message"]
    assert not (tmp_path / "artifacts").exists()  # nothing is written to the place of the disk


@pytest.fixture
def unknown() -> Iterator[Client]:
    cache.clear()
    yield Client()
    cache.clear()


@pytest.mark.django_db
def test_ready_names_what_is_missing(unknown: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = unknown.get("/ready")
    assert answer.status_code == 503
    checks = answer.json()["checks"]
    assert (checks["database"], checks["redis"], checks["disk"]) == ("ok", "Redis does not answer", "ok")
    cache.clear()
    monkeypatch.setattr(readiness, "CHECKS", {"database": readiness.check_database})
    assert unknown.get("/ready").json() == {"ready": True, "checks": {"database": "ok"}}


@pytest.mark.usefixtures("stored")
def test_ready_sees_a_missing_disk(unknown: Client, tmp_path: Path) -> None:
    (tmp_path / "artifacts").rename(tmp_path / "unmounted")
    assert unknown.get("/ready").json()["checks"]["disk"] == "the directory of the artifacts is missing"


def test_ready_knows_the_workers(redis_url: str, settings: Any) -> None:
    settings.REDIS_URL = redis_url
    with pytest.raises(readiness.Unready, match="no worker takes the tasks of control, ingest"):
        readiness.check_workers()
    for queue in settings.CELERY_TASK_QUEUES:
        readiness.alive_note(queue.name)
    readiness.check_workers()
    readiness.check_redis()
