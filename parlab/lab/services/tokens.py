"""Tokens of the API: shown once when they are made, kept as digests, ended for good when they are revoked."""

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
"""Tokens of one person that are in force at a time."""
_NAME = 80
_NOTED_EVERY = timedelta(minutes=1)
"""How exact the time of the last use is: not every request shall write."""


def token_create(*, user: User, name: str, by: User) -> tuple[ApiToken, str]:
    """Make a token and its secret, which nobody can read again; raises ValueError with what to do."""
    name = storable.text(" ".join(name.split()))[:_NAME]
    if not name:
        raise ValueError("a token needs a name; say what will use it")
    in_force = ApiToken.objects.filter(user=user, revoked_at=None)
    if in_force.count() >= MAX_TOKENS:
        raise ValueError(f"{user} has {MAX_TOKENS} tokens; revoke one that nothing uses any more")
    secret = f"parlab_{secrets.token_urlsafe(32)}"
    try:
        with transaction.atomic():
            token = ApiToken.objects.create(
                user=user, name=name, digest=_digest(secret), ending=secret[-4:], created_by=by
            )
    except IntegrityError as error:
        raise ValueError(
            f"{user} has a token named {name!r} already; choose another name, or revoke that one"
        ) from error
    return token, secret


def token_find(secret: str) -> ApiToken | None:
    """Find the token in force that a secret belongs to, and note that it was used."""
    token = ApiToken.objects.select_related("user").filter(digest=_digest(secret), revoked_at=None).first()
    if token is not None:
        now = timezone.now()
        stale = Q(last_used_at=None) | Q(last_used_at__lt=now - _NOTED_EVERY)
        if token.last_used_at is None or token.last_used_at < now - _NOTED_EVERY:
            ApiToken.objects.filter(stale, pk=token.pk).update(last_used_at=now)
    return token


def tokens_revoke(*, tokens: QuerySet[ApiToken], by: User) -> int:
    """End tokens for good and say how many; who revoked one first stays on record."""
    return tokens.filter(revoked_at=None).update(revoked_at=timezone.now(), revoked_by=by)


def _digest(secret: str) -> str:
    # The secret is 256 random bits: nobody guesses it from its digest, salted or not.
    return sha256(secret.encode()).hexdigest()
