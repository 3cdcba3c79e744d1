"""By how much code bases and their releases are slower or faster than the constants say: random effects.

An effect is the posterior mean of log(measured/predicted) in a mixed model with random intercepts for code bases,
releases of these, and publications (Robinson 1991, That BLUP is a good thing). Few or scattered rows leave it near 0
with a wide deviation. A code base that no publication names has the effect 0 and the deviation of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import expm1, log1p, sqrt
from statistics import median
from typing import NamedTuple

import numpy as np

CODE_BASE = 0.01
RELEASE = 0.03
PUBLICATION = 0.06
"""Deviations of the three intercepts, the most likely ones for the medians of all publications."""
_ROW = 0.12
"""Deviation of one row; the median of n rows has _ROW / n^0.5."""
UNKNOWN = sqrt(CODE_BASE**2 + RELEASE**2)
_QUANTILE = 1.2816
"""Deviations within which 80 % of a normal distribution lie."""


class Level(NamedTuple):
    """The effect of a code base, or of one of its releases, on the logarithm of the time."""

    shift: float
    deviation: float


Levels = Mapping[tuple[str, str], Level]
"""Code base and release -> effect; release "": a release that is unknown."""


class Excess(NamedTuple):
    """log(measured/predicted) of one row."""

    code_base: str
    release: str
    publication: str
    log_ratio: float


LEVELS: Levels = {
    ("DeepSpeed", ""): Level(0.001, 0.032),
    ("Megatron-Bridge", ""): Level(0.000, 0.032),
    ("Megatron-Bridge", "26.02"): Level(0.021, 0.028),
    ("Megatron-Bridge", "26.04"): Level(-0.012, 0.026),
    ("Megatron-Bridge", "26.06"): Level(0.022, 0.028),
    ("Megatron-Bridge", "26.08"): Level(-0.025, 0.028),
    ("Megatron-Core", ""): Level(-0.001, 0.032),
    ("Megatron-Core", "0.8"): Level(-0.006, 0.029),
    ("Megatron-Core", "23.09"): Level(-0.002, 0.030),
    ("Megatron-LM", ""): Level(0.001, 0.031),
    ("MosaicML FSDP", ""): Level(0.000, 0.032),
    ("torchtitan", ""): Level(0.002, 0.032),
}
"""Effects in all publications; `make bench-planner` prints them."""


def level_of(levels: Levels, code_base: str, release: str) -> Level:
    """Return the effect of a release, otherwise that of its code base, otherwise none with the deviation of all."""
    return levels.get((code_base, release)) or levels.get((code_base, "")) or Level(0.0, UNKNOWN)


def narrowed(spread: float, level: Level) -> float:
    """Return the width of an interval for a code base of which something is known.

    `spread` is the relative error that 80 % of predictions for unknown code bases stay within.
    """
    known = _QUANTILE**2 * (UNKNOWN**2 - level.deviation**2)
    return expm1(sqrt(max(log1p(spread) ** 2 - known, 0.0)))


def estimated(rows: Iterable[Excess]) -> dict[tuple[str, str], Level]:
    """Return the effects of the code bases and releases of rows; rows without a code base have none.

    A release that is not stated is one of its own in each publication.
    """
    cells: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row.code_base:
            cells[row.code_base, row.release, row.publication].append(row.log_ratio)
    if not cells:
        return {}
    intercepts = [_intercepts(*cell) for cell in cells]
    names = sorted({name for each in intercepts for name in each})
    place = {name: index for index, name in enumerate(names)}
    design = np.zeros((len(cells), len(names)))
    for index, each in enumerate(intercepts):
        design[index, [place[name] for name in each]] = 1.0
    weights = np.array([len(values) / _ROW**2 for values in cells.values()])
    middles = np.array([median(values) for values in cells.values()])
    precision = design.T @ (design * weights[:, None]) + np.diag([_DEVIATIONS[name[0]] ** -2 for name in names])
    covariance = np.linalg.inv(precision)
    means = covariance @ design.T @ (weights * middles)

    def level(*parts: tuple[str, ...], more: float = 0.0) -> Level:
        chosen = [place[part] for part in parts]
        deviation = sqrt(float(covariance[np.ix_(chosen, chosen)].sum()) + more**2)
        return Level(float(means[chosen].sum()), deviation)

    levels = {}
    for base, release, _publication in cells:
        levels[base, ""] = level(("code base", base), more=RELEASE)
        if release:
            levels[base, release] = level(("code base", base), ("release", base, release))
    return levels


_DEVIATIONS = {"code base": CODE_BASE, "release": RELEASE, "publication": PUBLICATION}


def _intercepts(base: str, release: str, publication: str) -> tuple[tuple[str, ...], ...]:
    own = ("release", base, release) if release else ("release", base, "", publication)
    return ("code base", base), own, ("publication", publication)
