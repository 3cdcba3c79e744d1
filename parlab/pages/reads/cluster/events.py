"""What happened on a day of the cluster: attempts that ended without finishing, and nodes that were left out."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import NamedTuple

from django.urls import reverse
from django.utils import timezone

from parlab.charts.format import SPACE, significant
from parlab.lab.models import Attempt, Exclusion, Node, Run
from runners.wire.protocol import RunState

from .goodput import CAUSES

MAX_EVENTS = 40


class Event(NamedTuple):
    """One event, with where to read more."""

    at: str
    title: str
    name: str
    href: str
    lost: str
    """Device hours; empty for an event without a run."""


class DayOfEvents(NamedTuple):
    """The events of a day, in their order."""

    date: date
    events: list[Event]
    more: int


def day_of_events(text: str) -> DayOfEvents | None:
    """Return the events of a day, `2026-11-18` in the time zone of the page; None for another text."""
    try:
        day = date.fromisoformat(text)
        begins = timezone.make_aware(datetime.combine(day, time.min))
        ends = begins + timedelta(days=1)
    except (ValueError, OverflowError):
        return None
    rows = [*_attempts(begins, ends), *_exclusions(begins, ends)]
    rows.sort(key=lambda row: row[0])
    return DayOfEvents(day, [event for _, event in rows[:MAX_EVENTS]], max(0, len(rows) - MAX_EVENTS))


def _attempts(begins: datetime, ends: datetime) -> list[tuple[datetime, Event]]:
    done = (RunState.FINISHED, RunState.CHECKPOINTED)
    found = Attempt.objects.filter(started_at__gte=begins, started_at__lt=ends, ended_at__isnull=False)
    found = found.filter(run__origin=Run.Origin.MEASURED).exclude(state__in=done)
    rows = []
    for attempt in found.select_related("run__experiment").order_by("ended_at")[: MAX_EVENTS + 1]:
        run = attempt.run
        assert attempt.started_at is not None
        assert attempt.ended_at is not None
        hours = (attempt.ended_at - attempt.started_at).total_seconds() / 3600 * (run.gpus or 1)
        title = CAUSES.get(attempt.state, CAUSES[RunState.FAILED])
        name, href = f"{run.experiment.name} #{run.number}", run.get_absolute_url()
        at = f"{timezone.localtime(attempt.ended_at):%H:%M}"
        rows.append((attempt.ended_at, Event(at, title, name, href, f"{significant(hours)}{SPACE}h")))
    return rows


def _exclusions(begins: datetime, ends: datetime) -> list[tuple[datetime, Event]]:
    found = Exclusion.objects.filter(at__gte=begins, at__lt=ends, node__in=Node.objects.all()).select_related("node")
    return [
        (
            row.at,
            Event(
                f"{timezone.localtime(row.at):%H:%M}",
                row.reason,
                row.place_name,
                reverse("node", args=[row.node.name]),
                "",
            ),
        )
        for row in found.order_by("at")[: MAX_EVENTS + 1]
    ]
