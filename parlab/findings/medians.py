"""How sure the difference between the medians of two series of steps is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 2_000
_BLOCK = 4
"""Steps drawn together: neighbouring steps are alike, so single ones would seem more than they are."""
_FEWEST = 8
"""Steps of a run below which nothing is said about its median."""
_MOST = 2_000
"""Steps of a run that are resampled; of more, the last ones."""


class MedianChange(NamedTuple):
    """A change of a median as a share of the first one, with its 95 % interval."""

    share: float
    low: float
    high: float

    @property
    def is_proven(self) -> bool:
        """Whether the interval does not hold zero."""
        return self.low > 0 or self.high < 0


def median_change(first: NDArray[np.float64], second: NDArray[np.float64]) -> MedianChange | None:
    """Return the change of the median from one series to another by a block bootstrap; None for too few steps."""
    values = [series[np.isfinite(series)][-_MOST:] for series in (first, second)]
    if min(map(len, values)) < _FEWEST:
        return None
    middle = [float(np.median(series)) for series in values]
    if not middle[0]:
        return None
    random = np.random.default_rng(0)
    drawn = [_medians(series, random) for series in values]
    shares = drawn[1] / drawn[0] - 1
    low, high = np.percentile(shares, [2.5, 97.5])
    return MedianChange(middle[1] / middle[0] - 1, float(low), float(high))


def _medians(series: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Return the medians of resampled series, each made of blocks of neighbouring steps."""
    count = len(series)
    blocks = -(-count // _BLOCK)
    begins = random.integers(0, count, size=(_ROUNDS, blocks, 1))
    places = (begins + np.arange(_BLOCK)).reshape(_ROUNDS, -1)[:, :count] % count
    medians: NDArray[np.float64] = np.median(series[places], axis=1)
    return medians
