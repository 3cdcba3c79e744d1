"""Slopes between two levels, fitted by least squares; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .node_shifts import Floats

TOLERANCE = 1.3
"""A slope has fewer parameters than two steps and may fit worse by this factor."""


class Ramp(NamedTuple):
    """The slope between two levels that fits values best; a step is a slope of length 1."""

    begin: int
    """Last index on the first level."""
    end: int
    """First index on the second level."""
    height: float
    squares: float
    """Sum of the squared residuals."""
    step_squares: float
    """The same for the best step."""


def best_ramp(values: Floats, *, margin: int = 2) -> Ramp:
    """Fit level, slope, level to values by least squares over a grid of places."""
    size = len(values)
    begins = np.arange(margin - 1, max(size - margin, margin), max(size // 48, 1))
    lengths = np.unique(np.concatenate([[1], np.geomspace(2, max(size - 2, 2), 16).astype(int)]))
    begin, length = (grid.ravel() for grid in np.meshgrid(begins, lengths))
    fits = (begin + length <= size - margin) | (length == 1)
    begin, length = begin[fits], length[fits]
    shape = np.clip((np.arange(size) - begin[:, None]) / length[:, None], 0.0, 1.0)
    shape -= shape.mean(axis=1, keepdims=True)
    centred = values - values.mean()
    power = np.maximum((shape * shape).sum(axis=1), 1e-12)
    height = shape @ centred / power
    squares = float(centred @ centred) - height * height * power
    best = int(np.argmin(squares))
    is_step = length == 1
    return Ramp(
        int(begin[best]),
        int(begin[best] + length[best]),
        float(height[best]),
        max(float(squares[best]), 0.0),
        max(float(squares[is_step].min()), 0.0),
    )


def fits_ramp(values: Floats, places: Sequence[int]) -> bool:
    """Whether values fit a straight slope better than steps at some places."""
    parts = np.split(values, places)
    steps = sum(float(((part - np.median(part)) ** 2).sum()) for part in parts if len(part))
    return bool(best_ramp(values).squares <= steps * TOLERANCE)
