"""Series: size on disk, and time to read the curves of a figure."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlab.series import store
from parlab.series.columns import Columns
from tests.bench.database import PointRow, insert_rows, new_attempt, used_bytes
from tests.bench.result import Result, Scale, median_s

MAX_POINTS = 1_000
"""Points of a curve in a figure."""
APPEND_POINTS = 500
"""Points that a batch appends to a series: chunks grow in steps, as during a run."""


def bytes_per_point(scale: Scale) -> Result:
    """Measure the bytes per point of a loss, a counter and a timer, with indexes, against one row per point."""
    count = scale.of(100_000)
    random = np.random.default_rng(0)
    kinds = {
        "loss": np.round(random.normal(5, 0.1, count), 6),
        "tokens": np.arange(count) * 16_384.0,
        "timer/optimizer": np.round(random.normal(0.5, 0.05, count), 3),
    }
    attempt = new_attempt()
    before = used_bytes()
    for first in range(0, count, APPEND_POINTS):
        part = slice(first, first + APPEND_POINTS)
        store.append(attempt.pk, {(kind, 0): columns_of(values).take(part) for kind, values in kinds.items()})
    between = used_bytes()
    for kind, values in kinds.items():
        insert_rows(attempt.pk, kind, 0, columns_of(values))
    value = (between - before) / (3 * count)
    other = (used_bytes() - between) / (3 * count)
    return Result(value, f"{other:.1f} with a row per point", 1, other / value)


def read_series(scale: Scale) -> Result:
    """Measure reading a series of a million points, reduced to the thousand that a figure shows."""
    return _reading([new_attempt().pk], scale.of(1_000_000), scale.repeats(7))


def read_20_runs(scale: Scale) -> Result:
    """Measure reading the curves of 20 runs with 100,000 points each for one figure."""
    return _reading([new_attempt().pk for _ in range(20)], scale.of(100_000), scale.repeats(7))


def _reading(attempts: list[int], count: int, repeats: int) -> Result:
    random = np.random.default_rng(0)
    for attempt in attempts:
        columns = columns_of(np.round(11 * np.arange(1, count + 1) ** -0.1 + random.normal(0, 0.05, count), 6))
        store.append(attempt, {("loss", 0): columns})
    insert_rows(attempt, "loss", 0, columns)
    value = median_s(lambda: _read_all(_read, attempts), repeats) * 1e3
    # Hundreds of times as slow: once, for one of the runs, is enough.
    other = median_s(lambda: _read_all(_read_rows, [attempt]), 1) * 1e3 * len(attempts)
    return Result(value, f"{other:,.0f} with a row per point", repeats, other / value)


def _read(attempt: int) -> Columns:
    return store.read(attempt, "loss", rank=0, max_points=MAX_POINTS)


def _read_rows(attempt: int) -> Columns:
    rows = PointRow._default_manager.filter(attempt_id=attempt, metric="loss", rank=0).order_by("step")
    steps, times, values = zip(*rows.values_list("step", "time", "value"), strict=True)
    return Columns(np.array(steps), np.array(times), np.array(values)).thinned(MAX_POINTS)


def _read_all(read: Callable[[int], Columns], attempts: list[int]) -> None:
    for attempt in attempts:
        points = len(read(attempt))
        if not 2 <= points <= MAX_POINTS:
            raise RuntimeError(f"{read.__name__} returned {points} points; expected 2 to {MAX_POINTS}")


def columns_of(values: NDArray[np.floating[Any]]) -> Columns:
    """Return points with steps from 1 on and times about 0.3 s apart, in milliseconds as printed."""
    took = np.random.default_rng(1).normal(0.3, 0.01, len(values))
    return Columns(np.arange(1, len(values) + 1), np.round(1.76e9 + np.cumsum(took), 3), values.astype(np.float64))
