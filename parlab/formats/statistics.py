"""Statistics of a stream in bounded memory.

Count, sum, minimum, maximum, first and last are exact. Quantiles are exact up to `limit` values; beyond that they come
from a uniform sample of `limit` values (Li 1994, algorithm L, fixed seed): with 16,384 values the rank of a quantile
is off by less than 1 % in 99 of 100 streams.
"""

from __future__ import annotations

import math
import random
from array import array

LIMIT = 16_384
BLOCK = 1_024


class Stream:
    """Statistics of numbers that are added one at a time; the hot loop only calls `append`."""

    __slots__ = (
        "_maximum",
        "_minimum",
        "_next",
        "_random",
        "_weight",
        "append",
        "count",
        "first",
        "kept",
        "last",
        "limit",
        "pending",
        "total",
    )

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.pending: list[float] = []
        self.append = self.pending.append
        self.kept = array("d")
        self.count = 0
        self.total = 0.0
        self.first = self.last = math.nan
        self._minimum, self._maximum = math.inf, -math.inf
        self._next, self._weight = 0, 1.0
        self._random = random.Random(0)

    def flush(self) -> None:
        """Process the pending values; call this at least every few thousand appends."""
        block = self.pending
        if not block:
            return
        if not self.count:
            self.first = block[0]
        self.last = block[-1]
        self._minimum = min(self._minimum, *block)
        self._maximum = max(self._maximum, *block)
        self.total += sum(block)
        room = self.limit - len(self.kept)
        if room > 0:
            self.kept.extend(block[:room])
        if room < len(block):
            self._sample(block)
        self.count += len(block)
        block.clear()

    def _sample(self, block: list[float]) -> None:
        if not self._next:
            self._next = self.limit - 1
            self._advance()
        while self._next < self.count + len(block):
            self.kept[self._random.randrange(self.limit)] = block[self._next - self.count]
            self._advance()

    def _advance(self) -> None:
        self._weight *= math.exp(math.log(1.0 - self._random.random()) / self.limit)
        self._next += int(math.log(1.0 - self._random.random()) / math.log1p(-self._weight)) + 1

    @property
    def minimum(self) -> float:
        self.flush()
        return self._minimum

    @property
    def maximum(self) -> float:
        self.flush()
        return self._maximum

    @property
    def mean(self) -> float:
        self.flush()
        return self.total / self.count

    @property
    def mean_without_first(self) -> float | None:
        self.flush()
        return (self.total - self.first) / (self.count - 1) if self.count > 1 else None

    def quantiles(self, *fractions: float) -> list[float]:
        """Return quantiles by linear interpolation between the sampled values."""
        self.flush()
        values = sorted(self.kept)
        results = []
        for fraction in fractions:
            position = fraction * (len(values) - 1)
            low = int(position)
            high = min(low + 1, len(values) - 1)
            results.append(values[low] + (values[high] - values[low]) * (position - low))
        return results
