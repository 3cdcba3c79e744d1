"""Sessions of browsers that began by single sign-on."""

from __future__ import annotations

from typing import Any

import jwt
from django.contrib.sessions.models import Session
from django.utils import timezone

ID_TOKEN = "signon_id_token"
"""Where a session keeps the token with which the issuer has named its person; it was checked at the login."""


def signon_sessions_end(*, sub: str | None, sid: str | None) -> int:
    """End the sessions of a login at the issuer, or without one all of a person; return their number."""
    ended = [
        session.pk
        for session in Session.objects.filter(expire_date__gt=timezone.now()).iterator()
        if _is_meant(session.get_decoded().get(ID_TOKEN), sub, sid)
    ]
    Session.objects.filter(pk__in=ended).delete()
    return len(ended)


def _is_meant(id_token: Any, sub: str | None, sid: str | None) -> bool:
    if not isinstance(id_token, str) or not id_token:
        return False
    try:
        claims = jwt.decode(id_token, options={"verify_signature": False})
    except jwt.PyJWTError:
        return False
    if sub is not None and claims.get("sub") != sub:
        return False
    # An issuer that names no session in its ID tokens cannot mean a single one.
    return sid is None or claims.get("sid", sid if sub is not None else None) == sid
