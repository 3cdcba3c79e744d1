"""The inbox: items opened and closed where their events happen, in the caller's transaction.

An item stands for a cause. The same event reported again changes nothing, a further event of the cause raises the
count, and the end of the cause closes the item without a person. Each new event is announced to subscribers as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from parlab.lab.models import Event, Experiment, InboxItem, InboxMute, InboxReading, Node

from . import storable

SNOOZES = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "1w": timedelta(weeks=1)}
"""How long a person may put an item off."""
_REASON_LENGTH = 200


def item_open(
    *,
    kind: str,
    key: str,
    occurrence: str = "",
    count: int = 1,
    path: str = "",
    experiment: Experiment | None = None,
    run_id: int | None = None,
    node: Node | None = None,
    data: Mapping[str, Any] | None = None,
    at: datetime | None = None,
) -> bool:
    """Open an item, or count a further event of its cause; return whether the event is new.

    `occurrence` names the event within the cause: the same one again only updates the numbers of an open item, and
    never opens one that is done.
    """
    now, facts = at or timezone.now(), {"path": path[:300], "data": storable.json(data or {})}
    last = InboxItem.objects.filter(key=key).order_by("-pk").first()
    if last is not None and last.occurrence == occurrence:
        InboxItem.objects.filter(pk=last.pk, done_at=None).update(**facts)
        return False
    if last is not None and last.is_open:
        InboxItem.objects.filter(pk=last.pk).update(
            **facts, occurrence=occurrence, count=F("count") + count, last_at=now
        )
        return True
    InboxItem.objects.bulk_create(
        [
            InboxItem(
                kind=kind, key=key, occurrence=occurrence, count=count, experiment=experiment, run_id=run_id, node=node,
                first_at=now, last_at=now, **facts,
            )
        ],
        ignore_conflicts=True,
    )  # fmt: skip
    return True


def items_close(*, keys: Iterable[str], reason: str, user: User | None = None) -> int:
    """Close the open items of causes that are gone, or that a person has answered elsewhere."""
    listed = InboxItem.objects.open().filter(key__in=list(keys))
    return listed.update(done_at=timezone.now(), done_by=user, done_reason=storable.text(reason)[:_REASON_LENGTH])


# --- what people do --------------------------------------------------------------------------------------------------


@transaction.atomic
def item_done(*, item: InboxItem, user: User, reason: str = "") -> bool:
    """Close an item for all; return False if it was closed already."""
    facts = {"done_at": timezone.now(), "done_by": user, "done_reason": reason[:_REASON_LENGTH]}
    return bool(InboxItem.objects.open().filter(pk=item.pk).update(**facts))


@transaction.atomic
def item_reopen(*, item: InboxItem) -> bool:
    """Open an item again, unless another of its cause is open."""
    if InboxItem.objects.open().filter(key=item.key).exists():
        return False
    return bool(InboxItem.objects.filter(pk=item.pk).update(done_at=None, done_by=None, done_reason=""))


def item_reopen_by_key(*, key: str) -> bool:
    """Open the last item of a cause again."""
    item = InboxItem.objects.filter(key=key).order_by("-pk").first()
    return item is not None and item_reopen(item=item)


def item_read(*, item: InboxItem, user: User) -> None:
    """Note that a person has opened an item."""
    _reading_set(item, user, read_at=timezone.now())


def item_snooze(*, item: InboxItem, user: User, period: str) -> datetime:
    """Put an item off for one person; raises ValueError for an unknown period."""
    if period not in SNOOZES:
        raise ValueError(f"unknown period {period[:40]!r}; use {', '.join(SNOOZES)}")
    until = timezone.now() + SNOOZES[period]
    _reading_set(item, user, snoozed_until=until, read_at=timezone.now())
    return until


def item_wake(*, item: InboxItem, user: User) -> None:
    """Show an item again that a person has put off."""
    _reading_set(item, user, snoozed_until=None)


def _reading_set(item: InboxItem, user: User, **fields: Any) -> None:
    InboxReading.objects.update_or_create(user=user, item=item, defaults=fields)


def kind_mute(*, kind: str, user: User) -> None:
    """Hide all items of a kind from one person; raises ValueError for an unknown kind."""
    if kind not in Event.Kind.values:
        raise ValueError(f"unknown kind {kind[:40]!r}; use one that the inbox lists")
    InboxMute.objects.get_or_create(user=user, kind=kind)


def kind_unmute(*, kind: str, user: User) -> None:
    InboxMute.objects.filter(user=user, kind=kind).delete()
