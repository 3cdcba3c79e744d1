"""Single sign-on against a real provider in a process of its own: what it gives, takes away, and never lets in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import AuditEntry, Membership, Role
from parlab.lab.services.access.projects import member_set, project_create

from .issuers import PROVIDERS, agree, agree_to_all, begin, is_in, person, sign_on

ADA = {"preferred_username": "ada", "email": "ada@lab.example", "groups": ["research"]}


def names(user: User) -> list[str]:
    return sorted(user.groups.values_list("name", flat=True))


def test_a_person_comes_in_with_an_account_of_their_own(issuer: str) -> None:
    person(issuer, "s-1", **ADA)
    client = Client()
    answer = sign_on(client, "s-1", "?next=/experiments/")
    assert (answer.status_code, answer["Location"]) == (302, "/experiments/")
    assert is_in(client)
    user = User.objects.get()
    assert (user.username, user.email, names(user), user.is_staff) == ("ada", "ada@lab.example", ["operator"], True)
    assert not user.has_usable_password()
    entry = AuditEntry.objects.get()
    assert (entry.username, entry.action, entry.route) == ("ada", "login", "signon-callback")
    again = Client()
    sign_on(again, "s-1")
    assert is_in(again)
    assert User.objects.count() == 1


def test_the_request_has_pkce_state_and_nonce(issuer: str) -> None:
    query = parse_qs(urlsplit(begin(Client())).query)
    assert query["code_challenge_method"] == ["S256"]
    assert {"code_challenge", "state", "nonce"} <= set(query)
    assert sorted(query["scope"][0].split()) == ["email", "openid", "profile"]
    other = parse_qs(urlsplit(begin(Client(), "?scope=offline_access&auth_params=prompt%3Dnone%26nonce%3Dn")).query)
    assert "offline_access" not in other["scope"][0]  # the address of a link adds nothing
    assert "prompt" not in other
    assert other["nonce"] != ["n"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_provider_lets_a_person_in_and_its_answer_works_once(
    provider: str, request: pytest.FixtureRequest, trusted: Callable[..., str]
) -> None:
    is_certified = provider == "certified"
    issuer = trusted(request.getfixturevalue("certified_address" if is_certified else "real_address"))
    if not is_certified:
        person(issuer, "ada", **ADA)
    client = Client()
    place = (agree_to_all if is_certified else agree)(begin(client), "ada")
    assert client.get(place).status_code == 302
    assert is_in(client)
    user = User.objects.get()
    assert (user.username, user.email, names(user)) == ("ada", "ada@lab.example", ["operator"])
    client.post("/logout/")
    assert client.get(place).status_code == 403
    assert not is_in(client)


def test_groups_give_and_take_roles_and_projects_at_each_login(
    real_address: str, trusted: Callable[..., str], admin_user: User
) -> None:
    project = project_create(name="Vision", user=admin_user)
    by_hand = project_create(name="Audio", user=admin_user)
    issuer = trusted(
        real_address, leads=["admin", "vision:maintainer"], research=["operator", "vision:viewer"],
        ghosts="gone:viewer", audio="audio:viewer", staff="viewer",
    )  # fmt: skip
    person(issuer, "s-2", preferred_username="bob", groups=["leads", "research", "ghosts", "unknown"])
    sign_on(Client(), "s-2")
    bob = User.objects.get(username="bob")
    assert names(bob) == ["admin", "operator"]
    assert Membership.objects.get(user=bob).role == Role.MAINTAINER
    member_set(project=by_hand, user=bob, role=Role.OPERATOR)

    person(issuer, "s-2", preferred_username="bob", groups=["research", "audio"])
    sign_on(Client(), "s-2")
    roles = {row.project.slug: row.role for row in Membership.objects.filter(user=bob).select_related("project")}
    assert names(bob) == ["operator"]
    assert roles == {"vision": Role.VIEWER, "audio": Role.OPERATOR}  # what was given by hand stays

    person(issuer, "s-2", preferred_username="bob", groups=["staff"])
    sign_on(Client(), "s-2")
    bob.refresh_from_db()
    assert (names(bob), bob.is_staff) == (["viewer"], False)
    assert not Membership.objects.filter(user=bob, project=project).exists()


def test_who_is_in_no_group_any_more_loses_roles_and_comes_in_no_longer(issuer: str) -> None:
    person(issuer, "s-3", **ADA)
    sign_on(Client(), "s-3")
    person(issuer, "s-3", **{**ADA, "groups": ["football"]})
    client = Client()
    answer = sign_on(client, "s-3")
    assert (answer.status_code, "None of your groups" in answer.content.decode()) == (403, True)
    assert not is_in(client)
    assert names(User.objects.get()) == []


@pytest.mark.parametrize("groups", [[], None, "football", {"research": True}, [1, None]])
def test_who_is_in_no_group_gets_no_account(issuer: str, groups: Any) -> None:
    person(issuer, "s-4", preferred_username="eve", groups=groups)
    client = Client()
    assert sign_on(client, "s-4").status_code == 403
    assert not is_in(client)
    assert not User.objects.exists()


def test_the_claim_with_groups_may_lie_in_an_object(issuer: str, settings: Any) -> None:
    settings.OIDC_GROUPS_CLAIM = "realm_access.roles"
    person(issuer, "s-5", preferred_username="kim", realm_access={"roles": ["research"]})
    sign_on(Client(), "s-5")
    assert names(User.objects.get()) == ["operator"]


def test_everybody_may_be_given_a_role(real_address: str, trusted: Callable[..., str]) -> None:
    issuer = trusted(real_address, **{"*": "viewer"})
    person(issuer, "s-6", preferred_username="guest")
    sign_on(Client(), "s-6")
    assert names(User.objects.get()) == ["viewer"]


def test_a_code_and_a_state_work_once(issuer: str) -> None:
    person(issuer, "s-7", **ADA)
    client = Client()
    place = agree(begin(client), "s-7")
    client.get(place)
    client.post("/logout/")
    assert client.get(place).status_code == 403  # state and code
    assert not is_in(client)
    code, fresh = place.partition("state=")[0], begin(client).partition("state=")[2].partition("&")[0]
    assert client.get(f"{code}state={fresh}").status_code == 403  # the code alone
    assert not is_in(client)


@pytest.mark.parametrize("state", ["", "x" * 32])
def test_a_state_that_was_not_given_out_lets_nobody_in(issuer: str, state: str) -> None:
    person(issuer, "s-8", **ADA)
    client = Client()
    place = agree(begin(client), "s-8")
    assert client.get(f"{place.partition('state=')[0]}state={state}").status_code == 403
    assert not is_in(client)


def test_the_answer_to_one_browser_lets_no_other_in(issuer: str) -> None:
    person(issuer, "s-9", **ADA)
    attacker, victim = Client(), Client()
    place = agree(begin(attacker), "s-9")
    begin(victim)
    assert victim.get(place).status_code == 403
    assert not is_in(victim)


def test_a_login_that_was_denied_ends_with_a_page(issuer: str) -> None:
    client = Client()
    state = begin(client).partition("state=")[2].partition("&")[0]
    answer = client.get(f"/login/sso/callback/?error=access_denied&state={state}")
    assert (answer.status_code, "Not logged in" in answer.content.decode()) == (403, True)


def test_nobody_is_led_to_another_site(issuer: str) -> None:
    person(issuer, "s-10", **ADA)
    answer = sign_on(Client(), "s-10", "?next=https://evil.example/")
    assert answer["Location"] == "/"


def test_a_mail_address_or_a_name_opens_no_account_of_somebody_else(issuer: str) -> None:
    local = User.objects.create_user("ada", "ada@lab.example", "a password of a person", is_superuser=True)
    person(issuer, "s-11", **ADA, email_verified=True)
    client = Client()
    sign_on(client, "s-11")
    made = User.objects.exclude(pk=local.pk).get()
    assert made.username != "ada"
    assert not made.is_superuser
    assert client.get("/account/").wsgi_request.user == made


def test_a_person_connects_the_account_that_they_have(issuer: str) -> None:
    local = User.objects.create_user("ada", password="a password of a person", is_superuser=True)
    person(issuer, "s-12", **ADA)
    client = Client()
    client.post("/login/", {"username": "ada", "password": "a password of a person"})
    assert "Connect" in client.get("/account/").content.decode()
    answer = sign_on(client, "s-12", "?process=connect&next=/account/")
    assert answer["Location"].startswith("/account/reauthenticate/")
    client.post(answer["Location"], {"password": "a password of a person"})
    other = Client()
    sign_on(other, "s-12")
    assert other.get("/account/").wsgi_request.user == local
    assert User.objects.count() == 1


def test_a_disabled_account_stays_out(issuer: str) -> None:
    person(issuer, "s-13", **ADA)
    sign_on(Client(), "s-13")
    User.objects.update(is_active=False)
    client = Client()
    assert sign_on(client, "s-13").status_code == 403
    assert not is_in(client)


def test_logging_out_ends_the_session_at_the_issuer_too(issuer: str) -> None:
    person(issuer, "s-14", **ADA)
    client = Client()
    sign_on(client, "s-14")
    answer = client.post("/logout/").content.decode().replace("&amp;", "&")
    assert not is_in(client)
    place = urlsplit(answer.partition("0; url=")[2].partition('"')[0])
    query = parse_qs(place.query)
    assert f"{place.scheme}://{place.netloc}{place.path}" == f"{issuer}/oauth2/end_session"
    assert query["post_logout_redirect_uri"] == ["http://testserver/login/"]
    assert query["id_token_hint"][0].count(".") == 2


def test_a_password_lets_in_only_superusers_beside_single_sign_on(issuer: str, settings: Any) -> None:
    for name, is_superuser in (("root", True), ("ada", False)):
        User.objects.create_user(name, password="a password of a person", is_superuser=is_superuser)

    def may_come(name: str) -> bool:
        client = Client()
        client.post("/login/", {"username": name, "password": "a password of a person"})
        return is_in(client)

    page = Client().get("/login/").content.decode()
    assert "the lab&#x27;s login" in page or "single sign-on" in page
    assert 'name="password"' not in page
    assert 'name="password"' in Client().get("/login/?password").content.decode()
    assert [may_come("root"), may_come("ada")] == [True, False]
    settings.PASSWORD_LOGINS = ["ada"]
    assert [may_come("root"), may_come("ada")] == [False, True]
    settings.PASSWORD_LOGINS = ["*"]
    assert [may_come("root"), may_come("ada")] == [True, True]


def test_a_login_confirms_that_of_a_terminal(issuer: str) -> None:
    person(issuer, "s-15", **ADA)
    begun = Client().post("/api/login/device/", {"host": "gpu1"}, "application/json").json()
    client = Client()
    answer = sign_on(client, "s-15", f"?next=/device/%3Fcode%3D{begun['user_code']}")
    assert answer["Location"] == f"/device/?code={begun['user_code']}"
    client.post("/device/", {"code": begun["user_code"], "answer": "confirm"})
    body = {"device_code": begun["device_code"]}
    assert Client().post("/api/login/device/token/", body, "application/json").json()["username"] == "ada"


@pytest.mark.django_db
def test_without_an_issuer_there_is_nothing_to_log_in_with() -> None:
    assert Client().get("/login/sso/").status_code == 404
    assert Client().get("/login/sso/callback/?code=a&state=b").status_code == 404
