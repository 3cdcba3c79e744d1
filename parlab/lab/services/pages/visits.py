"""When a user last visited a page: what changed since then is shown on it."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.utils import timezone

from parlab.lab.models import Experiment, Visit

PAUSE = timedelta(minutes=30)
"""A visit ends after a pause of this length: reloading a page does not hide what is new on it."""
WRITTEN_EVERY = timedelta(minutes=1)


def visit(*, user: User, experiment: Experiment | None = None) -> datetime | None:
    """Record a visit of Home or of an experiment; returns the end of the visit before it, None at the first."""
    now = timezone.now()
    last = Visit.objects.filter(user=user, experiment=experiment).first()
    if last is None:
        # Two tabs may open a page at once.
        Visit.objects.bulk_create([Visit(user=user, experiment=experiment, last_at=now)], ignore_conflicts=True)
        return None
    since = last.last_at if now - last.last_at > PAUSE else last.since
    if now - last.last_at > WRITTEN_EVERY or since != last.since:
        Visit.objects.filter(pk=last.pk).update(since=since, last_at=now)
    return since


def visit_dismiss(*, user: User, experiment: Experiment | None = None) -> None:
    """Take everything that changed until now as seen."""
    now = timezone.now()
    Visit.objects.filter(user=user, experiment=experiment).update(since=now, last_at=now)
