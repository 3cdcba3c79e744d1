"""Launches beyond the budget of a project wait for a maintainer, whatever road they come by."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.test import Client

from parlab.fleet.services import dispatch, relaunch, waiting_reason
from parlab.lab.models import AuditEntry, Config, Event, InboxItem, LaunchApproval, Node, Project, Role, Run
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.projects import member_set, project_change, project_create
from parlab.lab.services.access.service_accounts import service_account_create
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.approvals import approval_decide, gpu_hours
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch, run_cancel_request
from tests.conftest import SMALL

pytestmark = pytest.mark.django_db
JSON = "application/json"


@pytest.fixture
def boss() -> User:
    groups_refresh()
    return User.objects.create_user("boss", password="a member of the lab")


@pytest.fixture
def project(boss: User) -> Project:
    made = project_create(name="Vision", user=boss)
    return project_change(project=made, budget=5.0)


@pytest.fixture
def worker(project: Project) -> User:
    made = User.objects.create_user("worker", password="a member of the lab")
    member_set(project=project, user=made, role=Role.OPERATOR)
    return made


@pytest.fixture
def save(project: Project, worker: User) -> Callable[..., Config]:
    """Save a configuration of the project, of one GPU and so many hours: save("a", hours=2)."""

    def make(name: str, *, hours: int = 1, sweep: dict[str, Any] | None = None, device: str = "cuda") -> Config:
        experiment = experiment_create(name=name, owner=worker, project=project)
        data = {**SMALL, "cluster": {"device": device}, "launcher": {"timeout_s": 3600 * hours}}
        return config_save(experiment=experiment, data=data, sweep=sweep or {}, user=worker)

    return make


def held() -> list[str]:
    return sorted(run.experiment.name for run in Run.objects.filter(approval__is_approved=None).exclude(approval=None))


def test_a_run_counts_with_its_gpus_and_its_time_limit(save: Callable[..., Config]) -> None:
    [run] = config_launch(config=save("a", hours=2), user=User.objects.get(username="worker")).created
    gpus = run.resolved["cluster"]["gpus_per_node"] * run.resolved["cluster"]["nodes"]
    assert gpu_hours(run.resolved) == gpus * 2
    assert gpu_hours({**run.resolved, "cluster": {**run.resolved["cluster"], "device": "cpu"}}) == 0


def test_what_is_beyond_the_budget_waits_and_what_is_within_starts(save: Callable[..., Config], worker: User) -> None:
    small, large = save("small"), save("large", hours=9)
    assert config_launch(config=small, user=worker).approval is None
    launched = config_launch(config=large, user=worker)
    assert launched.approval is not None
    assert held() == ["large"]
    Node.objects.create(name="gpu1", slots=9)
    dispatch()
    [run] = launched.created
    assert Run.objects.get(pk=run.pk).state == "queued"
    assert "a maintainer approves it" in waiting_reason(Run.objects.get(pk=run.pk))
    item = InboxItem.objects.get()
    assert (item.kind, item.data["gpu_hours"], item.data["budget"]) == ("launch.asked", gpu_hours(run.resolved), 5.0)
    assert Event.objects.filter(kind="launch.asked").count() == 1


def test_many_small_launches_are_one_large_one(save: Callable[..., Config], worker: User) -> None:
    for name in ("a", "b", "c"):
        config_launch(config=save(name), user=worker)
    assert held() == ["c"]
    run_cancel_request(run=Run.objects.get(experiment__name="a"))
    config_launch(config=save("d"), user=worker)
    assert held() == ["c"]  # what has ended no longer counts


def test_a_maintainer_and_a_project_without_a_budget_need_no_approval(
    save: Callable[..., Config], worker: User, boss: User, project: Project
) -> None:
    config_launch(config=save("a", hours=99), user=boss)
    project_change(project=project, budget=None)
    config_launch(config=save("b", hours=99), user=worker)
    assert held() == []


def test_approved_runs_start_and_refused_ones_are_cancelled(
    save: Callable[..., Config], worker: User, boss: User
) -> None:
    first, second = (config_launch(config=save(name, hours=9), user=worker).approval for name in ("a", "b"))
    assert first is not None
    assert second is not None
    with pytest.raises(PermissionDenied):
        approval_decide(approval=first, user=worker, is_approved=True)
    assert approval_decide(approval=first, user=boss, is_approved=True) == 1
    with pytest.raises(ValueError, match="somebody has decided already"):
        approval_decide(approval=first, user=boss, is_approved=False)
    assert approval_decide(approval=second, user=boss, is_approved=False) == 1
    states = {run.experiment.name: (run.state, run.reason) for run in Run.objects.all()}
    assert states == {"a": ("queued", ""), "b": ("cancelled", "not approved by boss")}
    assert not InboxItem.objects.open().exists()
    assert waiting_reason(Run.objects.get(experiment__name="a")) != waiting_reason(Run(approval=second))


def test_a_relaunch_is_a_launch(save: Callable[..., Config], worker: User, boss: User) -> None:
    approval = config_launch(config=save("a", hours=9), user=worker).approval
    assert approval is not None
    approval_decide(approval=approval, user=boss, is_approved=True)
    run = Run.objects.get()
    run_cancel_request(run=run)
    relaunch(run=Run.objects.get(), user=worker)
    assert held() == ["a"]
    assert LaunchApproval.objects.count() == 2


def test_a_service_account_never_approves(
    save: Callable[..., Config], worker: User, boss: User, project: Project
) -> None:
    approval = config_launch(config=save("a", hours=9), user=worker).approval
    assert approval is not None
    robot = service_account_create(project=project, name="nightly", role=Role.MAINTAINER, by=boss)
    with pytest.raises(PermissionDenied):
        approval_decide(approval=approval, user=robot.user, is_approved=True)


def test_the_inbox_decides(save: Callable[..., Config], worker: User, boss: User) -> None:
    config = save("a", hours=9)
    browsers = {}
    for user in (worker, boss):
        browsers[user.username] = Client()
        browsers[user.username].force_login(user)
    place = f"/experiments/{config.experiment.slug}/launch/{config.version}/"
    answer = browsers["worker"].post(place, {"digest": config.digest}, follow=True)
    assert "wait for the approval of a maintainer" in answer.content.decode()
    assert held() == ["a"]
    item = InboxItem.objects.get()
    page = f"/inbox/{item.pk}/"
    assert "Approve" not in browsers["worker"].get(page).content.decode()
    assert browsers["worker"].post(f"{page}decide/", {"answer": "approve"}).status_code == 403
    shown = browsers["boss"].get(page).content.decode()
    assert "Approve" in shown
    assert "worker asks for" in shown
    assert browsers["boss"].post(f"{page}decide/", {"answer": "maybe"}).status_code == 400
    browsers["boss"].post(f"{page}decide/", {"answer": "approve"})
    assert held() == []
    assert AuditEntry.objects.filter(username="boss", action="launch").exists()


def test_the_api_says_what_waits_and_decides(save: Callable[..., Config], worker: User, boss: User) -> None:
    config = save("a", hours=9)
    project = config.experiment.project

    def api(user: User, *scopes: str) -> Client:
        _, secret = token_create(user=user, name=" ".join(scopes), by=user, scopes=scopes, project=project)
        return Client(headers={"Authorization": f"Token {secret}"})

    launched = (
        api(worker, "read", "launch")
        .post(f"/api/experiments/{config.experiment.slug}/launch/?digest={config.digest}")
        .json()
    )
    assert (len(launched["created"]), launched["needs_approval"]) == (1, True)
    reader = api(boss, "read")
    [row] = reader.get("/api/approvals/").json()
    assert (row["asked_by"], row["runs"], row["is_approved"]) == ("worker", launched["created"], None)
    place = f"/api/approvals/{row['id']}/"
    body = json.dumps({"is_approved": True})
    assert reader.post(place, body, JSON).status_code == 403
    assert api(worker, "admin").post(place, body, JSON).status_code == 403
    assert api(boss, "admin").post(place, body, JSON).json()["is_approved"] is True
    assert reader.get("/api/approvals/").json() == []
    assert api(boss, "admin", "read").post(place, body, JSON).status_code == 400
    assert (
        api(boss, "write", "admin")
        .patch(f"/api/projects/{project.slug}/", '{"approval_gpu_hours": 4}', JSON)
        .json()["approval_gpu_hours"]
        == 4
    )


def test_a_study_waits_for_its_trials_like_anybody(save: Callable[..., Config], worker: User) -> None:
    config = save("a", hours=9)
    launched = config_launch(config=config, user=worker, only={point.digest for point in config.points()})
    assert launched.approval is not None


def test_an_invalid_budget_is_refused(project: Project, boss: User) -> None:
    with pytest.raises(ValueError, match="approval_gpu_hours -1 is out of range"):
        project_change(project=project, budget=-1.0)
    client = Client()
    client.force_login(boss)
    fields = {"name": "Vision", "visibility": "private", "budget": "many"}
    assert "are no number" in client.post("/projects/vision/settings/", fields, follow=True).content.decode()
    assert Project.objects.get(pk=project.pk).approval_gpu_hours == 5.0
