"""Sets of intervals as pairs of arrays (starts, ends), and their measure in windows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


class Intervals(NamedTuple):
    """Disjoint intervals in order."""

    starts: Times
    ends: Times

    @property
    def total(self) -> float:
        """Sum of the lengths."""
        return float((self.ends - self.starts).sum())

    def until(self, times: Times) -> Times:
        """Return the covered time before each of `times`."""
        lengths = np.concatenate([[0.0], np.cumsum(self.ends - self.starts)])
        place = np.searchsorted(self.starts, times, side="right")
        last = np.maximum(place - 1, 0)
        excess = np.where(place > 0, np.maximum(self.ends[last] - times, 0.0), 0.0) if len(self.starts) else 0.0
        covered: Times = lengths[place] - excess
        return covered

    def inside(self, begins: Times, ends: Times) -> Times:
        """Return the covered time inside each window."""
        covered: Times = self.until(ends) - self.until(begins)
        return covered


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values in order, as numpy.unique, which imports numpy.ma (1 MiB)."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    chosen: NDArray[Any] = ordered[is_first]
    return chosen


def union(starts: Times, ends: Times) -> Intervals:
    """Merge intervals that overlap, in any order."""
    if not len(starts):
        return Intervals(np.empty(0), np.empty(0))
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(starts), np.bool_)
    first[1:] = starts[1:] > reach[:-1]
    last = np.append(np.flatnonzero(first)[1:] - 1, len(starts) - 1)
    return Intervals(starts[first], reach[last])


def gaps(busy: Intervals, begin: float, end: float) -> Intervals:
    """Return the intervals between `begin` and `end` that are not covered."""
    starts, ends = np.append(begin, busy.ends), np.append(busy.starts, end)
    starts, ends = np.clip(starts, begin, end), np.clip(ends, begin, end)
    keep = ends > starts
    return Intervals(starts[keep], ends[keep])
