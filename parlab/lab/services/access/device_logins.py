"""Logins of `parlab login`: a code that a user confirms in the browser becomes a token for the client that asked."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from parlab.lab.models import SCOPES, USUAL_SCOPES, ApiToken, DeviceLogin, Project
from parlab.lab.models.access.viewer import viewer_of
from parlab.lab.services import storable
from parlab.lab.services.access.logins import login_failed, login_wait_s
from parlab.lab.services.access.tokens import secret_digest, token_create

LIFETIME = timedelta(minutes=10)
POLL_EVERY = timedelta(seconds=2)
TOKEN_DAYS = 90
MAX_WAITING = 10
"""Requests of one address within LIFETIME."""
_KEPT = timedelta(days=1)
# Consonants only, without words and without letters that look like digits: 20⁸ codes.
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"


class TooMany(Exception):
    """A request comes too early; `wait_s` are the seconds until it may be repeated."""

    def __init__(self, message: str, wait_s: int) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Ended(Exception):
    """A login cannot be completed any more; the message names the reason and the remedy."""


def device_login_begin(*, host: str, address: str, scopes: Collection[str] = USUAL_SCOPES) -> tuple[DeviceLogin, str]:
    """Create a login that waits for a user; return it with the secret of the client. Raises ValueError, TooMany."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise ValueError(f"scopes {', '.join(unknown) or 'are empty'}; choose some of {', '.join(SCOPES)}")
    now, address = timezone.now(), address[:64]
    DeviceLogin.objects.filter(expires_at__lt=now - _KEPT).delete()
    if DeviceLogin.objects.filter(address=address, created_at__gt=now - LIFETIME).count() >= MAX_WAITING:
        raise TooMany(f"{address} has begun {MAX_WAITING} logins within 10 minutes", int(LIFETIME.total_seconds()))
    secret = secrets.token_urlsafe(32)
    login = DeviceLogin.objects.create(
        device_digest=secret_digest(secret),
        user_code=_new_code(),
        host=storable.text(" ".join(host.split()))[:120] or "unnamed",
        address=address,
        scopes=" ".join(scope for scope in SCOPES if scope in scopes),
        created_at=now,
        expires_at=now + LIFETIME,
    )
    return login, secret


def device_login_find(*, code: str, user: User, address: str) -> DeviceLogin | None:
    """Return the login with a code that waits for a user; None if there is none.

    Raises TooMany after several wrong codes of this user.
    """
    name = f"login code of {user.get_username()}"
    if wait_s := login_wait_s(username=name, address=address):
        raise TooMany("too many wrong codes", wait_s)
    login = _waiting().filter(user_code=_written(code)).first()
    if login is None:
        login_failed(username=name, address=address)
    return login


def device_login_answer(*, login: DeviceLogin, user: User, is_confirmed: bool) -> bool:
    """Confirm or deny a login; return False if it has expired or was answered before."""
    return bool(_waiting().filter(pk=login.pk).update(user=user, is_denied=not is_confirmed))


@transaction.atomic
def device_login_collect(*, secret: str) -> tuple[ApiToken, str] | None:
    """Return the token of a confirmed login and its secret, once; None while no user has answered.

    Raises TooMany if the client asks too often, Ended, and ValueError if the user can have no further token.
    """
    now, login = timezone.now(), DeviceLogin.objects.filter(device_digest=secret_digest(secret)).first()
    if login is None or login.collected_at is not None or login.expires_at <= now:
        raise Ended("the code has expired or was used; run parlab login again")
    if login.is_denied:
        raise Ended("the login was denied in the browser; run parlab login again")
    rested = Q(polled_at=None) | Q(polled_at__lte=now - POLL_EVERY * 0.5)
    if not DeviceLogin.objects.filter(rested, pk=login.pk).update(polled_at=now):
        raise TooMany("the client asks too often", int(POLL_EVERY.total_seconds()))
    user = login.user
    if user is None:
        return None
    if not user.is_active:
        raise Ended("the account that has confirmed the login is disabled; ask an administrator")
    # Of two requests at once, only one may make a token.
    if not DeviceLogin.objects.filter(pk=login.pk, collected_at=None).update(collected_at=now):
        raise Ended("the code was used; run parlab login again")
    name = f"parlab login on {login.host[:40]}, {login.user_code}"
    # Who collects it has not logged in: the project is that of the person who confirmed.
    project = Project.objects.get(pk=viewer_of(user).home_id)
    return token_create(user=user, name=name, by=user, scopes=login.scope_names, days=TOKEN_DAYS, project=project)


def _waiting() -> models.QuerySet[DeviceLogin]:
    return DeviceLogin.objects.filter(user=None, expires_at__gt=timezone.now())


def _new_code() -> str:
    while True:
        letters = [secrets.choice(_LETTERS) for _ in range(8)]
        code = f"{''.join(letters[:4])}-{''.join(letters[4:])}"
        if not DeviceLogin.objects.filter(user_code=code).exists():
            return code


def _written(code: str) -> str:
    """Return a code as it is stored, however a user has typed it."""
    letters = [letter for letter in code.upper()[:40] if letter in _LETTERS]
    return f"{''.join(letters[:4])}-{''.join(letters[4:])}"
