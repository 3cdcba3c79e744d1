"""Strategies that do not use results."""

from __future__ import annotations

import random

from parlab.tuner.space import Candidate, Fit, Launch, Space

from .steps import Steps

_SEED = 1234


def exhaustive(space: Space) -> Steps:
    """Measure all settings that the planner does not rule out, in the order of the axes."""
    return (yield from _all(list(space.candidates), "next of all"))


def shuffled(space: Space) -> Steps:
    """Measure all settings that the planner does not rule out, in a random but reproducible order."""
    order = list(space.candidates)
    random.Random(_SEED).shuffle(order)
    return (yield from _all(order, "drawn at random"))


def _all(order: list[Candidate], why: str) -> Steps:
    tried = [candidate for candidate in order if candidate.fit != Fit.NO]
    for candidate in tried:
        yield Launch(candidate.key, why)
    left_out = len(order) - len(tried)
    return "every setting was tried" + (f"; {left_out} cannot fit and were skipped" if left_out else "")
