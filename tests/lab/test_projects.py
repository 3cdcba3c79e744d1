"""Projects: who sees what, who may change what, moving, names and addresses, on every road."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.urls import reverse

from parlab.lab.models import AuditEntry, Dashboard, Experiment, Membership, Project, ReportLink, Role, Run, SavedView
from parlab.lab.models.access.viewer import viewer_of, viewing
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.projects import (
    experiment_move,
    member_remove,
    member_set,
    pools_set,
    project_change,
    project_create,
)
from parlab.lab.services.access.rights import may_change, may_work
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.public_links import link_create, link_revoke
from parlab.lab.services.runs import config_launch
from parlab.tracking.point import Point
from parlab.tracking.runs import points_append, tracked_run_start
from runners.config import ConfigError
from tests.conftest import SMALL

pytestmark = pytest.mark.django_db


@pytest.fixture
def person() -> Callable[..., User]:
    """Make an account of a group: person("bob"), person("eve", "viewer")."""

    def make(name: str, group: str = "operator") -> User:
        groups_refresh()
        made = User.objects.create_user(name, password="a member of the lab")
        made.groups.add(Group.objects.get(name=group))
        return made

    return make


def script(user: User, project: Project | None = None, *, scheme: str = "Bearer") -> Client:
    """A client with a token, as that of MLflow sends it; the REST framework's scheme is `Token`."""
    _, secret = token_create(user=user, name=f"script {user.api_tokens.count()}", by=user, project=project)
    return Client(headers={"Authorization": f"{scheme} {secret}"})


def post(client: Client, name: str, fields: dict[str, Any]) -> Any:
    return client.post(f"/api/2.0/mlflow/{name}", fields, content_type="application/json")


def seen_by(user: User) -> list[Experiment]:
    return list(Experiment.objects.seen_by(viewer_of(user)))


def test_everything_of_before_is_in_one_project_that_all_accounts_see(experiment: Experiment, person: Any) -> None:
    bob, eve = person("bob"), person("eve", "viewer")
    assert experiment.project.is_shared
    assert seen_by(bob) == seen_by(eve) == [experiment]
    assert (may_work(bob, experiment), may_work(eve, experiment)) == (True, False)


def test_a_private_project_is_seen_by_its_members_and_by_administrators(person: Any, admin: User) -> None:
    bob, eve = person("bob"), person("eve")
    secret = project_create(name="Secret", user=bob)
    hidden = experiment_create(name="Hidden", owner=bob, project=secret)
    assert [seen_by(user) for user in (bob, eve, admin)] == [[hidden], [], [hidden]]
    member_set(project=secret, user=eve, role=Role.VIEWER)
    assert seen_by(eve) == [hidden]
    member_remove(project=secret, user=eve)
    assert seen_by(eve) == []


def test_nothing_is_joined_for_who_sees_all_projects(person: Any) -> None:
    project_create(name="Second", visibility="internal", user=person("ada2"))
    with viewing(viewer_of(person("bob"))):
        assert "project" not in str(Run.objects.all().query)


def test_operators_change_their_own_and_maintainers_all(person: Any, experiment: Experiment) -> None:
    owner, other, chief = person("bob"), person("carl"), person("dora")
    member_set(project=experiment.project, user=chief, role=Role.MAINTAINER)
    board = Dashboard.objects.create(name="Board", owner=owner, project=experiment.project)
    assert [may_change(user, board) for user in (owner, other, chief)] == [True, False, True]


@pytest.mark.parametrize("method", ["put", "delete"])
def test_the_dashboards_of_others_are_left_alone_over_the_api(person: Any, experiment: Experiment, method: str) -> None:
    board = Dashboard.objects.create(name="Board", owner=person("bob"), project=experiment.project)
    fields = {"name": "Mine", "panels": [], "revision": 1}
    send: Any = getattr(script(person("carl"), scheme="Token"), method)
    assert send(f"/api/dashboards/{board.pk}/", fields, content_type="application/json").status_code == 403
    assert Dashboard.objects.get().name == "Board"


def test_the_views_of_others_and_their_default_are_left_alone(person: Any, experiment: Experiment) -> None:
    view = SavedView.objects.create(
        name="fast", path="/experiments/", is_default=True, owner=person("bob"), project=experiment.project
    )
    carl = script(person("carl"), scheme="Token")
    assert carl.delete(f"/api/views/{view.pk}/").status_code == 403
    for name in ("fast", "mine"):
        fields = {"name": name, "address": "/experiments/?q=x", "is_default": True}
        answer = carl.post("/api/views/", fields, content_type="application/json")
        assert answer.status_code == 400
    view.refresh_from_db()
    assert (view.query, view.is_default) == ("", True)


def test_the_runs_of_others_are_left_alone_over_every_road(person: Any, experiment: Experiment) -> None:
    bob, carl = person("bob"), person("carl")
    tracked = tracked_run_start(experiment=experiment, user=bob, name="his", run_uuid="his")
    others, browser = script(carl), Client()
    browser.force_login(carl)
    for name, fields in (
        ("runs/update", {"run_id": "his", "status": "FAILED"}),
        ("runs/delete", {"run_id": "his"}),
        ("runs/log-metric", {"run_id": "his", "key": "x", "value": 1, "timestamp": 1}),
        ("runs/log-batch", {"run_id": "his", "tags": [{"key": "x", "value": "y"}]}),
        ("runs/set-tag", {"run_id": "his", "key": "x", "value": "y"}),
    ):
        assert post(others, name, fields).json()["error_code"] == "PERMISSION_DENIED", name
    files = f"/api/2.0/mlflow-artifacts/artifacts/{experiment.pk}/his/artifacts/a.txt"
    assert others.put(files, b"x", content_type="application/octet-stream").status_code == 403
    assert others.delete(files).status_code == 403
    stream = others.put("/api/runs/his/streams/s/", {}, content_type="application/json")
    assert (stream.status_code, "not yours" in stream.content.decode()) == (400, True)
    shelf = reverse("api:run-shelf", args=[experiment.slug, tracked.run.number])
    assert (
        script(carl, scheme="Token").patch(shelf, {"archived": True}, content_type="application/json").status_code
        == 403
    )
    chosen = {"run": [tracked.run_id], "action": "archive"}
    assert browser.post(reverse("runs-change"), chosen).status_code == 403
    tracked.refresh_from_db()
    assert (tracked.status, tracked.deleted_at, tracked.tags.count()) == ("RUNNING", None, 0)


def test_experiments_of_others_are_neither_renamed_nor_deleted_over_mlflow(person: Any, experiment: Experiment) -> None:
    carl, identity = script(person("carl")), str(experiment.pk)
    for name, fields in (("update", {"new_name": "mine"}), ("delete", {})):
        answer = post(carl, f"experiments/{name}", {"experiment_id": identity, **fields})
        assert answer.json()["error_code"] == "PERMISSION_DENIED"
    experiment.refresh_from_db()
    assert (experiment.name, experiment.archived_at) == ("Pipeline schedules", None)


def test_overwriting_and_deleting_an_artifact_is_in_the_audit_log(
    person: Any, experiment: Experiment, settings: Any, tmp_path: Any
) -> None:
    settings.ARTIFACTS_DIR = tmp_path
    bob = person("bob")
    tracked_run_start(experiment=experiment, user=bob, name="his", run_uuid="his")
    own, files = script(bob), f"/api/2.0/mlflow-artifacts/artifacts/{experiment.pk}/his/artifacts/a.txt"
    for body in (b"one", b"two"):
        assert own.put(files, body, content_type="application/octet-stream").status_code == 200
    assert own.delete(files).status_code == 200
    assert list(AuditEntry.objects.order_by("pk").values_list("action", "path")) == [
        ("change", files),
        ("delete", files),
    ]


def test_a_viewer_of_a_project_changes_nothing_in_it_whatever_the_account_may(person: Any, user: User) -> None:
    eve = person("eve")
    shown = project_create(name="Shown", visibility="internal", user=user)
    theirs = experiment_create(name="Theirs", owner=user, project=shown)
    browser = Client()
    browser.force_login(eve)
    assert browser.get(theirs.get_absolute_url()).status_code == 200
    assert browser.post(reverse("clone", args=[theirs.slug])).status_code == 403
    assert browser.post(reverse("comment", args=[theirs.slug]), {"text": "x"}).status_code == 403
    with viewing(viewer_of(eve)), pytest.raises(PermissionDenied):
        config_save(experiment=theirs, data=SMALL, sweep={}, user=eve)


def test_a_role_in_a_project_gives_what_the_account_may_not(person: Any, user: User) -> None:
    eve = person("eve", "viewer")
    project = project_create(name="Own", user=user)
    experiment = experiment_create(name="Ours", owner=user, project=project)
    member_set(project=project, user=eve, role=Role.OPERATOR)
    browser = Client()
    browser.force_login(eve)
    assert browser.post(reverse("comment", args=[experiment.slug]), {"text": "x"}).status_code == 302
    assert experiment.comments.get().author == eve


def test_names_are_unique_within_a_project_and_addresses_say_which(user: User) -> None:
    first, second = project_create(name="Vision", user=user), project_create(name="Speech", user=user)
    made = [experiment_create(name="Baseline", owner=user, project=project) for project in (None, first, second)]
    assert [each.slug for each in made] == ["baseline", "vision--baseline", "speech--baseline"]
    with pytest.raises(ValueError, match="taken"):
        experiment_create(name="Baseline", owner=user, project=first)


def test_an_experiment_of_mlflow_is_one_of_the_project_of_the_token(person: Any) -> None:
    bob = person("bob")
    projects = [project_create(name=name, user=bob) for name in ("Vision", "Speech")]
    ids = [
        post(script(bob, project), "experiments/create", {"name": "Baseline"}).json()["experiment_id"]
        for project in projects
    ]
    assert [Experiment.objects.get(pk=pk).project for pk in ids] == projects
    other = script(bob, projects[1])
    answer = other.get("/api/2.0/mlflow/experiments/get", {"experiment_id": ids[0]})
    assert answer.json()["error_code"] == "RESOURCE_DOES_NOT_EXIST"
    defaults = {
        script(bob, project).get("/api/2.0/mlflow/experiments/get", {"experiment_id": "0"}).status_code
        for project in projects
    }
    assert defaults == {200}
    assert Experiment.objects.filter(name="Default").count() == 2


def test_an_experiment_moves_with_what_is_about_it(person: Any, experiment: Experiment) -> None:
    owner = experiment.owner
    member_set(project=experiment.project, user=owner, role=Role.OPERATOR)
    target = project_create(name="Vision", user=owner)
    board = Dashboard.objects.create(name="Board", owner=owner, experiment=experiment, project=experiment.project)
    address = experiment.get_absolute_url()
    with pytest.raises(PermissionDenied):
        experiment_move(experiment=experiment, project=target, user=person("carl"))
    experiment_move(experiment=experiment, project=target, user=owner)
    board.refresh_from_db()
    assert (experiment.project, board.project, experiment.get_absolute_url()) == (target, target, address)
    assert seen_by(person("eve")) == []


def test_a_project_keeps_a_maintainer(person: Any) -> None:
    bob = person("bob")
    project = project_create(name="Vision", user=bob)
    with pytest.raises(ValueError, match="only maintainer"):
        member_remove(project=project, user=bob)
    assert Membership.objects.get().role == Role.MAINTAINER


def test_a_reserved_pool_takes_no_runs_of_other_projects(user: User, make_config: Any) -> None:
    project = project_create(name="Vision", user=user)
    pools_set(project=project, pools=["big"])
    config = make_config(data={**SMALL, "cluster": {"pool": "big"}})
    with pytest.raises(ConfigError, match="reserved for another project"):
        config_launch(config=config, user=user)
    pools_set(project=project, pools=[])
    assert len(config_launch(config=config, user=user).created) == 1


def test_a_lab_with_one_project_sees_no_word_of_it(client: Client, person: Any, experiment: Experiment) -> None:
    bob = person("bob")
    client.force_login(bob)
    pages = [client.get(path).content.decode() for path in ("/", experiment.get_absolute_url(), "/account/")]
    assert [word for page in pages for word in ("project-choice", "Move to", "/projects/") if word in page] == []
    project_create(name="Vision", user=bob)
    assert "project-choice" in client.get("/").content.decode()


def test_the_project_chosen_in_the_menu_limits_lists_and_takes_new_experiments(client: Client, person: Any) -> None:
    bob = person("bob")
    vision = project_create(name="Vision", user=bob)
    for name, project in (("Elsewhere", None), ("Within", vision)):
        experiment_create(name=name, owner=bob, project=project)
    client.force_login(bob)
    client.post(reverse("project-choose"), {"project": vision.slug})
    listed = client.get(reverse("experiments")).content.decode()
    assert ("Within" in listed, "Elsewhere" in listed) == (True, False)
    assert client.get("/experiments/elsewhere/").status_code == 200


def test_a_public_link_shows_one_thing_until_it_is_withdrawn(client: Client, make_attempt: Any, user: User) -> None:
    run = make_attempt(state="finished").run
    other = experiment_create(name="Other question", owner=user)
    member_set(project=run.experiment.project, user=user, role=Role.OPERATOR)
    board = Dashboard.objects.create(name="Board", owner=user, experiment=run.experiment, project=other.project)
    for subject in (run.experiment, run, board):
        link = link_create(subject=subject, user=user)
        address = reverse("shared", args=[link.token])
        answer = client.get(address)
        assert answer.status_code == 200
        assert answer.headers["Cache-Control"] == "private, no-store"
        assert client.get(f"{address}figure?d=table+runs+experiment={other.slug}").status_code == 404
        link_revoke(link=link, user=user)
        assert client.get(address).status_code == 404


def test_a_private_project_has_no_public_links(client: Client, user: User) -> None:
    project = project_create(name="Vision", visibility="link", user=user)
    experiment = experiment_create(name="Within", owner=user, project=project)
    link = link_create(subject=experiment, user=user)
    assert client.get(reverse("shared", args=[link.token])).status_code == 200
    project_change(project=project, visibility="private")
    assert client.get(reverse("shared", args=[link.token])).status_code == 404
    ReportLink.objects.all().delete()
    with pytest.raises(ValueError, match="private"):
        link_create(subject=experiment, user=user)


def test_members_are_managed_over_the_api(person: Any) -> None:
    bob, eve = person("bob"), person("eve")
    api = script(bob, project_create(name="Vision", user=bob), scheme="Token")
    put = api.put("/api/projects/vision/members/eve/", {"role": "viewer"}, content_type="application/json")
    assert put.json()["role"] == "viewer"
    assert (
        script(eve, scheme="Token").get("/api/projects/vision/").status_code == 404
    )  # its token is of the shared project
    browser = Client()
    browser.force_login(eve)
    assert browser.get("/api/projects/vision/").json()["role"] == "viewer"
    refused = browser.put("/api/projects/vision/members/eve/", {"role": "maintainer"}, content_type="application/json")
    assert refused.status_code == 403
    assert api.delete("/api/projects/vision/members/eve/").status_code == 204
    assert browser.get("/api/projects/vision/").status_code == 404


def test_the_series_of_many_runs_leave_those_of_other_projects_out(person: Any) -> None:
    bob, eve = person("bob"), person("eve")
    hidden = experiment_create(name="Hidden", owner=bob, project=project_create(name="Secret", user=bob))
    tracked = tracked_run_start(experiment=hidden, user=bob, name="his", run_uuid="his")
    points_append(tracked=tracked, points=[Point("loss", 1.0, 1_700_000_000_000, 1)])
    address = f"/api/series/?run={hidden.slug}:1&metric=loss"
    answers = {}
    for user in (bob, eve):
        browser = Client()
        browser.force_login(user)
        answers[user.username] = browser.get(address)
    assert answers["bob"].status_code == 200
    assert answers["eve"].status_code != 200 or b"loss" not in b"".join(answers["eve"])
