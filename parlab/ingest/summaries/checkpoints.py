"""Checkpoints that the ranks of a run wrote and loaded: from events to series, and to a part of the summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parlab.series.columns import Columns

PREFIX = "checkpoint/"
SAVE_S, BLOCKED_S, LOAD_S, BYTES = NAMES = tuple(
    f"{PREFIX}{name}" for name in ("save_s", "blocked_s", "load_s", "bytes")
)
NUMBERS = {
    "save": {"seconds": "save_s", "blocked_s": "blocked_s", "bytes": "bytes"},
    "load": {"seconds": "load_s"},
}
"""Kind of event -> its fields with the names of their series: seconds, the part of them in which the training stood
still, and bytes on disk."""


def checkpoints_of(series: Mapping[str, Mapping[int, Columns]]) -> dict[str, Any]:
    """Return the number of complete checkpoints, step and size of the last one, and their median times.

    What was not measured is absent: an attempt that only loaded one has `load_s` alone.
    """
    by_name = {name: by_rank[min(by_rank)] for name in NAMES if (by_rank := series.get(name))}
    found: dict[str, Any] = {}
    if (sizes := by_name.get(BYTES)) is not None and len(sizes):
        found |= {"count": len(sizes), "last_step": int(sizes.steps[-1]), "bytes": int(sizes.values[-1])}
    for name in (SAVE_S, BLOCKED_S, LOAD_S):
        if (columns := by_name.get(name)) is not None and len(columns):
            found[name.removeprefix(PREFIX)] = float(np.median(columns.values))
    return found
