"""Clients that authenticate with a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission, User
from django.test import Client

from parlab.lab.models import Attempt, Run
from parlab.lab.services.access.tokens import token_create


def error(answer: Any, status: int = 400) -> dict[str, Any]:
    """Return the first error of a refused request."""
    assert answer.status_code == status, answer.content
    refusal: dict[str, Any] = answer.json()["errors"][0]
    assert refusal["remedy"]
    return refusal


def with_token(user: User) -> Client:
    _, secret = token_create(user=user, name="a script", by=user)
    return Client(headers={"Authorization": f"Token {secret}"})


@pytest.fixture
def run(make_attempt: Callable[..., Attempt]) -> Run:
    return make_attempt(state="finished").run


@pytest.fixture
def api(user: User) -> Client:
    """A client with all permissions."""
    user.is_superuser = True
    user.save()
    return with_token(user)


@pytest.fixture
def reader(db: None) -> Client:
    """A client with read access only."""
    return with_token(get_user_model().objects.create_user("reader", password="only looking here"))


@pytest.fixture
def allowed(db: None) -> Callable[..., Client]:
    """Return a client with the given permissions: allowed("add_run")."""

    def make(*codenames: str) -> Client:
        person = get_user_model().objects.create_user("-".join(codenames), password="some rights only")
        person.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        return with_token(person)

    return make
