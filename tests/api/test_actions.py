"""Experiments, configurations, launches, series and artifacts over the API."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Attempt, Config, Experiment, Run
from parlab.series import store
from parlab.series.columns import Columns
from parlab.tracking import runs as tracking
from parlab.tracking.artifacts import artifact_store
from tests.conftest import SMALL

pytestmark = pytest.mark.django_db

EXPERIMENT = "/api/experiments/pipeline-schedules/"
JSON = "application/json"


@pytest.fixture
def run(make_attempt: Callable[..., Attempt]) -> Run:
    """A running run with a loss of 2,000 points, two of which are not finite."""
    attempt = make_attempt()
    steps = np.arange(2_000, dtype=np.int64)
    values = np.linspace(5.0, 1.0, 2_000)
    values[10], values[11] = np.nan, np.inf
    store.append(attempt.pk, {("loss", 0): Columns(steps, steps.astype(float), values)})
    return attempt.run


def test_an_experiment_is_created_configured_and_launched(api: Client) -> None:
    created = api.post("/api/experiments/", {"name": "From a script"}, JSON)
    assert created.status_code == 201
    address = f"/api/experiments/{created.json()['slug']}/"
    body = {"data": SMALL, "sweep": {"train.micro_batch_size": [1, 2]}, "note": "first"}
    checked = api.post(f"{address}configurations/", {**body, "dry_run": True}, JSON)
    assert (checked.status_code, checked.json()["version"], checked.json()["points"]) == (200, None, 2)
    assert not Config.objects.exists()
    saved = api.post(f"{address}configurations/", body, JSON)
    assert (saved.status_code, saved.json()["version"]) == (201, 1)
    digest = saved.json()["digest"]
    launched = api.post(f"{address}launch/?digest={digest}")
    assert (launched.status_code, launched.json()) == (
        201,
        {"created": [1, 2], "existing": 0, "invalid": 0, "needs_approval": False},
    )
    again = api.post(f"{address}launch/?version=1", headers={"If-Match": f'"{digest}"'})
    assert (again.status_code, again.json()["created"], again.json()["existing"]) == (200, [], 2)
    cancelled = api.post(f"{address}runs/1/cancel/")
    assert cancelled.json() == {"number": 1, "state": "cancelled", "attempt_number": 1}
    assert api.post(f"{address}runs/1/relaunch/").json() == {"number": 1, "state": "queued", "attempt_number": 2}
    assert [config["version"] for config in api.get(f"{address}configurations/").json()] == [1]


def test_nobody_replaces_or_launches_what_they_have_not_seen(api: Client, experiment: Experiment) -> None:
    def save(seed: int, **more: Any) -> Any:
        body = {"data": SMALL, "sweep": {"train.seed": [seed]}, **more}
        return api.post(f"{EXPERIMENT}configurations/", body, JSON)

    mine = save(1).json()
    refused = [save(2), save(2, based_on="0" * 64)]
    for answer in refused:
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (412, "based_on")
        assert mine["digest"] in answer.json()["errors"][0]["remedy"]
    assert save(1).status_code == 201  # the same content replaces nothing
    assert save(2, based_on=mine["digest"]).json()["version"] == 1
    for query in ("", f"?digest={mine['digest']}", f"?version=1&digest={mine['digest']}"):
        assert api.post(f"{EXPERIMENT}launch/{query}").status_code == 412
    assert not Run.objects.exists()


def test_an_invalid_configuration_names_every_field(api: Client, experiment: Experiment) -> None:
    data = {**SMALL, "parallel": {"tensor_parallel_size": 3}}
    response = api.post(f"{EXPERIMENT}configurations/", {"data": data}, JSON)
    assert response.status_code == 400
    assert any("tensor_parallel_size" in error["message"] for error in response.json()["errors"])
    bodies: list[dict[str, Any]] = [
        {},
        {"data": []},
        {"data": {"train": {"nonsense": 1}}},
        {"data": SMALL, "sweep": {"x.y": [1]}},
    ]
    for body in bodies:
        refused = api.post(f"{EXPERIMENT}configurations/", body, JSON)
        assert refused.status_code == 400, body
        assert refused.json()["errors"][0]["remedy"]
    assert not Config.objects.exists()


def test_a_taken_name_and_a_missing_configuration_are_refused(api: Client, experiment: Experiment) -> None:
    taken = api.post("/api/experiments/", {"name": experiment.name}, JSON)
    assert (taken.status_code, taken.json()["errors"][0]["field"]) == (400, "name")
    assert api.post(f"{EXPERIMENT}launch/").status_code == 400
    assert api.post(f"{EXPERIMENT}launch/?version=x").status_code == 400


@pytest.mark.parametrize(
    "path", ["configurations/", "launch/", "runs/1/cancel/", "runs/1/relaunch/", "create"], ids=str
)
def test_changes_require_a_permission(reader: Client, run: Run, path: str) -> None:
    address = "/api/experiments/" if "create" in path else f"{EXPERIMENT}{path}"
    assert reader.post(address, {"name": "x", "data": SMALL}, JSON).status_code == 403


def test_a_run_that_has_ended_cannot_be_cancelled(api: Client, make_attempt: Callable[..., Attempt]) -> None:
    make_attempt(state="finished")
    response = api.post(f"{EXPERIMENT}runs/1/cancel/")
    assert (response.status_code, response.json()["errors"][0]["field"]) == (400, "number")


def test_series_are_read_whole_and_thinned(reader: Client, run: Run) -> None:
    listed = reader.get(f"{EXPERIMENT}runs/1/metrics/").json()
    assert listed == {"attempt": 1, "series": [{"metric": "loss", "rank": 0, "points": 2_000, "kind": ""}]}
    whole = reader.get(f"{EXPERIMENT}runs/1/series/?metric=loss").json()
    [rank] = whole["ranks"]
    assert (len(rank["values"]), whole["is_thinned"], rank["values"][10:12]) == (2_000, False, ["NaN", "Infinity"])
    thinned = reader.get(f"{EXPERIMENT}runs/1/series/?metric=loss&points=100").json()
    assert thinned["is_thinned"]
    assert len(thinned["ranks"][0]["values"]) <= 100
    assert thinned["ranks"][0]["total"] == 2_000
    part = reader.get(f"{EXPERIMENT}runs/1/series/?metric=loss&from=5&to=7").json()
    assert part["ranks"][0]["steps"] == [5, 6, 7]


def test_series_are_read_as_csv(reader: Client, run: Run) -> None:
    response = reader.get(f"{EXPERIMENT}runs/1/series/?metric=loss&as=csv")
    lines = b"".join(response).decode().splitlines()
    assert (lines[0], len(lines)) == ("rank,step,time,value", 2_001)
    assert lines[1] == "0,0,0.0,5.0"
    assert math.isnan(float(lines[11].split(",")[3]))


@pytest.mark.parametrize(
    "query", ["metric=nothing", "metric=loss&points=x", "metric=loss&points=1", "metric=loss&as=pdf", ""]
)
def test_a_bad_request_for_series_is_refused_with_a_remedy(reader: Client, run: Run, query: str) -> None:
    response = reader.get(f"{EXPERIMENT}runs/1/series/?{query}")
    assert response.status_code == 400
    assert response.json()["errors"][0]["remedy"]


def test_what_a_script_reported_is_read_over_the_api(
    reader: Client, user: User, experiment: Experiment, settings: Any, tmp_path: Path
) -> None:
    settings.ARTIFACTS_DIR = tmp_path
    tracked = tracking.tracked_run_start(experiment=experiment, user=user, tags={"team": "a"})
    tracking.parameters_set(tracked=tracked, parameters={"lr": "0.1"})
    artifact_store(tracked=tracked, path="notes/readme.txt", blocks=[b"hello"])
    answer = reader.get(f"{EXPERIMENT}runs/1/reported/").json()
    assert (answer["uuid"], answer["parameters"], answer["tags"]) == (tracked.uuid, {"lr": "0.1"}, {"team": "a"})
    assert [(file["path"], file["size"]) for file in answer["artifacts"]] == [("notes/readme.txt", 5)]
    file = reader.get(f"{EXPERIMENT}runs/1/artifacts/notes/readme.txt")
    assert b"".join(file) == b"hello"
    assert reader.get(f"{EXPERIMENT}runs/1/artifacts/../secret").status_code == 404


def test_figures_accept_tokens_and_other_pages_do_not(reader: Client, run: Run) -> None:
    address = f"{run.get_absolute_url()}figures/series.csv?series=loss"
    assert reader.get(address).status_code == 200
    assert reader.get(f"{run.experiment.get_absolute_url()}figures/throughput.csv").status_code == 200
    assert reader.get(run.get_absolute_url()).status_code == 302
    wrong = Client(headers={"Authorization": "Token wrong"})
    assert wrong.get(address).status_code == 401
    assert Client().get(address).status_code == 302
