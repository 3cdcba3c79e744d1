"""What pages offer, over the API: findings, names, shelves, views, dashboards, reports, watches, notifications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Experiment, Finding, Run
from parlab.notify.models import Delivery
from parlab.tracking import runs as tracking
from parlab.tracking.point import Point
from parlab.watch.models import Alert, Result, Watch

pytestmark = pytest.mark.django_db

EXPERIMENT = "/api/experiments/pipeline-schedules/"
JSON = "application/json"


def problem(answer: Any) -> dict[str, Any]:
    """Return the first error of a refused request."""
    assert answer.status_code == 400, answer.content
    error: dict[str, Any] = answer.json()["errors"][0]
    assert error["remedy"]
    return error


def test_a_finding_is_acknowledged_with_a_reason_and_reopened(api: Client, run: Run) -> None:
    finding = Finding.objects.create(experiment=run.experiment, rule="r", severity="warning", message="3 is not 4")
    url = f"/api/findings/{finding.pk}/acknowledgement/"
    assert problem(api.put(url, {"reason": " "}, JSON))["field"] == "reason"
    answer = api.put(url, {"reason": "rounded"}, JSON).json()
    assert (answer["acknowledged_reason"], bool(answer["acknowledged_by"])) == ("rounded", True)
    assert api.delete(url).json()["acknowledged_by"] is None
    assert api.delete("/api/findings/9999/acknowledgement/").status_code == 404


def test_names_are_read_and_chosen_in_part(api: Client, experiment: Experiment, admin: User) -> None:
    tracked = tracking.tracked_run_start(experiment=experiment, user=admin)
    tracking.parameters_set(tracked=tracked, parameters={"bs": "4", "seed": "1"})
    tracking.points_append(tracked=tracked, points=[Point("my_loss", 2.5, 1, 1)])
    url = f"{EXPERIMENT}names/"
    names = api.get(url).json()
    assert {row["name"]: row["chosen"] for row in names["metrics"]} == {"my_loss": None}
    assert "loss" in names["quantities"]
    changed = api.patch(url, {"metrics": {"my_loss": "loss"}, "settings": {"bs": "micro_batch_size"}}, JSON).json()
    assert changed["metrics"][0]["chosen"] == "loss"
    assert Run.objects.get(pk=tracked.run_id).resolved["train"]["micro_batch_size"] == 4
    again = api.patch(url, {"settings": {"bs": None, "seed": ""}}, JSON).json()
    assert {row["name"]: row["chosen"] for row in again["settings"]} == {"bs": None, "seed": ""}
    assert again["metrics"][0]["chosen"] == "loss"
    assert "unknown meaning" in problem(api.patch(url, {"metrics": {"my_loss": "colour"}}, JSON))["message"]
    assert "no reported run" in problem(api.patch(url, {"settings": {"absent": ""}}, JSON))["message"]


def test_experiments_and_runs_are_tagged_archived_cloned_and_deleted(
    api: Client, run: Run, make_attempt: Callable[..., Attempt]
) -> None:
    shelf = f"{EXPERIMENT}shelf/"
    assert api.get(shelf).json() == {"slug": "pipeline-schedules", "tags": [], "archived": False}
    assert api.patch(shelf, {"tags": ["Paper", "v2"]}, JSON).json()["tags"] == ["paper", "v2"]
    assert api.patch(shelf, {"tags": ["v2"], "archived": True}, JSON).json() == {
        "slug": "pipeline-schedules", "tags": ["v2"], "archived": True,
    }  # fmt: skip
    assert api.patch(shelf, {"archived": False}, JSON).json()["archived"] is False
    assert problem(api.patch(shelf, {"tags": ["two words"]}, JSON))["field"] == "tags"
    cloned = api.post(f"{EXPERIMENT}clone/")
    assert (cloned.status_code, cloned.json()["slug"] != "pipeline-schedules") == (201, True)
    url = f"{EXPERIMENT}runs/{run.number}/shelf/"
    assert api.patch(url, {"archived": True}, JSON).json() == {"number": run.number, "archived": True}
    assert api.get(f"{EXPERIMENT}runs/").json()["count"] == 0
    assert api.patch(url, {"archived": False}, JSON).json()["archived"] is False
    active = make_attempt(point={"train.micro_batch_size": 2}, config=run.config).run
    busy = f"{EXPERIMENT}runs/{active.number}/shelf/"
    assert problem(api.patch(busy, {"archived": True}, JSON))["field"] == "archived"
    assert "cancel it first" in problem(api.delete(busy))["remedy"]
    assert "active runs" in problem(api.patch(shelf, {"archived": True}, JSON))["message"]
    Run.objects.filter(pk=active.pk).update(state="finished")
    assert api.delete(url).status_code == 204
    assert not Run.everything.filter(pk=run.pk).exists()


def test_views_are_saved_replaced_and_deleted(api: Client, allowed: Callable[..., Client]) -> None:
    body: dict[str, Any] = {"name": "Finished", "address": "/experiments/?q=finished", "is_default": True}
    saved = api.post("/api/views/", body, JSON)
    assert (saved.status_code, saved.json()["address"]) == (201, body["address"])
    assert api.post("/api/views/", body, JSON).json()["id"] == saved.json()["id"]
    assert "has no views" in problem(api.post("/api/views/", {**body, "address": "/plan/"}, JSON))["message"]
    other = allowed("add_savedview")
    assert other.delete(f"/api/views/{saved.json()['id']}/").status_code == 403
    assert len(other.get("/api/views/").json()) == 1
    assert api.delete(f"/api/views/{saved.json()['id']}/").status_code == 204


def test_dashboards_are_created_saved_by_revision_and_deleted(api: Client, experiment: Experiment) -> None:
    usual = api.post("/api/dashboards/", {"name": "Usual", "experiment": experiment.slug}, JSON).json()
    assert (usual["experiment"], len(usual["panels"]) > 1) == (experiment.slug, True)
    panels = [{"title": "Words", "text": "**bold**"}]
    made = api.post("/api/dashboards/", {"name": "Mine", "panels": panels}, JSON).json()
    assert made["panels"] == [{**panels[0], "width": "half", "height": "usual", "columns": 0, "rows": 0}]
    url = f"/api/dashboards/{made['id']}/"
    change = {"name": "Ours", "panels": [], "revision": made["revision"]}
    assert api.put(url, change, JSON).json()["name"] == "Ours"
    assert problem(api.put(url, change, JSON))["field"] == "revision"
    wide = {**change, "panels": [{"title": "", "text": "", "width": "wide"}]}
    assert api.put(url, wide, JSON).status_code == 400
    crowd = {**change, "revision": made["revision"] + 1, "panels": panels * 41}
    assert "too many" in problem(api.put(url, crowd, JSON))["message"]
    assert problem(api.post("/api/dashboards/", {"name": "x", "experiment": "none"}, JSON))["field"] == "experiment"
    assert [row["name"] for row in api.get("/api/dashboards/").json()] == ["Ours", "Usual"]
    assert api.delete(url).status_code == 204


def test_reports_are_written_published_and_deleted(api: Client, experiment: Experiment) -> None:
    made = api.post("/api/reports/", {"title": "Findings", "text": "Words.", "experiment": experiment.slug}, JSON)
    assert made.status_code == 201
    url = f"/api/reports/{made.json()['slug']}/"
    saved = api.put(url, {"revision": made.json()["revision"], "title": "Findings", "text": "More."}, JSON).json()
    assert saved["revision"] == made.json()["revision"] + 1
    stale = problem(api.put(url, {"revision": 1, "title": "x", "text": "y"}, JSON))
    assert (stale["field"], str(saved["revision"]) in stale["remedy"]) == ("revision", True)
    assert problem(api.post(f"{url}publish/", {"revision": 1}, JSON))["field"] == "revision"
    published = api.post(f"{url}publish/", {"revision": saved["revision"]}, JSON)
    assert (published.status_code, published.json()["number"]) == (201, 1)
    assert api.get(url).json()["versions"] == [1]
    assert [row["slug"] for row in api.get("/api/reports/").json()] == [made.json()["slug"]]
    assert api.delete(url).status_code == 204


def test_watches_are_created_paused_run_and_deleted(api: Client, run: Run) -> None:
    body = {"name": "Nightly", "experiment": run.experiment.slug, "schedule": "daily", "first_at": "2030-01-31T03:00Z"}
    made = api.post("/api/watches/", body, JSON)
    assert made.status_code == 201
    assert f"{Watch.objects.get().next_at:%Y-%m-%d %H:%M}" == "2030-01-31 03:00"
    assert problem(api.post("/api/watches/", {**body, "schedule": "30 2 * * *"}, JSON))["field"] == "schedule"
    url = f"/api/watches/{made.json()['id']}/"
    assert "taken" in problem(api.post("/api/watches/", {"name": "Nightly", "key": "k"}, JSON))["message"]
    assert "neither" in problem(api.post("/api/watches/", {"name": "Other"}, JSON))["message"]
    assert problem(api.post("/api/watches/", {**body, "name": "Third", "version": 99}, JSON))["field"] == "version"
    for action, is_enabled in (("pause", False), ("resume", True), ("refresh", True)):
        assert api.post(url, {"action": action}, JSON).status_code == 200
        assert Watch.objects.get().is_enabled == is_enabled
    assert api.post(url, {"action": "explode"}, JSON).status_code == 400
    assert api.post(f"{url}run/").json()["runs"] == 1
    assert api.get(f"{url}alerts/").json() == []
    assert api.delete(url).status_code == 204


def test_an_alert_is_answered_and_has_no_bisection_without_a_repository(api: Client, run: Run, user: User) -> None:
    watch = Watch.objects.create(name="w", key="k", created_by=user)
    good, bad = (Result.objects.create(watch=watch, line=f"{place}", at=timezone.now()) for place in (1, 2))
    part = {"measure": "step_time_s", "series": "", "size": 0.2, "low": 0.1, "high": 0.3, "is_worse": True}
    alert = Alert.objects.create(watch=watch, first_bad=bad, last_good=good, kind="step", parts=[part])
    url = f"/api/watches/{watch.pk}/alerts/{alert.pk}/"
    assert [row["state"] for row in api.get(f"/api/watches/{watch.pk}/alerts/").json()] == ["new"]
    assert "reason is empty" in problem(api.post(url, {"answer": "expect"}, JSON))["message"]
    assert api.post(url, {"answer": "expect", "reason": "new driver"}, JSON).json()["state"] == "expected"
    assert problem(api.post(f"{url}bisect/", {"action": "pause"}, JSON))["field"] == "action"
    assert problem(api.post(f"{url}bisect/", {"action": "start"}, JSON))["message"]


def test_subscriptions_are_created_tested_changed_and_deleted_by_their_user(
    api: Client, allowed: Callable[..., Client]
) -> None:
    body = {"channel": "webhook", "url": "https://hooks.example/parlab", "topics": ["failed", "oom"]}
    made = api.post("/api/subscriptions/", body, JSON)
    assert (made.status_code, made.json()["topics"], len(made.json()["secret"])) == (201, ["failed", "oom"], 48)
    assert api.post("/api/subscriptions/", {**body, "topics": ["rain"]}, JSON).status_code == 400
    assert problem(api.post("/api/subscriptions/", {**body, "url": "ftp://x"}, JSON))["field"] == "url"
    url = f"/api/subscriptions/{made.json()['id']}/"
    changed = api.patch(url, {"topics": ["study"], "is_enabled": False}, JSON).json()
    assert (changed["topics"], changed["is_enabled"], changed["url"]) == (["study"], False, body["url"])
    delivery = api.post(f"{url}test/")
    assert (delivery.status_code, delivery.json()["state"]) == (202, "waiting")
    retry = f"/api/deliveries/{delivery.json()['id']}/retry/"
    assert problem(api.post(retry))["field"] == "id"
    Delivery.objects.update(state="failed")
    assert api.post(retry).json()["state"] == "waiting"
    assert len(api.get("/api/deliveries/").json()) == 1
    other = allowed("add_run")
    assert (other.get("/api/subscriptions/").json(), other.get("/api/deliveries/").json()) == ([], [])
    assert other.delete(url).status_code == 404
    assert api.delete(url).status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("put", "/api/findings/1/acknowledgement/", {"reason": "x"}),
        ("delete", "/api/findings/1/acknowledgement/", {}),
        ("patch", f"{EXPERIMENT}names/", {}),
        ("patch", f"{EXPERIMENT}shelf/", {}),
        ("post", f"{EXPERIMENT}clone/", {}),
        ("patch", f"{EXPERIMENT}runs/1/shelf/", {"archived": True}),
        ("delete", f"{EXPERIMENT}runs/1/shelf/", {}),
        ("post", "/api/views/", {}),
        ("post", "/api/dashboards/", {}),
        ("put", "/api/dashboards/1/", {}),
        ("delete", "/api/dashboards/1/", {}),
        ("post", "/api/reports/", {}),
        ("post", "/api/watches/", {}),
        ("post", "/api/watches/1/", {}),
        ("post", "/api/watches/1/run/", {}),
        ("delete", "/api/watches/1/", {}),
        ("post", "/api/watches/1/alerts/1/", {}),
        ("post", "/api/watches/1/alerts/1/bisect/", {}),
    ],
)
def test_a_reader_changes_nothing(reader: Client, run: Run, method: str, path: str, body: dict[str, Any]) -> None:
    answer = getattr(reader, method)(path, body, JSON)
    assert answer.status_code == 403
    assert answer.json()["errors"][0]["remedy"] == "ask an administrator for the permission"
