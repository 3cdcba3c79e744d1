"""What management commands of several parts read from their command line."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.management.base import CommandError


def user_named(name: str | None) -> User:
    """Find the user of a command: by name, or the first superuser; raises CommandError where there is none."""
    users = get_user_model().objects
    found = users.filter(username=name).first() if name else users.filter(is_superuser=True).order_by("pk").first()
    if found is None:
        remedy = "check --user" if name else "make one with manage.py createsuperuser, or name a user with --user"
        raise CommandError(f"there is no {f'user {name}' if name else 'superuser'}; {remedy}")
    return found
