"""Tags, stars, notes and comments over the API."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Attempt, Comment, Finding, Run

pytestmark = pytest.mark.django_db

EXPERIMENT = "/api/experiments/pipeline-schedules/"
JSON = "application/json"


@pytest.fixture
def run(make_attempt: Callable[..., Attempt]) -> Run:
    return make_attempt().run


def test_marks_are_changed_in_part(api: Client, run: Run) -> None:
    url = f"{EXPERIMENT}runs/{run.number}/marks/"
    assert api.get(url).json() == {"tags": [], "starred_by": [], "note": ""}
    answer = api.patch(url, {"tags": ["Best", "paper"], "starred": True, "note": "warm"}, JSON).json()
    assert answer["tags"] == ["best", "paper"]
    assert len(answer["starred_by"]) == 1
    assert answer["note"] == "warm"
    assert api.patch(url, {"tags": ["paper"]}, JSON).json() == {**answer, "tags": ["paper"]}
    assert api.patch(url, {"starred": False, "note": ""}, JSON).json()["starred_by"] == []
    refused = api.patch(url, {"tags": ["two words", "other"]}, JSON)
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["field"] == "tags"
    assert api.get(url).json()["tags"] == ["paper"]  # all or nothing


def test_comments_are_added_changed_and_deleted_by_their_author(api: Client, run: Run, user: User) -> None:
    finding = Finding.objects.create(experiment=run.experiment, rule="r", severity="warning", message="3 is not 4")
    added = api.post(f"{EXPERIMENT}comments/", {"text": "It rounds.", "finding": finding.pk}, JSON)
    assert (added.status_code, added.json()["about"]) == (201, "3 is not 4")
    url = f"{EXPERIMENT}comments/{added.json()['id']}/"
    assert api.patch(url, {"text": "It does round."}, JSON).json()["edited_at"] is not None
    assert [comment["text"] for comment in api.get(f"{EXPERIMENT}comments/").json()] == ["It does round."]
    assert api.post(f"{EXPERIMENT}comments/", {"text": "   "}, JSON).status_code == 400
    Comment.objects.update(author=user if added.json()["author"] != user.username else User.objects.create_user("x"))
    assert api.patch(url, {"text": "mine"}, JSON).status_code == 403
    assert api.post(f"{EXPERIMENT}comments/", {"text": "x", "finding": finding.pk + 1}, JSON).status_code == 404
