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
from parlab.lab.models.access.viewer import shared_project_id, viewer_of, viewing
from parlab.lab.services.access.budgets import budget_set, gpu_hours
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.projects import member_set, project_create
from parlab.lab.services.access.service_accounts import service_account_create
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.approvals import approval_decide
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
def root() -> User:
    return User.objects.create_superuser("root", password="a member of the lab")


@pytest.fixture
def project(boss: User, root: User) -> Project:
    return budget_set(project=project_create(name="Vision", user=boss), hours=5.0, user=root)


@pytest.fixture
def worker(project: Project) -> User:
    made = User.objects.create_user("worker", password="a member of the lab")
    member_set(project=project, user=made, role=Role.OPERATOR)
    return made


@pytest.fixture
def save(project: Project, worker: User) -> Callable[..., Config]:
    """Save a configuration of the project, of one GPU and so many hours: save("a", hours=2)."""

    def make(name: str, *, hours: int = 1, at: Project = project, by: User = worker, **sections: Any) -> Config:
        experiment = experiment_create(name=name, owner=by, project=at)
        launcher = {"timeout_s": 3600 * hours, "max_attempts": 1, **sections.pop("launcher", {})}
        data = {**SMALL, "cluster": {"device": "cuda"}, "launcher": launcher, **sections}
        return config_save(experiment=experiment, data=data, sweep={}, user=by)

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
    save: Callable[..., Config], worker: User, boss: User, root: User, project: Project
) -> None:
    config_launch(config=save("a", hours=99), user=boss)
    budget_set(project=project, hours=None, user=root)
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


def test_the_api_says_what_waits_and_decides(save: Callable[..., Config], worker: User, boss: User, root: User) -> None:
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
    place, body = f"/api/projects/{project.slug}/", '{"approval_gpu_hours": 4}'
    assert api(boss, "write", "admin").patch(place, body, JSON).status_code == 403
    assert api(root, "write", "admin").patch(place, body, JSON).json()["approval_gpu_hours"] == 4


def test_a_study_waits_for_its_trials_like_anybody(save: Callable[..., Config], worker: User) -> None:
    config = save("a", hours=9)
    launched = config_launch(config=config, user=worker, only={point.digest for point in config.points()})
    assert launched.approval is not None


def test_an_invalid_budget_is_refused(project: Project, root: User) -> None:
    with pytest.raises(ValueError, match="approval_gpu_hours -1 is out of range"):
        budget_set(project=project, hours=-1.0, user=root)
    client = Client()
    client.force_login(root)
    fields = {"name": "Vision", "visibility": "private", "budget": "many"}
    assert "are no number" in client.post("/projects/vision/settings/", fields, follow=True).content.decode()
    assert Project.objects.get(pk=project.pk).approval_gpu_hours == 5.0


def test_administrators_set_budgets_and_maintainers_see_them(project: Project, boss: User) -> None:
    with pytest.raises(PermissionDenied, match="set by administrators"):
        budget_set(project=project, hours=99.0, user=boss)
    client = Client()
    client.force_login(boss)
    shown = client.get("/projects/vision/").content.decode()
    assert "5.0 GPU hours" in shown
    assert 'name="budget"' not in shown
    fields = {"name": "Vision 2", "visibility": "private"}
    assert client.post("/projects/vision/settings/", {**fields, "budget": "99"}).status_code == 403
    client.post("/projects/vision/settings/", fields)
    assert Project.objects.values_list("name", "approval_gpu_hours").get(pk=project.pk) == ("Vision 2", 5.0)


def test_who_creates_projects_stays_within_the_budget_of_the_shared_one(
    save: Callable[..., Config], worker: User, root: User
) -> None:
    budget_set(project=Project.objects.get(pk=shared_project_id()), hours=5.0, user=root)
    own = [project_create(name=name, user=worker) for name in ("one", "two", "three")]
    launches = [config_launch(config=save(each.name, at=each), user=worker) for each in own]
    assert held() == ["three"]  # the budget is one for all of them
    approval = launches[2].approval
    assert approval is not None
    with pytest.raises(PermissionDenied, match="people who maintain project Shared"):
        approval_decide(approval=approval, user=worker, is_approved=True)
    assert approval_decide(approval=approval, user=root, is_approved=True) == 1


@pytest.mark.parametrize(
    ("sections", "gpus"),
    [
        ({}, 2),
        ({"cluster": {"device": "cpu"}}, 0),
        ({"cluster": {"device": "cpu"}, "slurm": {"gres": "gpu:a100:4,gpu:2,shard:9"}}, 6),
        ({"slurm": {"gres": "gpu:8", "exclusive": True}}, 8),
        ({"slurm": {"gres": "gpu"}}, 2),
        ({"cluster": {"device": "cpu"}, "kubernetes": {"resources": {"nvidia.com/gpu": "8", "rdma/a": "3"}}}, 8),
        ({"cluster": {"device": "cpu"}, "kubernetes": {"resources": {"amd.com/gpu": "1k"}}}, 1000),
        ({"cluster": {"device": "cpu"}, "kubernetes": {"resources": {"nvidia.com/mig-1g.5gb": "3"}}}, 3),
    ],
)
def test_gpus_count_wherever_they_are_asked_for(
    save: Callable[..., Config], worker: User, sections: dict[str, Any], gpus: int
) -> None:
    [run] = config_launch(config=save("a", **sections), user=worker).created
    assert gpu_hours(run.resolved) == gpus


def test_attempts_that_follow_by_themselves_count(save: Callable[..., Config], worker: User) -> None:
    [run] = config_launch(config=save("a", launcher={"max_attempts": 20}), user=worker).created
    assert [gpu_hours(run.resolved, attempt) for attempt in (1, 20, 21)] == [40, 2, 2]
    assert held() == ["a"]


def test_a_chain_counts_until_its_end_and_one_without_needs_approval(
    save: Callable[..., Config], worker: User, boss: User
) -> None:
    chain = {"timeout_s": 600, "chain": True, "chain_until_step": 1000}
    saved = {"every_steps": 2, "directory": "/shared/checkpoints"}
    ends = config_launch(config=save("ends", launcher={**chain, "chain_until_s": 3600}, checkpoint=saved), user=worker)
    assert [gpu_hours(run.resolved) for run in ends.created] == [2]
    assert ends.approval is None
    endless = config_launch(config=save("endless", launcher=chain, checkpoint=saved), user=worker)
    assert endless.approval is not None
    assert (endless.approval.gpu_hours, endless.approval.amount) == (None, "GPU hours without a limit")
    client = Client()
    client.force_login(boss)
    assert "a chain without time limit" in client.get("/inbox/").content.decode()
    assert client.get("/api/approvals/").json()[0]["gpu_hours"] is None


def test_relaunches_count_for_who_relaunches(save: Callable[..., Config], worker: User, boss: User) -> None:
    for name in ("a", "b", "c"):
        [run] = config_launch(config=save(name), user=boss).created
        run_cancel_request(run=run)
        relaunch(run=run, user=worker)
    assert held() == ["c"]


def test_a_service_account_stays_within_the_budget_whatever_its_role(
    save: Callable[..., Config], boss: User, project: Project
) -> None:
    robot = service_account_create(project=project, name="nightly", role=Role.MAINTAINER, by=boss)
    config_launch(config=save("a", hours=9), user=robot.user)
    assert held() == ["a"]


def test_what_a_token_does_not_reach_counts_too(save: Callable[..., Config], worker: User, root: User) -> None:
    budget_set(project=Project.objects.get(pk=shared_project_id()), hours=5.0, user=root)
    one, two = (project_create(name=name, user=worker) for name in ("one", "two"))
    for name in ("a", "b"):
        config_launch(config=save(name, at=one), user=worker)
    with viewing(viewer_of(worker, two.pk)):
        launched = config_launch(config=save("c", at=two), user=worker)
    assert launched.approval is not None
