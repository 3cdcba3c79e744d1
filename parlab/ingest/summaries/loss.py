"""Rules for the loss: not finite, diverging, spiking. Pure: steps and values -> the part `loss` of a summary.

The rules look at the values that one rank logged, in the order of their steps. They are made to stay silent on healthy
training: small batches, warm-up, plateaus and noise of any size. What they need is a level and a scale, and both are
medians, so that a few outliers change neither.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LARGEST = 1e18
"""Larger values count as not finite: sums of them would overflow."""
MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""

BLOCKS = 50
"""Blocks into which the values are divided for the level of the loss; each is represented by its median."""
FEWEST_IN_BLOCK = 4
LASTING_BLOCKS = 3
"""Blocks at the end that all have to be above the level before a rise counts as lasting."""
FEWEST_VALUES = 6 * FEWEST_IN_BLOCK
"""Values from which divergence is judged: three blocks for the level and three for the rise."""
RISE_OF_LEVEL = 0.25
"""Share of the lowest level that the loss has to rise by. Evaluations of healthy runs on changing data vary by less."""
RISE_OF_PROGRESS = 0.25
"""Share of what training had gained that has to be lost again."""
RISE_SIGMAS = 6.0
"""Rise in standard deviations of single values, so that noise of small batches is no rise."""

WINDOW = 32
"""Values before a spike that give its level and its scale."""
SPIKE_SIGMAS = 10.0
SPIKE_OF_LEVEL = 0.2
"""Share of the level that a spike has to exceed it by."""
MOSTLY = 0.95
"""Share of values above 0 from which losses are judged by their logarithms; others count as the smallest of them."""
RECOVERED_SIGMAS = 4.0
RECOVERS_WITHIN = 64
"""Values within which a spike returns to its level; a rise that lasts longer is a divergence, or a new level."""
DRAWN = 40
"""Points of the curve that pictures of the evidence are drawn from."""


class Series(NamedTuple):
    """The loss that one rank logged."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def is_finite(self) -> NDArray[np.bool_]:
        return np.abs(self.values) < LARGEST  # also false for NaN

    @property
    def finite(self) -> Series:
        is_finite = self.is_finite
        return Series(self.steps[is_finite], self.values[is_finite])


def loss_of(steps: NDArray[np.int64], values: NDArray[np.float64]) -> dict[str, Any]:
    """Return first and last loss, and what the rules find; without `last` if the last value is not finite."""
    series = Series(steps, values)
    if not len(values):
        return {}
    is_finite = series.is_finite
    ends = {"first": 0, "last": -1}
    loss: dict[str, Any] = {name: float(values[at]) for name, at in ends.items() if is_finite[at]}
    finite = series.finite
    rise = diverged(finite)
    # A loss that has diverged jumps, too: its spikes are no further news.
    return loss | not_finite(series) | (rise or spikes(finite))


def not_finite(series: Series) -> dict[str, Any]:
    """Return the number of values that are NaN or infinite, the step of the first, and the finite values before it.

    One such value is enough: after an update with NaN gradients all weights are NaN. Lightning's `check_finite` and
    Composer's `NaNMonitor` stop at the first one, too.
    """
    bad = np.flatnonzero(~series.is_finite)
    if not len(bad):
        return {}
    before = series.values[max(0, bad[0] - 8) : bad[0]]
    return {
        "not_finite": len(bad),
        "first_not_finite": int(series.steps[bad[0]]),
        "before": [float(value) for value in before],
    }


def diverged(series: Series) -> dict[str, Any]:
    """Return that the loss rises clearly and lastingly above its earlier level.

    The values are divided into at most BLOCKS blocks of equal length, b_1 to b_n their medians. The level is the lowest
    block before the last LASTING_BLOCKS. The loss has diverged if each of the last LASTING_BLOCKS exceeds
    level + max(RISE_OF_LEVEL |level|, RISE_OF_PROGRESS (b_1 - level), RISE_SIGMAS s) with s the scale of single values
    around the medians of their blocks, up to the lowest: a loss that has diverged is noisy, too. A loss that begins at
    0 within its noise and has never fallen is not judged: that of GRPO is the divergence from the first policy, and
    grows in healthy training.

    Learning-rate finders (fastai, Lightning) stop at four times the best smoothed loss, and Megatron-LM calls ten times
    the largest loss spiky. A language model whose loss of 2.5 returns to 7 reaches neither, although all it had learnt
    is lost; therefore the rise is measured against the level and against the progress.
    """
    count = len(series.values)
    if count < FEWEST_VALUES:
        return {}
    size = max(FEWEST_IN_BLOCK, count // BLOCKS)
    # The rest that fills no block is the beginning, where the loss falls.
    used = series.values[count % size :].reshape(-1, size)
    medians = np.median(used, axis=1)
    if len(medians) < 2 * LASTING_BLOCKS:
        return {}
    earlier, last = medians[:-LASTING_BLOCKS], medians[-LASTING_BLOCKS:]
    at = int(np.argmin(earlier))
    level, scale = float(earlier[at]), _scale((used - medians[:, None])[: max(at + 1, LASTING_BLOCKS)])
    if at == 0 and level <= RISE_SIGMAS * scale:
        return {}
    progress = max(0.0, float(medians[0]) - level)
    rise = max(RISE_OF_LEVEL * abs(level), RISE_OF_PROGRESS * progress, RISE_SIGMAS * scale)
    if rise <= 0.0 or not bool(np.all(last > level + rise)):
        return {}
    above = np.flatnonzero(medians[at:] <= level + rise)[-1] + at + 1
    steps = series.steps[count % size :]
    found = {
        "step": int(steps[above * size]),
        "level": level,
        "reached": float(last[-1]),
        "threshold": level + rise,
        "curve": _curve(steps[::size], medians),
    }
    return {"diverged": found}


def spikes(series: Series) -> dict[str, Any]:
    """Return the spikes of the loss: single rises far outside of its noise that recover.

    Value i is a spike if it exceeds the median m of the WINDOW values before it by SPIKE_SIGMAS robust standard
    deviations s and by SPIKE_OF_LEVEL |m|, and if the loss is below m + RECOVERED_SIGMAS s again within
    RECOVERS_WITHIN values. s is 1.4826 times the median absolute deviation, that of the window or the median of those
    of all windows, whichever is larger. Losses above 0 are judged by their logarithms, because the loss of small
    batches has a heavy tail upwards.

    PaLM (Chowdhery et al. 2022, section 5.1) describes such spikes. Lightning's `SpikeDetection` and LLM Foundry's
    `KillLossSpike` take twice the mean of a window, FlagScale 1.2 times the last value: the first misses a spike from
    2.5 to 4, the second calls noise of small batches a spike. Therefore the noise is measured.
    """
    if len(series.values) < 2 * WINDOW:
        return {}
    above_0 = series.values[series.values > 0]
    is_positive = len(above_0) >= MOSTLY * len(series.values)
    values = np.log(np.maximum(series.values, above_0.min())) if is_positive else series.values
    # Windows begin at multiples of half their length: as good as one per value, and linear in their number.
    half = WINDOW // 2
    starts = np.arange(0, len(values) - WINDOW + 1, half)
    windows = values[starts[:, None] + np.arange(WINDOW)]
    medians = np.median(windows, axis=1)
    scales = MAD_TO_SIGMA * np.median(np.abs(windows - medians[:, None]), axis=1)
    scales = np.maximum(scales, np.median(scales))
    places = np.arange(WINDOW, len(values))
    window = np.minimum((places - WINDOW) // half, len(starts) - 1)
    level, scale = medians[window], scales[window]
    excess = values[places] - level
    least = np.log1p(SPIKE_OF_LEVEL) if is_positive else SPIKE_OF_LEVEL * np.abs(level)
    is_high = (excess > SPIKE_SIGMAS * scale) & (excess > least) & (scale > 0)
    tops = _tops(values, places[is_high], level[is_high], scale[is_high])
    if not tops:
        return {}
    place, height, sigmas = max(tops, key=lambda top: top[2])
    found = {
        "count": len(tops),
        "step": int(series.steps[place]),
        "value": float(series.values[place]),
        "level": float(np.exp(height)) if is_positive else float(height),
        "sigmas": float(sigmas),
        "curve": _around(series, place),
    }
    return {"spikes": found}


def _tops(
    values: NDArray[np.float64], places: NDArray[np.int64], levels: NDArray[np.float64], scales: NDArray[np.float64]
) -> list[tuple[int, float, float]]:
    """Return (place, level, sigmas) of the highest value of each spike that recovers."""
    tops: list[tuple[int, float, float]] = []
    until = -1
    for place, level, scale in zip(places.tolist(), levels.tolist(), scales.tolist(), strict=True):
        if place <= until:
            continue
        after = values[place : place + RECOVERS_WITHIN + 1]
        below = np.flatnonzero(after < level + RECOVERED_SIGMAS * scale)
        if not len(below):
            # It has not recovered yet, or is a new level: the windows follow it.
            until = place + RECOVERS_WITHIN
            continue
        top = place + int(np.argmax(after[: below[0]]))
        tops.append((top, level, (float(values[top]) - level) / scale))
        until = place + int(below[0])
    return tops


def _scale(residuals: NDArray[np.float64]) -> float:
    return float(MAD_TO_SIGMA * np.median(np.abs(residuals)))


def _curve(steps: NDArray[np.int64], values: NDArray[np.float64]) -> list[list[float]]:
    chosen = np.unique(np.linspace(0, len(values) - 1, min(DRAWN, len(values))).astype(int))
    return [[int(steps[at]), float(values[at])] for at in chosen]


def _around(series: Series, place: int) -> list[list[float]]:
    first = max(0, place - DRAWN // 2)
    part = slice(first, first + DRAWN)
    return [[int(step), float(value)] for step, value in zip(series.steps[part], series.values[part], strict=True)]
