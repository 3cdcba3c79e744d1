"""Command-line arguments shared by management commands."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.management.base import CommandError


def user_named(name: str | None) -> User:
    """Return a user by name, or the first superuser; raises CommandError if there is none."""
    users = get_user_model().objects
    user = users.filter(username=name).first() if name else users.filter(is_superuser=True).order_by("pk").first()
    if user is None:
        remedy = "check --user" if name else "create one with manage.py createsuperuser, or select a user with --user"
        raise CommandError(f"{f'user {name}' if name else 'a superuser'} does not exist; {remedy}")
    return user
