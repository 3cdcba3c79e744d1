"""Accounts of people whom a proxy names."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError

from parlab.lab.models import ServiceAccount

_MAX_NAME = 150


def named_account(name: str, *, is_admitted: bool) -> User | None:
    """Return the account with a name, which is created for whom a group admits; None for a service account."""
    try:
        UnicodeUsernameValidator()(name)
    except ValidationError:
        return None
    user = User.objects.filter(username=name).first()
    if user is not None:
        return None if ServiceAccount.objects.filter(user=user).exists() else user
    return User.objects.create_user(name) if is_admitted and len(name) <= _MAX_NAME else None
