"""Who sends a request: `Authorization: Token <secret>`, of which only the digest is stored."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from rest_framework import authentication, exceptions

from parlab.lab import services as lab
from parlab.lab.models import ApiToken


class TokenAuthentication(authentication.TokenAuthentication):
    def authenticate_credentials(self, key: str) -> tuple[User, ApiToken]:
        found = lab.token_find(key)
        if found is None:
            raise exceptions.AuthenticationFailed("this token is unknown, or it was revoked")
        person: Any = found.user
        if not person.is_active:
            raise exceptions.AuthenticationFailed("the account of this token is closed")
        return person, found
