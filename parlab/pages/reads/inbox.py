"""The inbox as pages show it: the lines, their number, and the evidence of one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.utils import timezone

from parlab.lab.models import InboxItem, InboxMute
from parlab.lab.models.inbox import InboxItemQuerySet
from parlab.pages.rows.inbox import GROUPS, KINDS, Row, inbox_row

MAX_ITEMS = 200
DONE_SHOWN = 5


class Section(NamedTuple):
    """Lines of the same age."""

    title: str
    rows: list[Row]


class Inbox(NamedTuple):
    """What a person has to decide."""

    sections: list[Section]
    counts: list[tuple[str, int]]
    """Groups, and their lines."""
    total: int
    unread: int
    done: list[Row]
    """The items that were closed last."""
    muted: list[tuple[str, str]]
    """Kinds that the person has muted, with their titles."""

    @property
    def rows(self) -> list[Row]:
        return [row for section in self.sections for row in section.rows]


def inbox_rows(user: User, limit: int) -> list[Row]:
    """Return the newest lines of a person's inbox."""
    return _rows(_shown(user).with_is_read(user.pk), limit)


def inbox_unread(user: User) -> int:
    """Return how many items a person has not opened."""
    return _shown(user).unread(user.pk).count()


def inbox_total(user: User) -> int:
    """Return how many items wait for a decision."""
    return _shown(user).count()


def inbox(user: User, group: str = "") -> Inbox:
    """Return the inbox of a person, or the lines of one group."""
    rows = inbox_rows(user, MAX_ITEMS)
    counted = Counter(row.kind.group for row in rows)
    listed = [row for row in rows if group in ("", row.kind.group)]
    today = timezone.localdate()
    sections: dict[str, list[Row]] = {"Today": [], "Earlier": []}
    for row in listed:
        sections["Today" if timezone.localtime(row.item.last_at).date() == today else "Earlier"].append(row)
    mutes = InboxMute.objects.filter(user=user).values_list("kind", flat=True)
    return Inbox(
        sections=[Section(title, part) for title, part in sections.items() if part],
        counts=[(name, counted[name]) for name in GROUPS if counted[name]],
        total=len(rows),
        unread=sum(not row.is_read for row in rows),
        done=_done() if not rows else [],
        muted=[(kind, KINDS[kind].title) for kind in mutes if kind in KINDS],
    )


def _shown(user: User) -> InboxItemQuerySet:
    return InboxItem.objects.shown_to(user.pk).filter(kind__in=list(KINDS))


def _done() -> list[Row]:
    done = InboxItem.objects.filter(done_at__isnull=False, kind__in=list(KINDS)).of_shown_subjects()
    return _rows(done.order_by("-done_at").select_related("done_by"), DONE_SHOWN)


_DEFERRED = ("run__summary", "run__launch", "run__experiment__notes", "run__experiment__source")


def _rows(items: InboxItemQuerySet, limit: int) -> list[Row]:
    related = items.select_related("experiment", "run__experiment", "node").defer(*_DEFERRED)
    return [inbox_row(item, is_read=getattr(item, "is_read", True)) for item in related[:limit]]


def neighbours(rows: Sequence[Row], pk: int) -> dict[str, Any]:
    """Return the place of an item among the lines, and those before and after it."""
    place = next((at for at, row in enumerate(rows) if row.item.pk == pk), None)
    if place is None:
        return {}
    before, after = rows[place - 1] if place else None, rows[place + 1] if place + 1 < len(rows) else None
    return {"place": place + 1, "before": before, "after": after}
