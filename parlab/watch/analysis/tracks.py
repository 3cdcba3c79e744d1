"""One series of results with its changes, as people read them; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np

from parlab.charts.format import signed_percent

from .changes import MAX_NODES, Alarm, Detector
from .node_shifts import LEAST_OF_NODE, Floats
from .ramps import best_ramp

Kind = Literal["step", "slope", "node"]
AROUND = 40
"""Results on each side of a change that its size is computed from."""
SLOPE_LEAST = 8
"""Results that a slope takes at least; a shorter one is a step."""
AT_ONCE = 500
"""Series per thread: their windows fit into the cache of a processor."""
MAX_POINTS = 100_000


class Point(NamedTuple):
    """One result: its value, and the node that measured it."""

    value: float | None
    node: str = ""


class Change(NamedTuple):
    at: int
    """First result after it."""
    raised: int
    """The result with which it became certain."""
    kind: Kind
    node: str
    """The only node that changed; empty: all nodes."""
    size: float
    """Relative change: 0.05 is 5 % more."""
    low: float
    high: float
    """The 95 % interval of the size."""
    last_good: int
    """Last result before it."""
    end: int
    """Result with which a slope ends; equal to `at` for a step."""


class Suspicion(NamedTuple):
    """A change that is not certain yet."""

    at: int
    size: float
    needed: int
    """Further results that make it certain, if they are like the last ones."""


class Track:
    """A series that grows: points in order, changes so far; its state can be stored."""

    def __init__(self, **settings: float) -> None:
        self.detector = Detector(1, **settings)
        self.points: list[Point] = []
        self.positions: list[int] = []
        """Index of the point of each result that has a usable value."""
        self.node_codes: dict[str, int] = {}
        self.alarms: list[Alarm] = []

    def add(self, points: Sequence[Point]) -> list[int]:
        """Append points; return the indices of changes that became certain."""
        values, codes = [], []
        for point in points:
            if point.value is not None and math.isfinite(point.value) and point.value > 0:
                self.positions.append(len(self.points))
                values.append(point.value)
                codes.append(self._code(point.node))
            self.points.append(point)
        if not values:
            return []
        alarms = self.detector.extend(np.array(values)[:, None], np.array(codes)[:, None])
        self.alarms += alarms
        return [self.positions[alarm.at] for alarm in alarms if not alarm.continues]

    def _code(self, node: str) -> int:
        if not node:
            return -1
        return self.node_codes.setdefault(node, min(len(self.node_codes), MAX_NODES - 1))

    @property
    def changes(self) -> list[Change]:
        """The changes so far, each with its size from all results between its neighbours."""
        own = [alarm for alarm in self.alarms if not alarm.continues]
        breaks = [alarm.at for alarm in self.alarms if alarm.node < 0]
        return [self._described(alarm, breaks) for alarm in own]

    def _described(self, alarm: Alarm, breaks: Sequence[int]) -> Change:
        names = list(self.node_codes)
        node = names[alarm.node] if alarm.node >= 0 else ""
        before = max([at for at in breaks if at < alarm.at], default=0)
        later = [other for other in self.alarms if other.at > alarm.at and other.node < 0]
        after = next((other.at for other in later if not other.continues), len(self.positions))
        low, high = max(before, alarm.at - AROUND), min(after, alarm.at + AROUND)
        continued = [other.at for other in later if other.continues and other.at < after]
        if continued:
            high = min(after, continued[-1] + AROUND)
        values = self._levelled(low, high, node)
        begin, end = alarm.at - low, alarm.at - low
        kind: Kind = "node" if node else "step"
        if not node and len(values) >= 2 * SLOPE_LEAST:
            ramp = best_ramp(values)
            noise = ramp.squares / max(len(values) - 4, 1)
            if ramp.end - ramp.begin >= SLOPE_LEAST and ramp.step_squares - ramp.squares > 12 * noise:
                kind, begin, end = "slope", ramp.begin + 1, ramp.end
        size, error = _difference(values[:begin], values[end:])
        # The first shifted result of a slope is hidden in the noise: what was detected comes later than its beginning.
        first = low + begin if kind == "slope" else alarm.at
        return Change(
            at=self.positions[first],
            raised=self.positions[alarm.raised],
            kind=kind,
            node=node,
            size=math.expm1(size),
            low=math.expm1(size - 1.96 * error),
            high=math.expm1(size + 1.96 * error),
            last_good=self.positions[self._last_before(first, node)],
            end=self.positions[min(low + end, len(self.positions) - 1)],
        )

    def _last_before(self, place: int, node: str) -> int:
        """Return the last result before a place, of one node if the change is that node's."""
        own = [at for at in range(place) if not node or self.points[self.positions[at]].node == node]
        return own[-1] if own else 0

    def _levelled(self, low: int, high: int, node: str) -> Floats:
        """Return logarithms of results without the differences between nodes; of one node only if it is named."""
        points = [self.points[position] for position in self.positions[low:high]]
        values = np.log([point.value or 1.0 for point in points])
        if node:
            return values if all(point.node == node for point in points) else self._of_node(values, points, node)
        codes = np.array([self.node_codes.get(point.node, -1) for point in points])
        for code in np.unique(codes[codes >= 0]):
            offset = self.detector.offsets[code, 0] if code < len(self.detector.offsets) else math.nan
            if math.isfinite(offset):
                values[codes == code] -= offset
        return values

    def _of_node(self, values: Floats, points: Sequence[Point], node: str) -> Floats:
        """Return the results of one node; those of others are replaced by the last one, so that places stay."""
        own = np.where([point.node == node for point in points], values, np.nan)
        first = own[np.flatnonzero(np.isfinite(own))[0]] if np.isfinite(own).any() else 0.0
        for at in range(len(own)):
            own[at] = first if not math.isfinite(own[at]) else own[at]
            first = own[at]
        return own

    @property
    def suspicion(self) -> Suspicion | None:
        """The most likely change that is not certain yet."""
        outlook = self.detector.outlook()
        if outlook is None:
            return None
        values = self._levelled(max(outlook.at - AROUND, 0), len(self.positions), "")
        size, _ = _difference(values[: -(len(self.positions) - outlook.at)], values[outlook.at - len(self.positions) :])
        return Suspicion(self.positions[outlook.at], math.expm1(size), outlook.needed)

    @property
    def notes(self) -> list[str]:
        """What happened to the series that is no change: gaps, and nodes that are not comparable yet."""
        notes = []
        gaps = len(self.points) - len(self.positions)
        if gaps:
            notes.append(f"{gaps} of {len(self.points)} results have no usable value and count for nothing")
        if self.detector.needed_to_start:
            notes.append(f"{self.detector.needed_to_start} more results are needed before a change can be detected")
        for node, code in self.node_codes.items():
            offset = self.detector.offsets[code, 0] if code < len(self.detector.offsets) else math.nan
            count = sum(point.node == node for point in self.points)
            if not math.isfinite(offset):
                notes.append(
                    f"node {node} is new: {LEAST_OF_NODE - count} more of its results are needed to compare it with"
                    " the others"
                )
            elif abs(offset) >= 0.01 and len(self.node_codes) > 1:
                off = signed_percent(math.expm1(offset))
                notes.append(f"node {node} is {off} off the level; this is no change of the code")
        return notes

    def state(self) -> dict[str, Any]:
        """Return everything as JSON, for `from_state`."""
        return {
            "detector": self.detector.state(),
            "points": [list(point) for point in self.points],
            "positions": self.positions,
            "nodes": self.node_codes,
            "alarms": [list(alarm) for alarm in self.alarms],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Track:
        """Return the track that `state` describes."""
        track = cls()
        track.detector = Detector.from_state(state["detector"])
        track.points = [Point(value, node) for value, node in state["points"]]
        track.positions = list(state["positions"])
        track.node_codes = dict(state["nodes"])
        track.alarms = [Alarm(*alarm) for alarm in state["alarms"]]
        return track


def _difference(before: Floats, after: Floats) -> tuple[float, float]:
    """Return the difference of two means without outliers, and its standard error."""
    parts = []
    for part in (before, after):
        if not len(part):
            return 0.0, math.inf
        centre = float(np.median(part))
        spread = max(float(np.median(np.abs(part - centre))) * 1.4826, 1e-4)
        cut = np.clip(part, centre - 3 * spread, centre + 3 * spread)
        # With two or three results the spread says nothing: the larger of the two sides counts below.
        parts.append((float(cut.mean()), float(cut.std(ddof=1)) if len(cut) > 1 else 0.0, len(cut)))
    (old, old_spread, old_count), (new, new_spread, new_count) = parts
    old_spread = max(old_spread, new_spread if old_count < LEAST_OF_NODE else 0.0)
    new_spread = max(new_spread, old_spread if new_count < LEAST_OF_NODE else 0.0)
    return new - old, math.sqrt(old_spread**2 / old_count + new_spread**2 / new_count)


def scan(values: Floats, *, threads: int = 2, **settings: float) -> list[Alarm]:
    """Return the changes of many series of equal length, (rows, series), without nodes."""
    parts = [(start, values[:, start : start + AT_ONCE]) for start in range(0, values.shape[1], AT_ONCE)]

    def changes_of(part: tuple[int, Floats]) -> list[Alarm]:
        start, columns = part
        alarms = Detector(columns.shape[1], **settings).extend(np.ascontiguousarray(columns))
        return [alarm._replace(series=alarm.series + start) for alarm in alarms]

    with ThreadPoolExecutor(threads) as pool:
        return [alarm for alarms in pool.map(changes_of, parts) for alarm in alarms]
