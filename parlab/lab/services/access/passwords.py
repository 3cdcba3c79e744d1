"""Who may log in with a password: everybody, or with single sign-on only those whom a setting names."""

from __future__ import annotations

from typing import Any

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth.backends import ModelBackend

EVERYBODY = "*"


def is_signon_set() -> bool:
    """Return whether people come by single sign-on, so that passwords are for emergencies."""
    return bool(settings.OIDC_ISSUER or settings.PROXY_USER_HEADER)


def has_second_factor(user: Any) -> bool:
    """Return whether a password alone does not let an account in."""
    return bool(Authenticator.objects.filter(user=user).exists())


def may_use_password(user: Any) -> bool:
    """Return whether an account may log in with its password."""
    named = settings.PASSWORD_LOGINS
    if not is_signon_set() or EVERYBODY in named:
        return True
    return user.get_username() in named if named else bool(user.is_superuser)


class PasswordLogins(ModelBackend):
    """Django's own backend, for the accounts that may use passwords."""

    def authenticate(self, request: Any, username: Any = None, password: Any = None, **more: Any) -> Any:
        """Return the user with this name and password; None also if they may not use it."""
        user = super().authenticate(request, username=username, password=password, **more)
        return user if user is not None and may_use_password(user) else None
