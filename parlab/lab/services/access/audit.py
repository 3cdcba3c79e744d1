"""The audit log: changes that people and scripts have made. Entries are only added and, once they are old, deleted."""

from datetime import timedelta

from django.contrib.auth.models import User
from django.utils import timezone

from parlab.lab.models import AuditEntry
from parlab.lab.services import storable

KEPT = timedelta(days=400)


def audit_add(
    *, user: User, action: str, route: str, method: str, path: str, status: int, token: str = "", address: str = ""
) -> AuditEntry:
    return AuditEntry.objects.create(
        user=user,
        username=user.get_username(),
        action=action,
        route=route[:120],
        method=method[:8],
        path=storable.text(path)[:300],
        status=status,
        token=token[:80],
        address=address[:64],
    )


def audit_by_server(*, route: str, path: str) -> AuditEntry:
    """Store an entry about what parlab has changed by itself."""
    facts = {"username": "parlab", "action": AuditEntry.Action.CHANGE, "method": "", "status": 200, "address": ""}
    return AuditEntry.objects.create(user=None, route=route[:120], path=storable.text(path)[:300], **facts)


def audit_forget() -> int:
    """Delete entries that are older than KEPT; return their number."""
    return AuditEntry.objects.filter(at__lt=timezone.now() - KEPT).delete()[0]
