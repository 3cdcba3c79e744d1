"""Who may cancel, relaunch and end the chain of a run: its owner, maintainers and administrators, on every road."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.test import Client

from parlab.lab.models import Project, Role, Run
from parlab.lab.models.access.viewer import viewer_of, viewing
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.projects import member_set, project_create
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.chains import run_chain_end
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch, run_cancel_request, run_relaunch
from parlab.tracking import artifacts
from parlab.tracking.runs import tracked_run_start
from parlab.tuner.models import Study
from parlab.tuner.services import study_cancel, study_resume
from tests.conftest import SMALL

pytestmark = pytest.mark.django_db
CHAIN = {
    "launcher": {"chain": True, "chain_until_s": 3600},
    "checkpoint": {"every_steps": 2, "directory": "/shared/checkpoints"},
}


@pytest.fixture
def people() -> dict[str, User]:
    groups_refresh()
    names = ("chief", "owner", "other")
    made = {name: User.objects.create_user(name, password="a member of the lab") for name in names}
    project = project_create(name="Vision", user=made["chief"])
    for name in ("owner", "other"):
        member_set(project=project, user=made[name], role=Role.OPERATOR)
    return made


@pytest.fixture
def run(people: dict[str, User]) -> Run:
    project = Project.objects.get(slug="vision")
    experiment = experiment_create(name="Baseline", owner=people["owner"], project=project)
    config = config_save(experiment=experiment, data={**SMALL, **CHAIN}, sweep={}, user=people["owner"])
    return config_launch(config=config, user=people["owner"]).created[0]


ACTIONS: dict[str, Callable[[Run, User], Any]] = {
    "end-chain": lambda run, _user: run_chain_end(run=run),
    "cancel": lambda run, _user: run_cancel_request(run=run),
    "relaunch": lambda run, user: run_relaunch(run=run, user=user),
}


@pytest.mark.parametrize("name", ["owner", "chief"])
def test_services_act_for_owners_and_maintainers_and_refuse_others(
    run: Run, people: dict[str, User], name: str
) -> None:
    for action in ACTIONS.values():
        with viewing(viewer_of(people["other"])), pytest.raises(PermissionDenied, match="belongs to another person"):
            action(run, people["other"])
        with viewing(viewer_of(people[name])):
            action(run, people[name])


@pytest.mark.parametrize(("name", "status"), [("other", 403), ("owner", 200)])
def test_the_api_and_pages_follow_the_same_rule(run: Run, people: dict[str, User], name: str, status: int) -> None:
    user, address = people[name], "experiments/vision--baseline/runs/1"
    _, secret = token_create(user=user, name="script", by=user, project=run.experiment.project)
    api, browser = Client(headers={"Authorization": f"Token {secret}"}), Client()
    browser.force_login(user)
    for action in ("end-chain", "cancel", "relaunch"):
        assert api.post(f"/api/{address}/{action}/").status_code == status
    assert Run.objects.get().attempt_number == (2 if name == "owner" else 1)
    chosen = {"run": run.pk, "action": "cancel"}
    assert browser.post("/runs/change/", chosen).status_code == (403 if name == "other" else 302)
    for action in ("relaunch", "end-chain", "cancel"):
        assert browser.post(f"/{address}/{action}/").status_code == (403 if name == "other" else 302)


def test_of_selected_runs_those_of_others_are_left_alone_and_counted(run: Run, people: dict[str, User]) -> None:
    data = {**SMALL, "train": {**SMALL["train"], "iterations": 7}}
    own = config_save(experiment=run.experiment, data=data, sweep={}, user=people["other"])
    (mine,) = config_launch(config=own, user=people["other"]).created
    browser = Client()
    browser.force_login(people["other"])
    answer = browser.post("/runs/change/", {"run": [run.pk, mine.pk], "action": "cancel"}, follow=True)
    text = answer.content.decode()
    for words in ("1 run cancelled or stopping", "1 run not changed: ", "belongs to another"):
        assert words in text
    assert [each.is_final for each in Run.objects.order_by("pk")] == [False, True]


def test_parts_of_an_upload_come_from_who_may_change_its_run(run: Run, people: dict[str, User]) -> None:
    tracked = tracked_run_start(experiment=run.experiment, user=people["owner"])
    upload = artifacts.upload_create(tracked=tracked)
    answers = {}
    for name in ("other", "owner"):
        _, secret = token_create(user=people[name], name="script", by=people[name], project=run.experiment.project)
        api = Client(headers={"Authorization": f"Bearer {secret}"})
        part = api.put(f"/api/2.0/mlflow-artifacts/parts/{upload}/1", name.encode(), "application/octet-stream")
        place = f"/api/2.0/mlflow-artifacts/mpu/abort/{run.experiment_id}/{tracked.uuid}/artifacts"
        ended = api.post(place, {"path": "a", "upload_id": upload}, "application/json")
        answers[name] = (part.status_code, ended.status_code)
    assert answers == {"other": (403, 403), "owner": (200, 200)}


def test_pages_offer_only_what_would_be_done(run: Run, people: dict[str, User]) -> None:
    offered = {}
    for name, user in people.items():
        browser = Client()
        browser.force_login(user)
        page = browser.get(run.get_absolute_url()).content.decode()
        palette = browser.get("/palette/", {"at": run.get_absolute_url(), "q": ""}).content.decode()
        offered[name] = ('id="cancel"' in page, 'id="end-chain"' in page, "Cancel this run" in palette)
    assert offered == {"chief": (True,) * 3, "owner": (True,) * 3, "other": (False,) * 3}


def test_a_study_is_stopped_and_resumed_by_who_may_change_its_runs(run: Run, people: dict[str, User]) -> None:
    study = Study.objects.create(config=run.config, created_by=people["owner"])
    with viewing(viewer_of(people["other"])):
        for act in (study_cancel, study_resume):
            with pytest.raises(PermissionDenied, match="belongs to another person"):
                act(study=study)
    with viewing(viewer_of(people["owner"])):
        assert study_cancel(study=study)
