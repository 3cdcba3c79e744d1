from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from parlab.lab.forms.forms import ConfigForm
from parlab.lab.models import Config


@pytest.fixture
def admin_user(db: None) -> User:
    return User.objects.create_superuser("root", password="correct horse battery")


@pytest.fixture
def admin(admin_user: User) -> Client:
    client = Client()
    client.force_login(admin_user)
    return client


@pytest.fixture
def staff(user: User) -> Callable[..., Client]:
    """Log in as a staff user with only these permissions: staff("view_run", "change_run")."""

    def login(*codenames: str) -> Client:
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        assert user.user_permissions.count() == len(codenames)
        client = Client()
        client.force_login(user)
        return client

    return login


@pytest.fixture
def typed() -> Callable[..., dict[str, Any]]:
    """Form data of a config with some fields changed: typed(config, note="x")."""

    def fill(config: Config | None = None, **changes: Any) -> dict[str, Any]:
        form = ConfigForm(instance=config)
        values = {name: form[name].value() for name in form.fields}
        form_values = {name: form.fields[name].prepare_value(value) for name, value in values.items()}
        return {name: "" if value is None else value for name, value in (form_values | changes).items()}

    return fill
