"""Token authentication: `Authorization: Token <secret>`; only the digest of the secret is stored."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from rest_framework import authentication, exceptions, permissions
from rest_framework.request import Request

from parlab.lab.models import ApiToken
from parlab.lab.models.access.viewer import viewer_become
from parlab.lab.services.access.request_limits import TooManyRequests, bad_token_count
from parlab.lab.services.access.tokens import token_find


def require_scope(token: Any, scope: str) -> None:
    """Raise PermissionDenied if a request was authenticated by a token without a scope; a session has all."""
    if isinstance(token, ApiToken) and not token.allows(scope):
        raise exceptions.PermissionDenied(
            f"token {token.name} has scope {' and '.join(token.scope_names)}, this needs {scope};"
            " create another token on your account page"
        )


class TokenAuthentication(authentication.TokenAuthentication):
    """Authenticate by a token, which must have the scope that the view needs for the method.

    A view names the scope of methods that change something as `token_scope`; the default is `write`.
    """

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return user and token; None without a token. Raises AuthenticationFailed, PermissionDenied."""
        try:
            authenticated = super().authenticate(request)
        except exceptions.AuthenticationFailed:
            self._count(request)
            raise
        if authenticated is None:
            return None
        user, token = authenticated
        view = (request.parser_context or {}).get("view")
        is_safe = request.method in permissions.SAFE_METHODS
        scope = "read" if is_safe else getattr(view, "token_scope", "write")
        require_scope(token, scope)
        return user, token

    def _count(self, request: Request) -> None:
        try:
            bad_token_count(str(request.META.get("REMOTE_ADDR", "")))
        except TooManyRequests as error:
            raise exceptions.Throttled(error.wait_s, str(error)) from error

    def authenticate_credentials(self, key: str) -> tuple[User, ApiToken]:
        token = token_find(key)
        if token is None:
            raise exceptions.AuthenticationFailed("unknown, expired or revoked token")
        user: Any = token.user
        if not user.is_active:
            raise exceptions.AuthenticationFailed("the account of this token is disabled")
        viewer_become(user, token.project_id)
        return user, token
