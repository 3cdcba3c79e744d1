"""Memory that grows while a run trains, and when it will be full."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PIECES = 4
FEWEST = 8
"""Samples after the start."""
LEAST_S = 300.0
"""After the start. In less time caches fill up, and other processes of the machine start."""
_START = 0.25
"""Share of the time in which a run allocates what it then holds."""
_LEAST_SHARE, _LEAST_BYTES = 0.05, 32 << 20
_STEADY = 0.1
"""Least share of the growth in each piece: caches fill up, leaks go on."""


class Rate(NamedTuple):
    """Memory that grows."""

    bytes_per_s: float
    bytes_now: float


class Growth(NamedTuple):
    """Memory that grows, with the place where."""

    place: str
    rate: Rate
    full_in_s: float | None
    """Until the memory of the device or machine is full; None if its size is unknown."""


def growth_at(place: str, rate: Rate, capacity: float | None) -> Growth:
    """Return when memory that grows will fill `capacity` bytes."""
    left = max(0.0, capacity - rate.bytes_now) if capacity else None
    return Growth(place, rate, None if left is None else left / rate.bytes_per_s)


def growth(times: NDArray[np.float64], values: NDArray[np.float64]) -> Rate | None:
    """Return the rate of samples (Unix seconds, bytes) that goes on growing; None if they do not grow steadily."""
    keep = np.isfinite(times) & np.isfinite(values)
    times, values = times[keep], values[keep]
    if not len(times):
        return None
    after = times >= times.min() + _START * (times.max() - times.min())
    times, values = times[after], values[after]
    if len(times) < FEWEST or times.max() - times.min() < LEAST_S:
        return None
    order = np.argsort(times, kind="stable")
    pieces = np.array_split(order, PIECES)
    middles = np.array([np.median(values[piece]) for piece in pieces])
    seconds = float(np.median(times[pieces[-1]]) - np.median(times[pieces[0]]))
    grown = float(middles[-1] - middles[0])
    if seconds <= 0 or grown < max(_LEAST_BYTES, _LEAST_SHARE * middles[0]):
        return None
    if float(np.diff(middles).min()) < _STEADY * grown:
        return None
    return Rate(grown / seconds, float(values[order[-1]]))
