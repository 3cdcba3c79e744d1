"""Service accounts: what a pipeline acts as, in one project; only tokens let them in."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import AuditEntry, Experiment, Membership, Project, Role
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.projects import member_remove, member_set, project_create
from parlab.lab.services.access.service_accounts import (
    service_account_create,
    service_account_end,
    service_token_create,
)
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.experiments import experiment_create

pytestmark = pytest.mark.django_db
JSON = "application/json"


@pytest.fixture
def owner() -> User:
    groups_refresh()
    return User.objects.create_user("owner", password="a member of the lab")


@pytest.fixture
def project(owner: User) -> Project:
    return project_create(name="Vision", user=owner)


@pytest.fixture
def browser(owner: User) -> Client:
    client = Client()
    client.force_login(owner)
    return client


def robot(project: Project, owner: User, *, scopes: Any = ("read", "report"), role: str = Role.OPERATOR) -> Client:
    account = service_account_create(project=project, name="nightly", role=role, by=owner)
    _, secret = service_token_create(account=account, name="a token", scopes=scopes, days=30, by=owner)
    return Client(headers={"Authorization": f"Token {secret}"})


def test_it_works_in_its_project_with_its_role_and_sees_nothing_else(project: Project, owner: User) -> None:
    experiment_create(name="elsewhere", owner=owner)
    mine = robot(project, owner, scopes=("read", "write"))
    assert mine.post("/api/experiments/", {"name": "nightly build"}, JSON).status_code == 201
    assert Experiment.objects.get(name="nightly build").project == project
    assert [row["name"] for row in mine.get("/api/experiments/").json()["results"]] == ["nightly build"]
    entry = AuditEntry.objects.latest("pk")
    assert (entry.username, entry.token) == ("nightly@vision.service", "a token")


def test_its_role_limits_it_as_that_of_a_person(project: Project, owner: User) -> None:
    reader = robot(project, owner, scopes=("read", "write"), role=Role.VIEWER)
    assert reader.get("/api/experiments/").status_code == 200
    assert reader.post("/api/experiments/", {"name": "no"}, JSON).status_code == 403


def test_it_has_no_password_and_works_in_one_project(project: Project, owner: User) -> None:
    account = service_account_create(project=project, name="nightly", by=owner)
    assert not account.user.has_usable_password()
    other = project_create(name="Other", user=owner)
    with pytest.raises(ValueError, match="service account of another project; create one in Other"):
        member_set(project=other, user=account.user, role=Role.VIEWER)


def test_it_does_not_count_as_the_maintainer_that_a_project_needs(project: Project, owner: User) -> None:
    service_account_create(project=project, name="nightly", role=Role.MAINTAINER, by=owner)
    with pytest.raises(ValueError, match="only maintainer"):
        member_remove(project=project, user=owner)


def test_an_ended_account_is_out_and_its_name_stays_taken(project: Project, owner: User) -> None:
    mine = robot(project, owner)
    account = project.service_accounts.get()
    assert service_account_end(account=account, by=owner) == 1
    assert mine.get("/api/experiments/").status_code == 401
    assert not Membership.objects.filter(user=account.user).exists()
    with pytest.raises(ValueError, match="has ended"):
        service_token_create(account=account, name="again", scopes=["read"], days=1, by=owner)
    with pytest.raises(ValueError, match="is taken"):
        service_account_create(project=project, name="nightly", by=owner)


@pytest.mark.parametrize("name", ["", "Nightly", "a b", "-a", "a@b", "x" * 41, "a\0"])
def test_names_are_checked(project: Project, owner: User, name: str) -> None:
    with pytest.raises(ValueError, match=r"is invalid; use 1 to 40 lower-case letters"):
        service_account_create(project=project, name=name, by=owner)


def test_a_maintainer_manages_them_on_the_page_of_the_project(browser: Client, project: Project) -> None:
    place = "/projects/vision/service-accounts/"
    fields = {"name": "nightly", "role": "operator", "purpose": "CI of the trainer"}
    assert "CI of the trainer" in browser.post(place, fields, follow=True).content.decode()
    chosen = {"token": "main branch", "scopes": ["read", "report"], "days": "30"}
    made = browser.post(f"{place}nightly/token/", chosen)
    [secret] = re.findall(r"<code id=\"secret\">(parlab_\w{43})<", made.content.decode())
    assert "no-store" in made["Cache-Control"]
    assert Client().get("/api/experiments/", headers={"Authorization": f"Token {secret}"}).status_code == 200
    page = browser.get("/projects/vision/").content.decode()
    assert "main branch" in page
    assert "never" not in page.partition("main branch")[2].partition("Revoke")[0]
    assert secret not in page
    token = User.objects.get(username="nightly@vision.service").api_tokens.get()
    browser.post(f"{place}nightly/revoke/", {"pk": token.pk})
    token.refresh_from_db()
    assert token.is_revoked
    browser.post(f"{place}nightly/end/")
    assert "New token for nightly" not in browser.get("/projects/vision/").content.decode()
    assert browser.post(f"{place}nightly/token/", chosen).status_code == 404
    assert set(AuditEntry.objects.values_list("action", flat=True)) == {AuditEntry.Action.ACCESS}


def test_an_invalid_wish_is_answered_on_the_page(browser: Client, project: Project, owner: User) -> None:
    answer = browser.post("/projects/vision/service-accounts/", {"name": "No", "role": "operator"})
    assert (answer.status_code, "lower-case letters" in answer.content.decode()) == (400, True)
    service_account_create(project=project, name="nightly", by=owner)
    answer = browser.post("/projects/vision/service-accounts/nightly/token/", {"token": "a", "days": "30"})
    assert (answer.status_code, "scopes are empty" in answer.content.decode()) == (400, True)


def test_others_may_not_manage_them(project: Project, owner: User) -> None:
    service_account_create(project=project, name="nightly", by=owner)
    member = User.objects.create_user("member")
    member_set(project=project, user=member, role=Role.OPERATOR)
    client = Client()
    client.force_login(member)
    assert "nightly" not in client.get("/projects/vision/").content.decode()
    for action in ("token", "revoke", "end"):
        assert client.post(f"/projects/vision/service-accounts/nightly/{action}/").status_code == 403
    assert client.get("/api/projects/vision/service-accounts/").status_code == 403


def test_the_api_manages_them_within_the_token_that_asks(project: Project, owner: User) -> None:
    _, secret = token_create(user=owner, name="admin", by=owner, scopes=["read", "admin"], days=5, project=project)
    api = Client(headers={"Authorization": f"Token {secret}"})
    place = "/api/projects/vision/service-accounts/"
    made = api.post(place, {"name": "nightly", "purpose": "CI"}, JSON)
    assert made.status_code == 201
    assert made.json()["username"] == "nightly@vision.service"
    tokens = f"{place}nightly/tokens/"
    assert api.post(tokens, {"name": "a", "scopes": ["launch"], "days": 1}, JSON).status_code == 400
    assert api.post(tokens, {"name": "a", "scopes": ["read"], "days": 30}, JSON).status_code == 400
    token = api.post(tokens, {"name": "a", "scopes": ["read"]}, JSON).json()
    assert Client(headers={"Authorization": f"Token {token['secret']}"}).get("/api/experiments/").status_code == 200
    [row] = api.get(tokens).json()
    assert row["last_used_at"] is not None
    assert row["expires_at"] is not None
    assert [row["tokens"] for row in api.get(place).json()] == [1]
    assert api.delete(f"{tokens}{token['id']}/").status_code == 204
    assert api.delete(f"{place}nightly/").status_code == 204
    assert api.get(place).json() == []
