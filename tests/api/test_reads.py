"""Lists and single rows of the API, permissions, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Attempt, Experiment, Finding, Run
from runners.config import digest

pytestmark = pytest.mark.django_db

EXPERIMENT = "/api/experiments/pipeline-schedules/"
PATHS = [
    "/api/experiments/",
    EXPERIMENT,
    f"{EXPERIMENT}runs/",
    f"{EXPERIMENT}runs/1/",
    "/api/findings/",
    "/api/schema/",
]


@pytest.fixture
def runs(experiment: Experiment, make_attempt: Callable[..., Attempt]) -> list[Run]:
    """Three runs; the first is finished and has a throughput."""
    made = [make_attempt(state=state).run for state in ("finished", "failed", "running")]
    Run.objects.filter(pk=made[0].pk).update(samples_per_s=12.5, summary={"samples_per_s": 12.5})
    return made


def add_finding(experiment: Experiment, run: Run | None, number: int = 0, severity: str = "error") -> Finding:
    return Finding.objects.create(
        experiment=experiment,
        run=run,
        rule="samples-per-second",
        severity=severity,
        message="<b>8</b> samples/s are stated",
        numbers={"samples_per_s": 8.0},
        where_digest=digest([number]),
    )


@pytest.mark.parametrize("path", PATHS)
def test_without_a_token_the_response_says_how_to_get_one(client: Client, runs: list[Run], path: str) -> None:
    for headers in ({}, {"Authorization": "Token wrong"}):
        response = client.get(path, headers=headers)
        assert response.status_code == 401
        assert "on your account page" in " ".join(response.content.decode().split())


@pytest.mark.parametrize("path", PATHS)
def test_every_token_may_read(reader: Client, runs: list[Run], path: str) -> None:
    assert reader.get(path).status_code == 200


def test_a_disabled_account_reads_nothing(api: Client, user: User) -> None:
    user.is_active = False
    user.save()
    assert api.get("/api/experiments/").status_code == 401


def test_an_experiment_counts_its_runs_by_state(api: Client, experiment: Experiment, runs: list[Run]) -> None:
    add_finding(experiment, runs[0])
    listed = api.get("/api/experiments/").json()
    assert listed["count"] == 1
    assert listed["results"][0]["runs"] == 3
    assert listed["results"][0]["findings_open"] == 1
    detail = api.get(EXPERIMENT).json()
    assert detail["states"] == {"finished": 1, "failed": 1, "running": 1}
    assert detail["owner"] == "ada"
    assert detail["sources"] == []


def test_search_matches_every_word(api: Client, experiment: Experiment, user: User) -> None:
    Experiment.objects.create(name="ZeRO", slug="zero", question="How far does a pipeline go?", owner=user)
    assert [row["slug"] for row in api.get("/api/experiments/?q=pipeline far").json()["results"]] == ["zero"]
    assert api.get("/api/experiments/?q=%25").json()["count"] == 0


def test_runs_have_their_numbers_and_can_be_filtered_by_state(api: Client, runs: list[Run]) -> None:
    add_finding(runs[0].experiment, runs[0])
    listed = api.get(f"{EXPERIMENT}runs/?state=finished").json()["results"]
    assert [(run["number"], run["samples_per_s"], run["findings_open"]) for run in listed] == [(1, 12.5, 1)]
    assert [run["number"] for run in api.get(f"{EXPERIMENT}runs/").json()["results"]] == [1, 2, 3]
    run = api.get(f"{EXPERIMENT}runs/1/").json()
    assert run["summary"] == {"samples_per_s": 12.5}
    assert run["resolved"]["train"]["global_batch_size"] == 4


def test_findings_can_be_filtered_by_experiment_run_severity_and_state(
    api: Client, experiment: Experiment, runs: list[Run], user: User
) -> None:
    other = Experiment.objects.create(name="Other", slug="other", owner=user)
    first, second = add_finding(experiment, runs[0], 1), add_finding(experiment, None, 2, "warning")
    third = add_finding(other, None, 3)
    Finding.objects.filter(pk=second.pk).update(acknowledged_at="2026-01-01T00:00Z", acknowledged_by=user)

    def ids(query: str) -> list[int]:
        return [row["id"] for row in api.get(f"/api/findings/?{query}").json()["results"]]

    assert ids("") == [third.pk, second.pk, first.pk]
    assert ids("experiment=pipeline-schedules") == [second.pk, first.pk]
    assert ids("experiment=pipeline-schedules&run=1") == [first.pk]
    assert ids("open=false") == [second.pk]
    assert ids("open=true&severity=error") == [third.pk, first.pk]
    finding = api.get("/api/findings/?open=false").json()["results"][0]
    assert finding["acknowledged_by"] == "ada"
    assert finding["message"] == "<b>8</b> samples/s are stated"


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (f"{EXPERIMENT}runs/?state=happy", "state", "happy"),
        ("/api/findings/?experiment=nowhere", "experiment", "nowhere"),
        ("/api/findings/?run=two", "run", "two"),
        ("/api/findings/?run=%d9%a2", "run", "\u0662"),
        ("/api/findings/?severity=bad", "severity", "bad"),
        ("/api/findings/?open=maybe", "open", "maybe"),
    ],
)
def test_an_invalid_request_is_refused_with_field_value_and_remedy(
    api: Client, runs: list[Run], path: str, field: str, value: str
) -> None:
    response = api.get(path)
    assert response.status_code == 400
    error = response.json()["errors"][0]
    assert (error["field"], error["value"]) == (field, value)
    assert value in error["message"]
    assert error["remedy"].startswith("use ")


@pytest.mark.parametrize("path", ["/api/experiments/none/", "/api/experiments/none/runs/", f"{EXPERIMENT}runs/99/"])
def test_a_missing_row_is_a_404_in_json(api: Client, runs: list[Run], path: str) -> None:
    response = api.get(path)
    assert response.status_code == 404
    assert response.json()["errors"][0]["remedy"]


def test_read_only_addresses_refuse_writes(api: Client, runs: list[Run]) -> None:
    for path in (EXPERIMENT, f"{EXPERIMENT}runs/", "/api/findings/"):
        response = api.post(path, {"name": "x"})
        assert response.status_code == 405
        assert response.json()["errors"][0]["message"]


def test_lists_are_paginated(api: Client, user: User) -> None:
    Experiment.objects.bulk_create([Experiment(name=f"E{i}", slug=f"e{i}", owner=user) for i in range(7)])
    first = api.get("/api/experiments/?page_size=5").json()
    assert first["count"] == 7
    assert len(first["results"]) == 5
    assert len(api.get(first["next"]).json()["results"]) == 2
    assert api.get("/api/experiments/?page=9").status_code == 404


def test_the_number_of_queries_does_not_grow_with_the_rows(
    api: Client, experiment: Experiment, runs: list[Run], user: User, django_assert_num_queries: Any
) -> None:
    for number in range(5):
        add_finding(experiment, runs[number % 3], number)
        Experiment.objects.create(name=f"E{number}", slug=f"e{number}", owner=user)
    api.get("/api/schema/")  # the time of a token's use is written once a minute, now
    with django_assert_num_queries(4):  # token with its person, their projects, how many, experiments
        api.get("/api/experiments/")
    with django_assert_num_queries(5):  # token with its person, their projects, experiment, how many, runs
        api.get(f"{EXPERIMENT}runs/")
    with django_assert_num_queries(4):  # token with its person, their projects, how many, findings
        api.get("/api/findings/")


def test_the_schema_contains_every_address(api: Client) -> None:
    schema = api.get("/api/schema/?format=json").json()
    assert sorted(schema["paths"]) == [
        "/api/account/",
        "/api/account/tokens/",
        "/api/account/tokens/{id}/",
        "/api/advice/",
        "/api/approvals/",
        "/api/approvals/{id}/",
        "/api/artifacts/{run}/{path}",
        "/api/audit/",
        "/api/columns/{name}/",
        "/api/configurations/read/",
        "/api/dashboards/",
        "/api/dashboards/{id}/",
        "/api/deliveries/",
        "/api/deliveries/{id}/retry/",
        "/api/enrolment/redis/",
        "/api/experiments/",
        "/api/experiments/{slug}/",
        "/api/experiments/{slug}/advice/",
        "/api/experiments/{slug}/clone/",
        "/api/experiments/{slug}/comments/",
        "/api/experiments/{slug}/comments/{id}/",
        "/api/experiments/{slug}/configurations/",
        "/api/experiments/{slug}/launch/",
        "/api/experiments/{slug}/move/",
        "/api/experiments/{slug}/names/",
        "/api/experiments/{slug}/pictures/",
        "/api/experiments/{slug}/pictures/{id}/",
        "/api/experiments/{slug}/runs/",
        "/api/experiments/{slug}/runs/{number}/",
        "/api/experiments/{slug}/runs/{number}/advice/",
        "/api/experiments/{slug}/runs/{number}/artifacts/{path}",
        "/api/experiments/{slug}/runs/{number}/cancel/",
        "/api/experiments/{slug}/runs/{number}/difference/",
        "/api/experiments/{slug}/runs/{number}/end-chain/",
        "/api/experiments/{slug}/runs/{number}/goodput/",
        "/api/experiments/{slug}/runs/{number}/log/",
        "/api/experiments/{slug}/runs/{number}/log/search/",
        "/api/experiments/{slug}/runs/{number}/marks/",
        "/api/experiments/{slug}/runs/{number}/metrics/",
        "/api/experiments/{slug}/runs/{number}/pictures/",
        "/api/experiments/{slug}/runs/{number}/relaunch/",
        "/api/experiments/{slug}/runs/{number}/reported/",
        "/api/experiments/{slug}/runs/{number}/schedule/",
        "/api/experiments/{slug}/runs/{number}/series/",
        "/api/experiments/{slug}/runs/{number}/shelf/",
        "/api/experiments/{slug}/runs/{number}/time/",
        "/api/experiments/{slug}/runs/{number}/traces/",
        "/api/experiments/{slug}/runs/{number}/traces/export/",
        "/api/experiments/{slug}/runs/{number}/wait/",
        "/api/experiments/{slug}/shelf/",
        "/api/experiments/{slug}/sources/{id}/",
        "/api/findings/",
        "/api/findings/{id}/acknowledgement/",
        "/api/formats/",
        "/api/formats/{name}/",
        "/api/imports/",
        "/api/imports/guess/",
        "/api/links/",
        "/api/links/{id}/",
        "/api/login/device/",
        "/api/login/device/token/",
        "/api/nodes/",
        "/api/nodes/{name}/",
        "/api/plan/",
        "/api/projects/",
        "/api/projects/{slug}/",
        "/api/projects/{slug}/members/",
        "/api/projects/{slug}/members/{name}/",
        "/api/projects/{slug}/service-accounts/",
        "/api/projects/{slug}/service-accounts/{name}/",
        "/api/projects/{slug}/service-accounts/{name}/tokens/",
        "/api/projects/{slug}/service-accounts/{name}/tokens/{id}/",
        "/api/questions/",
        "/api/questions/{key}/",
        "/api/reports/",
        "/api/reports/{slug}/",
        "/api/reports/{slug}/publish/",
        "/api/reports/{slug}/versions/{number}/",
        "/api/reports/{slug}/versions/{number}/draw/",
        "/api/reports/{slug}/versions/{number}/files/{name}",
        "/api/reports/{slug}/versions/{number}/links/",
        "/api/reports/{slug}/versions/{number}/links/{id}/",
        "/api/runs/",
        "/api/runs/{run_id}/",
        "/api/runs/{run}/streams/{stream}/",
        "/api/seen/",
        "/api/series/",
        "/api/simulate/",
        "/api/spools/{run_id}/{attempt}/",
        "/api/studies/",
        "/api/studies/{id}/",
        "/api/subscriptions/",
        "/api/subscriptions/{id}/",
        "/api/subscriptions/{id}/test/",
        "/api/version",
        "/api/views/",
        "/api/views/{id}/",
        "/api/watches/",
        "/api/watches/{id}/",
        "/api/watches/{id}/alerts/",
        "/api/watches/{id}/alerts/{number}/",
        "/api/watches/{id}/alerts/{number}/bisect/",
        "/api/watches/{id}/history/",
        "/api/watches/{id}/run/",
    ]
    upload = schema["paths"]["/api/imports/"]["post"]
    assert "multipart/form-data" in upload["requestBody"]["content"]
    assert set(upload["responses"]) == {"200", "201", "400", "401", "403", "413", "415"}
