"""Change points of many series at once, as results arrive; pure.

A series is the logarithm of one measure of one configuration, so that a change is relative. Each new result is compared
with those before it by Student's t statistic at every possible place of a change among the last results: a two-sample
test whose windows grow, as in Page's and Lorden's generalised likelihood ratio. Three properties make it fit for
benchmarks:

- Values are cut off at a few standard deviations around the level (Huber 1964), so that no single result can raise an
  alert and two outliers cannot either.
- The noise of earlier segments counts as prior observations of the variance, so that a few results after a change
  suffice for the next decision.
- Each node has an offset that is learnt from its results: a slower node is no change of the code.

The statistic is turned into a normal deviate (Wallace 1959) and compared with one threshold. All series advance
together, one row of results at a time; a detector continues where it stopped when results are added.
`node_shifts` separates nodes from code, `ramps` slopes from steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .node_shifts import CUT_OFF, LAG, Floats, Ints, changed_node, learn_offsets
from .ramps import fits_ramp

THRESHOLD = 4.6
"""Normal deviate from which a change is certain enough; tuned on series of tests/bench/campaigns/watch.py."""
LEAST_CHANGE = 0.005
"""Smaller relative changes are not reported."""
LEAST_AFTER = 3
"""Results after a change before it is reported: never on a single run."""
LEAST_BEFORE = 6
"""Results before a change that it is compared with."""
LOOK_BACK = 64
"""Results that one comparison reads."""
LONGEST_AFTER = 40
"""Results after the place of a possible change; an older one would have been reported."""
PRIOR = 8.0
"""Weight of the noise of earlier results, in results."""
LEAST_NOISE = 0.002
"""Relative noise of values that repeat exactly, such as a peak of memory."""
MEMORY = 128
"""Results from which the offset of a node is learnt."""
REFRESH = 4
"""Results between two estimates of level, noise and offsets."""
MAX_NODES = 32
SUSPICIOUS = (2.0, 3.0)
"""Normal deviates from which a change is possible: of one or two results, of more."""
CONTINUES_WITHIN = 48
"""Results within which a further change in the same direction may be the same gradual one."""


class Alarm(NamedTuple):
    """A change when it was detected."""

    series: int
    at: int
    """First result after the change."""
    raised: int
    """The result with which it became certain."""
    node: int
    """The only node that changed, -1 if the change is one of all nodes."""
    continues: bool
    """Whether it is a further part of the gradual change before it."""


class Outlook(NamedTuple):
    """A possible change that is not certain yet."""

    at: int
    shift: float
    """Its logarithm."""
    deviate: float
    needed: int
    """Further results after which it would be certain if the next ones are like the last."""


class Detector:
    """The state of the detection in `series` series; `extend` it by rows of results."""

    def __init__(self, series: int, *, threshold: float = THRESHOLD, least_change: float = LEAST_CHANGE) -> None:
        self.threshold, self.least_change = threshold, least_change
        self.count = 0
        """Rows so far."""
        self.first = 0
        """Number of the first row that is still held."""
        self.values: Floats = np.zeros((0, series))
        self.adjusted: Floats = np.zeros((0, series))
        self.residuals: Floats = np.zeros((0, series))
        self.nodes: Ints = np.zeros((0, series), np.int64)
        self.start: Ints = np.zeros(series, np.int64)
        """First row of the current segment."""
        self.level: Floats = np.zeros(series)
        self.noise: Floats = np.full(series, LEAST_NOISE)
        self.offsets: Floats = np.zeros((0, series))
        """Per node and series; a node without an offset has NaN."""
        self.last: Ints = np.full((3, series), -1, np.int64)
        """Index and sign (0 or 1) of the last change, and the first row of the segment before it."""

    # --- rows ---------------------------------------------------------------------------------------------------------

    def extend(self, values: Floats, nodes: Ints | None = None, lengths: Ints | None = None) -> list[Alarm]:
        """Add rows of positive results and return the changes that they make certain.

        `values` is (rows, series); `nodes` numbers the node of each result (-1: unknown). Of a series that ends
        earlier than the others only the first `lengths` rows count.
        """
        new = np.log(values)
        codes = np.full(values.shape, -1, np.int64) if nodes is None else np.minimum(nodes, MAX_NODES - 1)
        missing = int(codes.max(initial=-1)) + 1 - len(self.offsets)
        if missing > 0:
            self.offsets = np.vstack([self.offsets, np.full((missing, self.values.shape[1]), np.nan)])
        held = len(self.values)
        self.values = np.vstack([self.values, new])
        self.nodes = np.vstack([self.nodes, codes])
        self.adjusted = np.vstack([self.adjusted, new])
        self.residuals = np.vstack([self.residuals, np.zeros_like(new)])
        ends = None if lengths is None else np.asarray(lengths) + self.count
        alarms = []
        for row in range(held, len(self.values)):
            active = None if ends is None else self.first + row < ends
            alarms += self._advance(row, active)
            self.count += 1
        kept = max(len(self.values) - MEMORY, 0)
        self.first += kept
        self.values, self.nodes = self.values[kept:].copy(), self.nodes[kept:].copy()
        self.adjusted, self.residuals = self.adjusted[kept:].copy(), self.residuals[kept:].copy()
        return alarms

    def _advance(self, row: int, active: NDArray[np.bool_] | None) -> list[Alarm]:
        index = self.first + row
        if len(self.offsets):
            self.adjusted[row] -= self._offset_of(self.nodes[row])
        if index % REFRESH == 0 or index == LEAST_BEFORE + LEAST_AFTER - 1:
            self._refresh(row)
        self.residuals[row] = self.values[row] - self.level
        if index < LEAST_BEFORE + LEAST_AFTER - 1:
            return []
        deviates, shifts, after = self._best(row, LEAST_AFTER)
        certain = (np.abs(deviates) >= self.threshold) & (np.abs(shifts) >= self.least_change)
        if active is not None:
            certain &= active
        return [self._change(row, int(column), int(after[column])) for column in np.flatnonzero(certain)]

    def _best(self, row: int, least: int) -> tuple[Floats, Floats, Ints]:
        """Return the most certain change of each series: its deviate, its logarithm, the results after it."""
        low = max(row - LOOK_BACK + 1, 0)
        scaled = (self.adjusted[low : row + 1] - self.level) / self.noise
        np.clip(scaled, -CUT_OFF, CUT_OFF, out=scaled)
        weights = np.ones_like(scaled)
        first = self.start - self.first - low
        if first.max() > 0:
            weights[np.arange(len(scaled))[:, None] < first] = 0.0
        if len(self.offsets):
            weights[np.isnan(scaled)] = 0.0
            np.nan_to_num(scaled, copy=False)
        scaled *= weights
        # Sums over the last 1, 2, ... results; the last row of each is the sum of all.
        backwards = scaled[::-1]
        sums, squares, counts = (np.cumsum(part, axis=0) for part in (backwards, backwards * backwards, weights[::-1]))
        total, total_squares, total_count = sums[-1], squares[-1], counts[-1]
        longest = min(LONGEST_AFTER, len(scaled) - 1)
        sums, counts = sums[least - 1 : longest], counts[least - 1 : longest]
        if not len(sums):
            nothing = np.zeros(scaled.shape[1])
            return nothing, nothing, np.ones(scaled.shape[1], np.int64)
        before = total_count - counts
        possible = (before >= LEAST_BEFORE) & (counts >= least)
        after_count, before_count = np.maximum(counts, 1.0), np.maximum(before, 1.0)
        after_mean, before_mean = sums / after_count, (total - sums) / before_count
        shifts = after_mean - before_mean
        within = total_squares - after_mean * sums - before_mean * (total - sums)
        degrees = np.maximum(total_count - 2.0 + PRIOR, 1.0)
        variance = (np.maximum(within, 0.0) + PRIOR) / degrees
        squared = shifts * shifts / (variance * (1.0 / after_count + 1.0 / before_count))
        deviates = np.sqrt(degrees * np.log1p(squared / degrees)) * (8.0 * degrees + 1.0) / (8.0 * degrees + 3.0)
        deviates[~possible] = 0.0
        best = np.argmax(deviates, axis=0)
        columns = np.arange(scaled.shape[1])
        shift = shifts[best, columns]
        return np.copysign(deviates[best, columns], shift), shift * self.noise, best + least

    # --- level, noise and nodes ---------------------------------------------------------------------------------------

    def _refresh(self, row: int) -> None:
        """Estimate offsets, level and noise of all series from the results up to a row."""
        if len(self.offsets):
            self._learn_nodes(row)
        everything = np.arange(self.values.shape[1])
        self._settle(row, everything)
        low = max(row - LOOK_BACK + 1, 0)
        window = self.adjusted[low : row + 1]
        # Differences of neighbours contain the noise alone, also where the level has changed.
        steps = np.abs(np.diff(window, axis=0))
        if len(steps) < 3:
            return
        spread = (np.nanmedian if len(self.offsets) else np.median)(steps, axis=0) / (0.6745 * np.sqrt(2.0))
        self.noise = np.maximum(np.nan_to_num(spread, nan=LEAST_NOISE), LEAST_NOISE)

    def _settle(self, row: int, series: Ints) -> None:
        """Set the level of some series to the median of their segment, without its newest results."""
        low = max(row - LOOK_BACK + 1, 0)
        rows = np.arange(low, row + 1)[:, None] + self.first
        start = self.start[series]
        # A young segment has to use all of its results.
        end = np.maximum(self.first + row - LAG, start + LEAST_AFTER - 1)
        values = np.where((rows >= start) & (rows <= end), self.adjusted[low : row + 1, series], np.nan)
        has_values = ~np.all(np.isnan(values), axis=0)
        if has_values.all() and np.isfinite(values).all():
            self.level[series] = np.median(values, axis=0)
        elif has_values.any():
            self.level[series[has_values]] = np.nanmedian(values[:, has_values], axis=0)

    def _offset_of(self, codes: Ints) -> Floats:
        """Return the offsets of the nodes of one row or several; 0 for an unknown node, NaN for a new one."""
        columns = np.broadcast_to(np.arange(codes.shape[-1]), codes.shape)
        return np.where(codes < 0, 0.0, self.offsets[np.maximum(codes, 0), columns])

    def _learn_nodes(self, row: int) -> None:
        """Estimate the offset of each node from its results, relative to the level at their time."""
        low = max(row - MEMORY + 1, 0)
        learn_offsets(self.offsets, self.residuals[low:row], self.nodes[low:row])
        if self.first + row < LEAST_BEFORE + LEAST_AFTER:
            # With the first results every node is new; the level is the median over all of them.
            seen = (self.nodes[: row + 1, :, None] == np.arange(len(self.offsets))).any(axis=0).T
            self.offsets[seen & np.isnan(self.offsets)] = 0.0
        low = max(row - LOOK_BACK + 1, 0)
        self.adjusted[low : row + 1] = self.values[low : row + 1] - self._offset_of(self.nodes[low : row + 1])

    # --- a change -----------------------------------------------------------------------------------------------------

    def _change(self, row: int, series: int, after: int) -> Alarm:
        """Start a new segment of a series with its last results; return the change."""
        begin = row - after + 1
        low = max(row - LOOK_BACK + 1, int(self.start[series]) - self.first, 0)
        node = self._changed_node(series, low, begin, row)
        adjusted = self.adjusted[:, series]
        rises = int(np.nanmean(adjusted[begin : row + 1]) > np.nanmean(adjusted[low:begin]))
        index, raised = self.first + begin, self.first + row
        continues = (
            node < 0
            and int(self.last[0, series]) >= 0
            and int(self.last[1, series]) == rises
            and index - int(self.last[0, series]) <= CONTINUES_WITHIN
            and self._is_ramp(series, int(self.last[0, series]) - self.first, begin, row)
        )
        if node >= 0:
            self._shift_node(series, node, low, begin, row)
        else:
            # The parts of a slope have one segment before them.
            before = int(self.last[2, series]) if continues else int(self.start[series])
            self.last[:, series] = index, rises, before
            self.start[series] = index
        self._settle(row, np.array([series]))
        self.residuals[begin : row + 1, series] = self.values[begin : row + 1, series] - self.level[series]
        return Alarm(series, index, raised, node, continues)

    def _changed_node(self, series: int, low: int, begin: int, row: int) -> int:
        """Return the node whose results alone have changed; -1 if others have changed too, or there are no others."""
        values = self.adjusted[low : row + 1, series] - self.level[series]
        is_after = np.arange(low, row + 1) >= begin
        return changed_node(values, self.nodes[low : row + 1, series], is_after, float(self.noise[series]))

    def _shift_node(self, series: int, node: int, low: int, begin: int, row: int) -> None:
        """Move the offset of a node that has changed, also for its results before the change."""
        codes = self.nodes[: row + 1, series]
        own = codes == node
        adjusted = self.adjusted[: row + 1, series]
        is_after = np.arange(row + 1) >= begin
        inside = np.arange(row + 1) >= low
        shift = np.nanmedian(adjusted[own & is_after]) - np.nanmedian(adjusted[own & ~is_after & inside])
        self.offsets[node, series] += shift
        self.residuals[: row + 1, series][own & ~is_after] += shift
        # Results before the change stay at the level; those after it are lowered to it.
        self.values[: row + 1, series][own & ~is_after] += shift
        self.adjusted[: row + 1, series][own & is_after] -= shift

    def _is_ramp(self, series: int, previous: int, begin: int, row: int) -> bool:
        """Whether two changes fit a straight slope better than two steps."""
        # An earlier step in the window would make every slope fit better.
        low = max(previous - 24, int(self.last[2, series]) - self.first, 0)
        values = self.adjusted[low : row + 1, series]
        values = values[np.isfinite(values)]
        if previous <= low or len(values) < row + 1 - low:
            return False
        return fits_ramp(values, (previous - low, begin - low))

    # --- what is not certain yet --------------------------------------------------------------------------------------

    def outlook(self, series: int = 0) -> Outlook | None:
        """Return the most likely change that is not certain yet, None if nothing looks like one."""
        if self.count < LEAST_BEFORE + 1 or not len(self.values):
            return None
        deviates, shifts, after = self._best(len(self.values) - 1, 1)
        deviate, shift, count = float(deviates[series]), float(shifts[series]), int(after[series])
        # One or two results cannot deviate further, and of many windows one always deviates a little.
        least_deviate = SUSPICIOUS[0] if count < LEAST_AFTER else SUSPICIOUS[1]
        if abs(deviate) < least_deviate or abs(shift) < self.least_change:
            return None
        # The deviate grows with the root of the number of results, up to that of the results before.
        before = min(self.count - int(self.start[series]), LOOK_BACK) - count
        weight = count * before / (count + before) * (self.threshold / abs(deviate)) ** 2
        total = weight * before / (before - weight) if weight < before else float("inf")
        needed = max(total - count, LEAST_AFTER - count, 1)
        return Outlook(self.count - count, shift, deviate, int(np.ceil(min(needed, 999.0))))

    @property
    def needed_to_start(self) -> int:
        """Results that are missing before a change can be detected at all."""
        return max(LEAST_BEFORE + LEAST_AFTER - self.count, 0)

    # --- storage ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything as plain JSON, for `from_state`."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {
            "threshold": self.threshold, "least_change": self.least_change, "count": self.count, "first": self.first,
            **{name: [[None if value != value else value for value in line] for line in np.atleast_2d(array).tolist()]
               for name, array in arrays.items()},
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Detector:
        """Return the detector that `state` describes."""
        series = len(state["start"][0])
        detector = cls(series, threshold=state["threshold"], least_change=state["least_change"])
        detector.count, detector.first = state["count"], state["first"]
        for name, (kind, is_row) in _ARRAYS.items():
            array: NDArray[Any] = np.array(state[name], dtype=kind).reshape(-1, series)
            setattr(detector, name, array[0] if is_row else array)
        if len(detector.last) == 2:  # stored by a release without the third row
            detector.last = np.vstack([detector.last, np.full((1, series), -1, np.int64)])
        return detector


_ARRAYS: dict[str, tuple[type, bool]] = {
    "values": (np.float64, False), "adjusted": (np.float64, False), "residuals": (np.float64, False),
    "nodes": (np.int64, False), "start": (np.int64, True), "level": (np.float64, True), "noise": (np.float64, True),
    "offsets": (np.float64, False), "last": (np.int64, False),
}  # fmt: skip
"""Arrays of a detector: their type, and whether they are one row."""
