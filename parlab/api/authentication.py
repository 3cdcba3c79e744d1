"""Token authentication: `Authorization: Token <secret>`; only the digest of the secret is stored."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from rest_framework import authentication, exceptions

from parlab.lab import services as lab
from parlab.lab.models import ApiToken


class TokenAuthentication(authentication.TokenAuthentication):
    def authenticate_credentials(self, key: str) -> tuple[User, ApiToken]:
        token = lab.token_find(key)
        if token is None:
            raise exceptions.AuthenticationFailed("unknown or revoked token")
        user: Any = token.user
        if not user.is_active:
            raise exceptions.AuthenticationFailed("the account of this token is disabled")
        return user, token
