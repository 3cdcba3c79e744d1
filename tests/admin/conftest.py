from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client


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
