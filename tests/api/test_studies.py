from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Config, Node
from parlab.tuner.models import Study
from tests.tuner.conftest import DATA, SWEEP, play


@pytest.fixture
def operator(user: User) -> Client:
    user.user_permissions.add(Permission.objects.get(codename="add_run"))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def searched(make_config: Callable[..., Config]) -> Config:
    Node.objects.create(name="n1", hardware={"cpu_cores": 2}, last_heartbeat_at=timezone.now())
    return make_config(data=DATA, sweep=SWEEP)


def post(client: Client, url: str, data: dict[str, Any]) -> Any:
    return client.post(url, data, content_type="application/json")


def test_a_study_is_started_and_read(operator: Client, searched: Config) -> None:
    answer = post(operator, "/api/studies/", {"experiment": searched.experiment.slug, "hand_tuned": False})
    assert answer.status_code == 201
    play(Study.objects.get())
    study = operator.get(f"/api/studies/{answer.json()['id']}/").json()
    assert study["state"] == "finished"
    assert study["best"]["setting"] == "z0_gas1_tmbspg4"
    assert study["unit"] == "samples/s"
    assert [listed["id"] for listed in operator.get("/api/studies/").json()] == [study["id"]]


def test_a_study_is_paused_and_cancelled(operator: Client, searched: Config) -> None:
    post(operator, "/api/studies/", {"experiment": searched.experiment.slug})
    url = f"/api/studies/{Study.objects.get().pk}/"
    assert post(operator, url, {"action": "pause"}).json()["state"] == "paused"
    assert post(operator, url, {"action": "cancel"}).json()["state"] == "cancelled"
    refused = post(operator, url, {"action": "explode"})
    assert refused.status_code == 400
    assert "pause, resume, cancel" in refused.content.decode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"experiment": "nothing"}, "unknown experiment"),
        ({"config": 7}, "has no configuration 7"),
        ({"strategy": "magic"}, "magic"),
    ],
)
def test_an_invalid_study_is_refused(operator: Client, searched: Config, data: dict[str, Any], message: str) -> None:
    answer = post(operator, "/api/studies/", {"experiment": searched.experiment.slug, **data})
    assert answer.status_code == 400
    assert message in answer.content.decode()


def test_without_launch_permission_studies_are_read_only(user: User, searched: Config) -> None:
    client = Client()
    client.force_login(user)
    assert client.get("/api/studies/").status_code == 200
    assert post(client, "/api/studies/", {"experiment": searched.experiment.slug}).status_code == 403
