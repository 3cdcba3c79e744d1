"""Times of day on an axis."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import NamedTuple

_STEPS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 7 * 86400)


class Clock(NamedTuple):
    """A time zone, as seconds east of Greenwich."""

    offset_s: float = 0.0

    def text(self, at: float) -> str:
        """Return `14:10`."""
        return datetime.fromtimestamp(at + self.offset_s, UTC).strftime("%H:%M")

    def ticks(self, begin: float, end: float, count: int = 6) -> list[float]:
        """Return round times in a range, at most about `count` of them."""
        step = next((step for step in _STEPS_S if (end - begin) / step <= count), _STEPS_S[-1])
        first = math.ceil((begin + self.offset_s) / step) * step - self.offset_s
        return [first + number * step for number in range(max(0, int((end - first) // step) + 1))]
