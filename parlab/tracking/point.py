"""What a script or a store says about a metric at one time."""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """One value of one metric."""

    key: str
    value: float
    timestamp_ms: int
    step: int
