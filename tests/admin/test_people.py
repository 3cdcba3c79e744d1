"""Permissions of the groups; creating and revoking tokens in the admin."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from parlab.lab.models import ApiToken, Config, Node, Run
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.tokens import token_create

pytestmark = pytest.mark.django_db
USERS = "admin:auth_user_changelist"


@pytest.fixture
def member() -> Callable[..., Client]:
    """Log in as a member of a group: member("operator")."""

    def make(group: str) -> Client:
        groups_refresh()
        person = User.objects.create_user(group, password="member of a group", is_staff=True)
        person.groups.add(Group.objects.get(name=group))
        client = Client()
        client.force_login(person)
        return client

    return make


def test_groups_are_created_once_and_keep_added_permissions(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("groups")
    assert "permissions added" in capsys.readouterr().out
    viewer = Group.objects.get(name="viewer")
    before = viewer.permissions.count()
    viewer.permissions.add(Group.objects.get(name="operator").permissions.get(codename="add_run"))
    call_command("groups")
    assert capsys.readouterr().out == "viewer: up to date\noperator: up to date\nadmin: up to date\n"
    assert viewer.permissions.count() == before + 1


@pytest.mark.parametrize(("group", "status"), [("viewer", 403), ("operator", 302), ("admin", 302)])
def test_who_may_launch(
    group: str, status: int, member: Callable[..., Client], make_config: Callable[..., Config]
) -> None:
    config = make_config()
    client = member(group)
    assert client.get(f"/experiments/{config.experiment.slug}/").status_code == 200
    address = f"/experiments/{config.experiment.slug}/launch/1/"
    assert client.post(address, {"digest": config.digest}).status_code == status
    assert Run.objects.count() == (0 if status == 403 else 1)


@pytest.mark.parametrize(
    ("group", "may_edit", "may_manage"), [("viewer", False, False), ("operator", True, False), ("admin", True, True)]
)
def test_who_may_edit_configurations_and_manage_users_and_nodes(
    group: str, may_edit: bool, may_manage: bool, member: Callable[..., Client], make_config: Callable[..., Config]
) -> None:
    config, client = make_config(), member(group)
    page = client.get(reverse("admin:lab_config_change", args=[config.pk]), follow=True).content.decode()
    assert ('name="model.num_layers"' in page) is may_edit
    assert (client.get(reverse(USERS)).status_code == 200) is may_manage
    assert (client.get(reverse("admin:lab_apitoken_changelist")).status_code == 200) is may_manage
    Node.objects.create(name="gpu-1")
    nodes = client.get(reverse("admin:lab_node_changelist")).content.decode()
    assert ('value="disable"' in nodes) is may_manage


def test_operators_cannot_delete_measurements() -> None:
    groups_refresh()
    may = set(Group.objects.get(name="operator").permissions.values_list("codename", flat=True))
    assert not may & {"delete_run", "delete_experiment", "delete_config", "delete_source", "delete_node", "change_node"}
    assert {"add_experiment", "change_finding", "add_report", "add_reportlink"} <= may
    assert not may & {"change_report", "delete_report", "view_apitoken"}


def asks(secret: str) -> int:
    """Return the status of an API request with a token."""
    return Client().get("/api/experiments/", headers={"Authorization": f"Token {secret}"}).status_code


def test_tokens_for_other_users_are_shown_once_and_revoked(admin: Client, user: User) -> None:
    data = {"action": "make_token", "_selected_action": user.pk}
    page = admin.post(reverse(USERS), data).content.decode()
    (secret,) = re.findall(r"parlab_[\w-]{43}", page)
    assert asks(secret) == 200
    token = user.api_tokens.get()
    assert secret not in str(vars(token))
    listed = admin.get(reverse("admin:lab_apitoken_changelist")).content.decode()
    assert f"…{secret[-4:]}" in listed
    assert secret not in listed
    assert token.last_used_at is not None
    admin.post(reverse(USERS), data | {"action": "revoke_token"}, follow=True)
    assert asks(secret) == 401


def test_revoking_a_token_leaves_the_others_active(admin: Client, admin_user: User, user: User) -> None:
    (token, secret), (_, other) = (token_create(user=user, name=name, by=admin_user) for name in ("first", "other"))
    admin.post(reverse("admin:lab_apitoken_changelist"), {"action": "revoke", "_selected_action": token.pk})
    assert (asks(secret), asks(other)) == (401, 200)
    token.refresh_from_db()
    assert token.revoked_by == admin_user


def test_creating_tokens_requires_permission(user: User) -> None:
    person = User.objects.create_user("clerk", password="changes users only", is_staff=True)
    person.user_permissions.set(Permission.objects.filter(codename__in=["view_user", "change_user"]))
    client = Client()
    client.force_login(person)
    client.post(reverse(USERS), {"action": "make_token", "_selected_action": user.pk})
    assert not ApiToken.objects.exists()


def test_administrators_cannot_create_or_manage_superusers(member: Callable[..., Client], admin_user: User) -> None:
    client = member("admin")
    client.post(reverse(USERS), {"action": "make_token", "_selected_action": admin_user.pk})
    assert not ApiToken.objects.exists()
    password = reverse("admin:auth_user_password_change", args=[admin_user.pk])
    assert client.post(password, {"password1": "taken over 1", "password2": "taken over 1"}).status_code == 403
    me = User.objects.get(username="admin")
    url = reverse("admin:auth_user_change", args=[me.pk])
    form = client.get(url).context["adminform"].form
    data = {name: value for name in form.fields if (value := form[name].value()) not in (None, False)}
    data |= {"is_superuser": "on", "date_joined_0": "2026-01-01", "date_joined_1": "10:00"}
    assert client.post(url, data).status_code == 302
    me.refresh_from_db()
    assert not me.is_superuser


def test_an_operator_without_staff_status_causes_a_warning(admin: Client, user: User) -> None:
    groups_refresh()
    url = reverse("admin:auth_user_change", args=[user.pk])
    form = admin.get(url).context["adminform"].form
    data = {name: value for name in form.fields if (value := form[name].value()) not in (None, False)}
    data |= {"groups": [Group.objects.get(name="operator").pk], "date_joined_0": "2026-01-01", "date_joined_1": "10:00"}
    data.pop("is_staff", None)
    page = admin.post(url, data, follow=True).content.decode()
    assert "editing configurations requires staff status" in page


def test_the_list_of_users_needs_a_constant_number_of_queries(
    admin: Client, django_assert_max_num_queries: Any
) -> None:
    for number in range(20):
        User.objects.create_user(f"person-{number}")
    admin.get(reverse(USERS))  # what the frame keeps for a while is read
    with django_assert_max_num_queries(14):
        assert admin.get(reverse(USERS)).status_code == 200
