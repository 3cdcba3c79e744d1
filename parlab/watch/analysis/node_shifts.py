"""What of a series is due to its nodes: the offset of each, and a change of one node alone; pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CUT_OFF = 4.0
"""Standard deviations at which values are cut off."""
LAG = 6
"""Newest results that do not count for level and offsets yet: they may be the beginning of a change."""
LEAST_OF_NODE = 4
"""Results of a node before its offset is known; until then they count for no change."""


def learn_offsets(offsets: Floats, residuals: Floats, codes: Ints) -> None:
    """Set the offset of each node and series, (nodes, series), to the median of its residuals, (rows, series)."""
    for node in range(len(offsets)):
        own = np.where(codes == node, residuals, np.nan)
        enough = np.isfinite(own).sum(axis=0) >= LEAST_OF_NODE
        # Newest results may belong to a change, unless the node is new.
        settled = own[:-LAG]
        use = np.isfinite(settled).sum(axis=0) >= LEAST_OF_NODE
        if use.any():
            offsets[node, use] = np.nanmedian(settled[:, use], axis=0)
        fresh = enough & ~use & np.isnan(offsets[node])
        if fresh.any():
            offsets[node, fresh] = np.nanmedian(own[:, fresh], axis=0)


def changed_node(values: Floats, codes: Ints, is_after: NDArray[np.bool_], noise: float) -> int:
    """Return the node whose results alone have changed; -1 if others have changed too, or there are no others.

    `values` are relative to the level, `codes` the nodes of these results, `is_after` whether they follow the change.
    """
    limit = 2 * CUT_OFF * noise
    values = np.clip(values, -limit, limit)
    shifts: dict[int, tuple[float, float]] = {}
    for node in np.unique(codes[is_after & (codes >= 0)]):
        own = (codes == node) & np.isfinite(values)
        new, old = values[own & is_after], values[own & ~is_after]
        if len(new) and len(old) >= 2:
            error = noise * float(np.sqrt(1.0 / len(new) + 1.0 / len(old)))
            shifts[int(node)] = (float(new.mean() - old.mean()), error)
    if len(shifts) < 2:
        return -1
    node, (largest, _) = max(shifts.items(), key=lambda item: abs(item[1][0]) / item[1][1])
    others = [shift for other, shift in shifts.items() if other != node]
    # The others are at least twice as likely to have stayed as to have moved with this node.
    stayed = all(abs(shift) < abs(shift - largest) for shift, _ in others)
    certain = sum(((shift - largest) / error) ** 2 - (shift / error) ** 2 for shift, error in others) > 6.0
    return node if stayed and certain else -1
