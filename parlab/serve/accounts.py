"""The account that a new server begins with."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User


def first_user(username: str, password_file: Path) -> tuple[User, str]:
    """Return the first account and its password; the first call creates both and stores the password in a file."""
    users = get_user_model().objects
    if password_file.exists() and (user := users.filter(username=username).first()):
        return user, password_file.read_text().strip()
    password = secrets.token_urlsafe(9)
    user, _ = users.get_or_create(username=username, defaults={"is_staff": True, "is_superuser": True})
    user.set_password(password)
    user.save()
    with os.fdopen(os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(password)
    return user, password
