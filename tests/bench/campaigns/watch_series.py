"""Simulated series of results with known changes, by seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LENGTH = 240
KINDS = ("plain", "heavy tails", "bimodal nodes", "outliers", "drift", "unknown nodes")
"""Noise of repeats; the same with heavy tails; labelled nodes of different speed; runs that were disturbed; a slope
instead of a step; two speeds without a label."""


class Truth(NamedTuple):
    """A change that was made: its first and last result (equal for a step) and its relative size."""

    first: int
    last: int
    size: float


class Simulated(NamedTuple):
    """Positive results, the node of each, and the changes in them."""

    kind: str
    values: NDArray[np.float64]
    nodes: NDArray[np.int64]
    truths: list[Truth]


def simulated(seed: int, kind: str, size: float, *, length: int = LENGTH) -> Simulated:
    """Return a series with up to two changes of a relative size, none if it is 0.

    The relative deviation of repeats is drawn between 0.3 and 1.5 %, as repeats of trainings on one machine have it.
    """
    draw = np.random.default_rng([seed, KINDS.index(kind), round(size * 1000)])
    noise = draw.uniform(0.003, 0.015)
    values = draw.standard_t(4, length) * noise / np.sqrt(2) if kind == "heavy tails" else draw.normal(0, noise, length)
    nodes = np.zeros(length, np.int64)
    if kind in ("bimodal nodes", "unknown nodes"):
        count = int(draw.integers(2, 5)) if kind == "bimodal nodes" else 2
        own = draw.integers(0, count, length)
        spread = draw.uniform(0.01, 0.08, count) if kind == "bimodal nodes" else np.array([0.0, 0.02])
        values += spread[own]
        nodes = own if kind == "bimodal nodes" else nodes
    if kind == "outliers":
        hit = draw.random(length) < 0.02
        values += np.where(hit, draw.uniform(0.05, 0.4, length), 0.0)
    truths: list[Truth] = []
    if size:
        places = sorted(draw.integers(30, length - 30, 2)) if draw.random() < 0.5 else [draw.integers(30, length - 30)]
        if len(places) == 2 and places[1] - places[0] < 40:
            places = places[:1]
        for place in map(int, places):
            step = np.log1p(size) * (1 if draw.random() < 0.7 else -1)
            slope = int(draw.integers(10, 40)) if kind == "drift" else 1
            slope = min(slope, length - place)
            values += step * np.clip((np.arange(length) - place + 1) / slope, 0, 1)
            truths.append(Truth(place, place + slope - 1, float(np.expm1(step))))
    return Simulated(kind, 0.1 * np.exp(values), nodes, truths)
