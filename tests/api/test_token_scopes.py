"""What a token may do: the scope of the token and the permissions of its user must both allow a request."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from parlab.lab.models import SCOPES, ApiToken, Attempt
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.tokens import token_create, tokens_revoke
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.watch.models import Watch

pytestmark = pytest.mark.django_db

# Method, address, scope that it needs, by any road of the server.
REQUESTS = [
    ("GET", "/api/experiments/", "read"),
    ("POST", "/api/plan/", "read"),
    ("POST", "/api/simulate/", "read"),
    ("GET", "/api/schema/", "read"),
    ("GET", "/watch/feed.json", "read"),
    ("POST", "/api/experiments/", "write"),
    ("POST", "/api/imports/", "report"),
    ("POST", "/api/experiments/none/configurations/", "write"),
    ("PUT", "/api/runs/a-run/streams/a-stream/", "report"),
    ("PUT", "/api/artifacts/a-run/a.txt", "report"),
    ("POST", "/api/2.0/mlflow/experiments/create", "report"),
    ("POST", "/api/2.0/mlflow/experiments/delete", "write"),
    ("POST", "/api/2.0/mlflow/runs/delete", "write"),
    ("POST", "/api/projects/", "admin"),
    ("PATCH", "/api/projects/shared/", "admin"),
    ("PUT", "/api/projects/shared/members/none/", "admin"),
    ("GET", "/api/projects/shared/service-accounts/", "read"),
    ("POST", "/api/projects/shared/service-accounts/", "admin"),
    ("POST", "/api/projects/shared/service-accounts/none/tokens/", "admin"),
    ("POST", "/api/account/tokens/", "admin"),
    ("DELETE", "/api/account/tokens/1/", "admin"),
    ("POST", "/api/2.0/mlflow/runs/search", "read"),
    ("GET", "/api/2.0/mlflow/experiments/get-by-name", "read"),
    ("POST", "/api/experiments/none/launch/", "launch"),
    ("POST", "/api/experiments/none/runs/1/cancel/", "launch"),
    ("POST", "/api/experiments/none/runs/1/relaunch/", "launch"),
    ("POST", "/api/studies/", "launch"),
    ("POST", "/api/studies/1/", "launch"),
]


def send(method: str, address: str, secret: str, scheme: str) -> Any:
    kind = {"basic": "Basic", "token": "Token", "bearer": "Bearer"}[scheme]
    credentials = base64.b64encode(f"any:{secret}".encode()).decode() if scheme == "basic" else secret
    headers = {"Authorization": f"{kind} {credentials}"}
    return Client().generic(method, address, b"{}", "application/json", headers=headers)


@pytest.mark.parametrize(("method", "address", "needed"), REQUESTS)
def test_a_request_needs_its_scope(admin_user: User, method: str, address: str, needed: str) -> None:
    schemes = ("bearer", "basic") if "mlflow" in address else ("token",)
    for scope in SCOPES:
        token, secret = token_create(user=admin_user, name=scope, by=admin_user, scopes=[scope], days=1)
        is_enough = scope == needed or (scope, needed) == ("write", "report")
        assert token.allows(needed) == is_enough
        for scheme in schemes:
            response = send(method, address, secret, scheme)
            assert (response.status_code == 403) != is_enough, (scope, response.content)
            if not is_enough:
                assert scope in response.content.decode()
                assert "account page" in response.content.decode()


def test_a_scope_adds_nothing_to_the_permissions_of_its_user(
    make_attempt: Callable[..., Attempt], django_user_model: Any
) -> None:
    run = make_attempt(state="queued").run
    guest = django_user_model.objects.create_user("guest")
    _, secret = token_create(user=guest, name="all", by=guest)
    address = f"/api/experiments/{run.experiment.slug}/runs/{run.number}/cancel/"
    response = send("POST", address, secret, "token")
    assert response.status_code == 403
    assert "lab.change_run" in json.dumps(response.json())


def test_a_refusal_names_one_remedy(make_attempt: Callable[..., Attempt], admin_user: User) -> None:
    run = make_attempt(state="queued").run
    address = f"/api/experiments/{run.experiment.slug}/runs/{run.number}/cancel/"
    secret = token_create(user=admin_user, name="reader", by=admin_user, scopes=["read"], days=1)[1]
    scope = send("POST", address, secret, "token").json()["errors"][0]
    assert (scope["message"].count(";"), scope["remedy"]) == (0, "create another token on your account page")
    groups_refresh()
    other = User.objects.create_user("other")
    other.groups.add(Group.objects.get(name="operator"))
    refused = send("POST", address, token_create(user=other, name="all", by=other)[1], "token")
    owner = refused.json()["errors"][0]
    assert (refused.status_code, "belongs to another person" in owner["message"]) == (403, True)
    assert owner["remedy"] == "ask its owner or a maintainer of the project."


def test_passwords_of_mlflow_clients_are_throttled_like_logins(django_user_model: Any) -> None:
    django_user_model.objects.create_user("eve", password="the right one", is_superuser=True)

    def status(password: str) -> tuple[int, str]:
        credentials = base64.b64encode(f"eve:{password}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}"}
        response = Client().get("/api/2.0/mlflow/experiments/get-by-name?experiment_name=x", headers=headers)
        return response.status_code, response.content.decode()

    assert status("the right one")[0] == 404
    assert [status(f"guess {number}")[0] for number in range(6)] == [401] * 6
    code, text = status("the right one")
    assert code == 401
    assert "try again in" in text


def test_a_watch_that_starts_runs_by_itself_needs_the_scope_launch(admin_user: User) -> None:
    headers = {}
    for name, scopes in {"reporter": ["write"], "operator": ["write", "launch"]}.items():
        _, secret = token_create(user=admin_user, name=name, by=admin_user, scopes=scopes)
        headers[name] = {"Authorization": f"Token {secret}"}

    def post(address: str, token: str, /, **content: Any) -> tuple[int, Any]:
        response = Client().post(address, json.dumps(content), "application/json", headers=headers[token])
        return response.status_code, response.json()

    for occasion in ({"schedule": "daily"}, {"repository": "/srv/code"}, {"on_node_change": True}):
        status, content = post("/api/watches/", "reporter", name="nightly", key="speed", **occasion)
        assert status == 403
        assert "launch" in json.dumps(content)
    assert not Watch.objects.exists()
    assert post("/api/watches/", "reporter", name="collected", key="speed")[0] == 201

    user = admin_user
    experiment = experiment_create(name="Nightly", owner=user)
    config_save(experiment=experiment, data={"parallel": {"engine": "pipeline"}}, sweep={}, user=user)
    watched = {"experiment": experiment.slug, "schedule": "daily", "name": "nightly"}
    status, watch = post("/api/watches/", "operator", **watched)
    assert status == 201, watch
    address = f"/api/watches/{watch['id']}/"
    assert post(address, "reporter", action="pause")[0] == 200
    assert post(address, "reporter", action="resume")[0] == 403
    assert post(address, "operator", action="resume")[0] == 200


def test_a_revoked_token_takes_the_tokens_with_it_that_it_has_created(admin_user: User) -> None:
    first, secret = token_create(user=admin_user, name="stolen", by=admin_user)
    _, other = token_create(user=admin_user, name="other", by=admin_user)
    secrets = [secret]
    for name in ("child", "grandchild"):
        content = json.dumps({"name": name})
        headers = {"Authorization": f"Token {secrets[-1]}"}
        response = Client().post("/api/account/tokens/", content, "application/json", headers=headers)
        assert response.status_code == 201, response.content
        secrets.append(response.json()["secret"])

    assert tokens_revoke(tokens=ApiToken.objects.filter(pk=first.pk), by=admin_user) == 3

    assert [send("GET", "/api/experiments/", each, "token").status_code for each in [*secrets, other]] == [401] * 3 + [
        200
    ]
