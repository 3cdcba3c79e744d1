"""How the time of a step has changed over a run of hours: medians of its thirds. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_STEPS = 60
LEAST_HOURS = 1.0


def trend_of(numbers: NDArray[np.int64], times: NDArray[np.float64]) -> dict[str, Any]:
    """Return the median step time of each third of the counted steps; {} for short runs.

    Shape: {"thirds_s": [first, middle, last], "hours": of all steps, also of those between the printed ones}.
    """
    if len(numbers) < LEAST_STEPS:
        return {}
    hours = float(np.sum(times[1:] * np.diff(numbers))) / 3600.0
    if not LEAST_HOURS <= hours < 1e6:
        return {}
    return {"thirds_s": [float(np.median(third)) for third in np.array_split(times, 3)], "hours": hours}
