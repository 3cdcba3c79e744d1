"""API tokens: shown once when created, stored as digests, revoked permanently."""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection
from datetime import timedelta
from hashlib import sha256

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from parlab.lab.models import SCOPES, ApiToken, Project
from parlab.lab.models.access.viewer import home_project_id
from parlab.lab.services import storable

MAX_TOKENS = 20
"""Active tokens per user."""
MAX_DAYS = 3_650
_NAME = 80
_CHARACTERS = string.ascii_letters + string.digits
_PREFIX = "parlab_"
_LENGTH = 43
"""Characters of a secret: 256 random bits."""
_READ = (
    *("name", "project", "scopes", "expires_at", "revoked_at", "last_used_at"),
    *("user__username", "user__is_active", "user__is_staff", "user__is_superuser"),
)
"""What requests with a token read, some of which come many times a second."""
_NOTED_EVERY = timedelta(minutes=1)
"""Resolution of the time of the last use, to avoid a write with every request."""


def token_create(
    *,
    user: User,
    name: str,
    by: User,
    scopes: Collection[str] = SCOPES,
    days: int | None = None,
    project: Project | None = None,
    created_with: ApiToken | None = None,
) -> tuple[ApiToken, str]:
    """Create a token and its secret, which cannot be shown again; raises ValueError with a remedy.

    It reaches one project, expires after so many days, or never, and is revoked with the token that it was created
    with.
    """
    name = storable.text(" ".join(name.split()))[:_NAME]
    if not name:
        raise ValueError("name is empty; enter what the token is for")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise ValueError(f"scopes {', '.join(unknown) or 'are empty'}; choose some of {', '.join(SCOPES)}")
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise ValueError(f"days {days} is out of range; use 1 to {MAX_DAYS}, or none")
    now = timezone.now()
    ApiToken.objects.filter(user=user, revoked_at=None, expires_at__lte=now).update(revoked_at=now)
    in_force = ApiToken.objects.filter(user=user, revoked_at=None)
    if in_force.count() >= MAX_TOKENS:
        raise ValueError(f"{user} already has {MAX_TOKENS} tokens; revoke one that is no longer used")
    # No dashes: W&B's clients take what is before one for the name of a host.
    secret = _PREFIX + "".join(secrets.choice(_CHARACTERS) for _ in range(_LENGTH))
    try:
        with transaction.atomic():
            token = ApiToken.objects.create(
                user=user,
                name=name,
                digest=secret_digest(secret),
                ending=secret[-4:],
                created_by=by,
                created_with=created_with,
                project_id=home_project_id() if project is None else project.pk,
                scopes=" ".join(scope for scope in SCOPES if scope in scopes),
                expires_at=None if days is None else now + timedelta(days=days),
            )
    except IntegrityError as error:
        raise ValueError(
            f"{user} already has a token named {name!r}; choose another name, or revoke that token"
        ) from error
    return token, secret


def is_secret(text: str) -> bool:
    """Return whether a text has the form of a secret, and is no password."""
    return text.startswith(_PREFIX) and len(text) == len(_PREFIX) + _LENGTH


def token_find(secret: str) -> ApiToken | None:
    """Return the active token with this secret and record its use; None if there is none."""
    tokens = ApiToken.objects.select_related("user").only(*_READ)
    token = tokens.filter(digest=secret_digest(secret), revoked_at=None).first()
    if token is not None and token.is_expired:
        return None
    if token is not None:
        now = timezone.now()
        stale = Q(last_used_at=None) | Q(last_used_at__lt=now - _NOTED_EVERY)
        if token.last_used_at is None or token.last_used_at < now - _NOTED_EVERY:
            ApiToken.objects.filter(stale, pk=token.pk).update(last_used_at=now)
    return token


def tokens_revoke(*, tokens: QuerySet[ApiToken], by: User) -> int:
    """Revoke tokens, and those that were created with them, permanently; returns how many.

    The first revocation stays on record.
    """
    revoked = set(tokens.values_list("pk", flat=True))
    newest = revoked
    while newest:
        newest = set(ApiToken.objects.filter(created_with__in=newest).values_list("pk", flat=True)) - revoked
        revoked |= newest
    return ApiToken.objects.filter(pk__in=revoked, revoked_at=None).update(revoked_at=timezone.now(), revoked_by=by)


def secret_digest(secret: str) -> str:
    """Return what is stored in place of the secret of a token or of a login that waits."""
    # The secret has 256 random bits, so the digest needs no salt.
    return sha256(secret.encode()).hexdigest()
