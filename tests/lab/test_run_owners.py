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
