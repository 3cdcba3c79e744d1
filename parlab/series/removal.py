"""Removal of all rows of attempts in pieces, between which others write."""

from __future__ import annotations

import time
from collections.abc import Collection

from parlab.series.models import LogChunk, OperationChunk, SeriesChunk, SeriesLevel
from parlab.series.statements import delete_some

ROWS = 200
"""Rows of a transaction: 800,000 points, about 3 MB."""
PAUSE_S = 0.02
"""A writer that waits for SQLite looks again after some milliseconds."""


def remove(attempt_ids: Collection[int]) -> None:
    """Delete series, logs and operations of attempts that get no more output.

    Must not run in a transaction. If it is interrupted, the rest goes with the attempts or with the next call.
    """
    for model in (SeriesChunk, SeriesLevel, LogChunk, OperationChunk):
        for attempt_id in attempt_ids:
            while delete_some(model, attempt_id, ROWS) == ROWS:
                time.sleep(PAUSE_S)
