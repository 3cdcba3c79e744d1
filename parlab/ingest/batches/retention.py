"""How long raw points stay in the database: later they are archived or removed, and the pyramid stays."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from parlab.lab.models import Attempt
from parlab.series import archive
from parlab.series.chunks import CHUNK_POINTS
from parlab.series.models import SeriesArchive, SeriesChunk

log = logging.getLogger(__name__)


def attempts_due(*, days: float) -> QuerySet[Attempt]:
    """Return the attempts that ended so many days ago and have full chunks in the database, the oldest first."""
    full = SeriesChunk.objects.filter(attempt=OuterRef("pk"), is_last=False, count=CHUNK_POINTS)
    archived = SeriesArchive.objects.filter(attempt=OuterRef("pk"))
    ended = Attempt.objects.filter(ended_at__lt=timezone.now() - timedelta(days=days))
    return ended.filter(Exists(full), ~Exists(archived)).order_by("ended_at", "pk")


def series_retain(*, days: float, url: str, limit: int) -> list[SeriesArchive]:
    """Archive the raw points of attempts that ended so many days ago below `url`, or remove them if it is empty."""
    rows = []
    for attempt in attempts_due(days=days)[:limit]:
        try:
            row = archive.archive(attempt.pk, url)
        except (archive.Damaged, OSError) as error:
            log.warning("the points of %s stay in the database: %s", attempt, error)
            continue
        if row is not None:
            log.info("%s: %s", attempt, row)
            rows.append(row)
    return rows
