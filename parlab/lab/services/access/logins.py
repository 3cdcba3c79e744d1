"""Throttling of logins by name and address, so that a person cannot be locked out from elsewhere."""

import math
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Count, Max, Q, Sum
from django.utils import timezone

from parlab.lab.models import AuditEntry, LoginFailure
from parlab.lab.services import storable

FREE_FAILURES = 5
"""Failures for one name from one address without a wait; each one after them doubles it."""
FIRST_WAIT = timedelta(seconds=15)
LONGEST_WAIT = timedelta(minutes=15)
FREE_NAMES = 30
"""Names that one address may fail with within FORGOTTEN_AFTER before it has to wait for each further name."""
ACCOUNT_FAILURES = 100
"""Failures for one name from all addresses within FORGOTTEN_AFTER before it waits everywhere but at home."""
HOME = timedelta(days=90)
"""An address from which an account has logged in within this time is not held up by failures elsewhere."""
FORGOTTEN_AFTER = timedelta(hours=1)


def login_wait_s(*, username: str, address: str) -> int:
    """Return the seconds that a login with this name from this address has to wait; 0 if it may be tried."""
    now = timezone.now()
    own = LoginFailure.objects.filter(username=_name(username), address=address[:64], blocked_until__gt=now).first()
    if own is not None and own.blocked_until is not None:
        return math.ceil((own.blocked_until - now).total_seconds())
    recent = Q(last_at__gt=now - FORGOTTEN_AFTER)
    everywhere = LoginFailure.objects.filter(recent, username=_name(username))
    total = everywhere.aggregate(count=Sum("count"), last_at=Max("last_at"))
    if (total["count"] or 0) >= ACCOUNT_FAILURES and not _is_home(username, address, now):
        left: timedelta = total["last_at"] + LONGEST_WAIT - now
        return max(0, math.ceil(left.total_seconds()))
    names = LoginFailure.objects.filter(recent, address=address[:64]).exclude(username=_name(username))
    if names.aggregate(number=Count("pk"))["number"] >= FREE_NAMES:
        last_at = names.latest("last_at").last_at
        return max(0, math.ceil((last_at + FIRST_WAIT - now).total_seconds()))
    return 0


@transaction.atomic
def login_failed(*, username: str, address: str) -> None:
    """Count a failed login, and forget old ones."""
    now = timezone.now()
    LoginFailure.objects.filter(last_at__lt=now - FORGOTTEN_AFTER).delete()
    names = {"username": _name(username), "address": address[:64]}
    LoginFailure.objects.get_or_create(**names, defaults={"last_at": now})
    row = LoginFailure.objects.select_for_update().get(**names)
    row.count, row.last_at = row.count + 1, now
    excess = row.count - FREE_FAILURES
    row.blocked_until = now + min(FIRST_WAIT * 2 ** min(excess, 20), LONGEST_WAIT) if excess >= 0 else None
    row.save()


def login_succeeded(*, username: str, address: str) -> None:
    """Forget the failures for a name from an address."""
    LoginFailure.objects.filter(username=_name(username), address=address[:64]).delete()


def _is_home(username: str, address: str, now: datetime) -> bool:
    logins = AuditEntry.objects.filter(action=AuditEntry.Action.LOGIN, at__gt=now - HOME, address=address[:64])
    return logins.filter(username__iexact=_name(username)).exists()


def _name(username: str) -> str:
    return storable.text(username.strip().casefold())[:150]
