"""Refused messages, counted by queue, sender and reason."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from parlab.lab.models import RefusedMessage
from parlab.lab.services import storable
from runners.wire.protocol import Refused

MAX_ROWS = 500
"""Queues, senders and reasons kept; the ones that were refused longest ago are deleted first."""


@transaction.atomic
def refused_store(*, refused: Sequence[Refused]) -> None:
    """Add refused messages to the rows of their queue, sender and reason."""
    for message in refused:
        names = {name: storable.text(getattr(message, name)) for name in ("queue", "sender", "reason")}
        latest: dict[str, Any] = {
            "size": min(message.size, 2**62),
            "sample": storable.text(message.sample),
            "last_at": _time(message),
        }
        row, _ = RefusedMessage.objects.get_or_create(**names, defaults={**latest, "first_at": latest["last_at"]})
        RefusedMessage.objects.filter(pk=row.pk).update(count=F("count") + min(message.count, 2**31), **latest)
    oldest = RefusedMessage.objects.order_by("-last_at", "-pk").values_list("pk", flat=True)[MAX_ROWS:]
    RefusedMessage.objects.filter(pk__in=list(oldest)).delete()


def _time(message: Refused) -> datetime:
    now = timezone.now()
    try:
        return min(datetime.fromtimestamp(message.at, UTC), now)
    except (ValueError, OverflowError, OSError):
        return now
