"""Requests with a token: the one check of API, MLflow's and W&B's addresses, streams and files.

Each of them only puts a refusal into the form of its clients.
"""

from __future__ import annotations

from typing import Any

from parlab.lab.models import ApiToken

from .request_limits import bad_token_count, request_count
from .tokens import token_find

UNAUTHENTICATED, FORBIDDEN = 401, 403
INVALID = "unknown, expired or revoked token"
DISABLED = "the account of this token is disabled"
ANOTHER = "create another token on your account page"


class TokenRefused(Exception):
    """A request that its token does not admit; the remedy is empty where the address knows a better one."""

    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.status = status
        self.message = message
        self.remedy = remedy


def token_admit(*, secret: str, scope: str, address: str) -> ApiToken:
    """Return the token of a request that needs a scope. Raises TokenRefused, TooManyRequests."""
    token = token_authenticate(secret=secret, address=address)
    token_require(token, scope)
    return token


def token_authenticate(*, secret: str, address: str) -> ApiToken:
    """Return the token with a secret, whose use is recorded and counted. Raises TokenRefused, TooManyRequests."""
    token = token_find(secret)
    if token is None or not token.user.is_active:
        bad_token_count(address)
        raise TokenRefused(UNAUTHENTICATED, INVALID if token is None else DISABLED)
    request_count(token.user_id)
    return token


def token_require(token: ApiToken, scope: str) -> None:
    """Raise TokenRefused if a token has no scope."""
    if not token.allows(scope):
        has = " and ".join(token.scope_names)
        raise TokenRefused(FORBIDDEN, f"token {token.name} has scope {has}, this request needs {scope}", ANOTHER)


def reporter_require(user: Any) -> None:
    """Raise TokenRefused unless a user may add runs to the project of the request."""
    if not user.has_perm("lab.add_run"):
        message = f"user {user} may not add runs (permission lab.add_run)"
        raise TokenRefused(FORBIDDEN, message, "ask an administrator for the permission")
