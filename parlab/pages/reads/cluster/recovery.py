"""What the interruptions of the last weeks were spent on, over all runs that the viewer sees."""

from __future__ import annotations

import time
from datetime import datetime
from typing import NamedTuple

from django.core.cache import cache

from parlab.advice.recovery import Interruption
from parlab.ingest.summaries.recovery import run_recovery
from parlab.lab.models import Run
from parlab.lab.models.access.viewer import current_viewer
from parlab.pages.reads.runs.recovery import Total, time_text, total_rows

from .goodput import WEEKS

MAX_RUNS = 100
KEEP_S = 60.0
MOST_S = 1.5
"""Time that one answer may take."""


class Recovery(NamedTuple):
    """Interruptions of the last weeks."""

    interruptions: int
    runs: int
    seconds: str
    parts: list[Total]


def recovery_of_cluster(now: datetime) -> Recovery | None:
    """Return the parts of all interruptions of the last weeks, of the newest runs; None without any."""
    viewer = current_viewer()
    key = f"parlab.cluster.recovery.{viewer.key if viewer else 'all'}".replace(" ", "")
    kept: Recovery | bool | None = cache.get(key)
    if kept is None:
        kept = _recovery(now) or False
        cache.set(key, kept, KEEP_S)
    return kept or None  # type: ignore[return-value]


def _recovery(now: datetime) -> Recovery | None:
    again = Run.objects.filter(origin=Run.Origin.MEASURED, attempt_number__gt=1, queued_at__gte=now - WEEKS)
    found, begun = list[list[Interruption]](), time.monotonic()
    for run in again.order_by("-queued_at")[:MAX_RUNS]:
        found.append(run_recovery(run).interruptions)
        if time.monotonic() - begun > MOST_S:
            break  # each run is kept, so the next answer comes further
    listed = [each for own in found for each in own]
    if not listed:
        return None
    runs = sum(bool(own) for own in found)
    return Recovery(len(listed), runs, time_text(sum(each.seconds for each in listed)), total_rows(listed))
