"""API tokens: shown once when created, stored as digests, revoked permanently."""

from __future__ import annotations

import secrets
from datetime import timedelta
from hashlib import sha256

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from parlab.lab.models import ApiToken

from . import storable

MAX_TOKENS = 20
"""Active tokens per user."""
_NAME = 80
_NOTED_EVERY = timedelta(minutes=1)
"""Resolution of the time of the last use, to avoid a write with every request."""


def token_create(*, user: User, name: str, by: User) -> tuple[ApiToken, str]:
    """Create a token and its secret, which cannot be shown again; raises ValueError with a remedy."""
    name = storable.text(" ".join(name.split()))[:_NAME]
    if not name:
        raise ValueError("name is empty; enter what the token is for")
    in_force = ApiToken.objects.filter(user=user, revoked_at=None)
    if in_force.count() >= MAX_TOKENS:
        raise ValueError(f"{user} already has {MAX_TOKENS} tokens; revoke one that is no longer used")
    secret = f"parlab_{secrets.token_urlsafe(32)}"
    try:
        with transaction.atomic():
            token = ApiToken.objects.create(
                user=user, name=name, digest=_digest(secret), ending=secret[-4:], created_by=by
            )
    except IntegrityError as error:
        raise ValueError(
            f"{user} already has a token named {name!r}; choose another name, or revoke that token"
        ) from error
    return token, secret


def token_find(secret: str) -> ApiToken | None:
    """Return the active token with this secret and record its use; None if there is none."""
    token = ApiToken.objects.select_related("user").filter(digest=_digest(secret), revoked_at=None).first()
    if token is not None:
        now = timezone.now()
        stale = Q(last_used_at=None) | Q(last_used_at__lt=now - _NOTED_EVERY)
        if token.last_used_at is None or token.last_used_at < now - _NOTED_EVERY:
            ApiToken.objects.filter(stale, pk=token.pk).update(last_used_at=now)
    return token


def tokens_revoke(*, tokens: QuerySet[ApiToken], by: User) -> int:
    """Revoke tokens permanently; returns how many. The first revocation stays on record."""
    return tokens.filter(revoked_at=None).update(revoked_at=timezone.now(), revoked_by=by)


def _digest(secret: str) -> str:
    # The secret has 256 random bits, so the digest needs no salt.
    return sha256(secret.encode()).hexdigest()
