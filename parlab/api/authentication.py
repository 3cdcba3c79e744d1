"""Token authentication: `Authorization: Token <secret>`; only the digest of the secret is stored."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from rest_framework import authentication, exceptions, permissions
from rest_framework.request import Request

from parlab.lab.models import ApiToken
from parlab.lab.models.access.viewer import viewer_become
from parlab.lab.services.access.request_limits import TooManyRequests
from parlab.lab.services.access.token_requests import (
    TokenRefused,
    token_authenticate,
    token_require,
)


def require_scope(token: Any, scope: str) -> None:
    """Raise PermissionDenied if a request was authenticated by a token without a scope; a session has all."""
    if isinstance(token, ApiToken):
        try:
            token_require(token, scope)
        except TokenRefused as refused:
            raise exceptions.PermissionDenied(str(refused)) from refused


class TokenAuthentication(authentication.TokenAuthentication):
    """Authenticate by a token, which must have the scope that the view needs for the method.

    A view names the scope of methods that change something as `token_scope`; the default is `write`.
    """

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return user and token; None without a token. Raises AuthenticationFailed, PermissionDenied, Throttled."""
        self._address = str(request.META.get("REMOTE_ADDR", ""))
        authenticated = super().authenticate(request)
        if authenticated is None:
            return None
        user, token = authenticated
        view = (request.parser_context or {}).get("view")
        is_safe = request.method in permissions.SAFE_METHODS
        require_scope(token, "read" if is_safe else getattr(view, "token_scope", "write"))
        return user, token

    def authenticate_credentials(self, key: str) -> tuple[User, ApiToken]:
        try:
            token = token_authenticate(secret=key, address=self._address)
        except TooManyRequests as error:
            raise exceptions.Throttled(error.wait_s, str(error)) from error
        except TokenRefused as refused:
            raise exceptions.AuthenticationFailed(refused.message) from refused
        user: Any = token.user
        viewer_become(user, token.project_id)
        return user, token
