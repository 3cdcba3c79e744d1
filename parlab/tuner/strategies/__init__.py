"""Strategies: the order in which a space is tried, and when to stop.

A strategy is a generator: it yields the next launch, receives its observation, and returns why it stopped. It has no
other state, so an interrupted study continues by replaying the existing observations on a new generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parlab.tuner.space import Launch, Observation, Space

from .by_hand import by_hand
from .deepspeed import deepspeed
from .orders import exhaustive, shuffled
from .planned import planned
from .steps import Steps

Strategy = Callable[[Space], Steps]

STRATEGIES: Mapping[str, Strategy] = {
    "planned": planned,
    "deepspeed": deepspeed,
    "random": shuffled,
    "exhaustive": exhaustive,
}

__all__ = ["STRATEGIES", "Steps", "Strategy", "advance", "by_hand", "replay"]


def advance(strategy: Strategy, space: Space, observations: Sequence[Observation]) -> Launch | str:
    """Return the next launch of a strategy, given all observations of the space, or why it stops.

    Existing observations of a setting are reused, so that no setting is launched twice.
    """
    by_key = {observation.key: observation for observation in observations}
    steps = strategy(space)
    try:
        launch = next(steps)
        while launch.key in by_key:
            launch = steps.send(by_key[launch.key])
    except StopIteration as end:
        return str(end.value)
    return launch


def replay(strategy: Strategy, space: Space, measured: Mapping[str, Observation]) -> tuple[list[Observation], str]:
    """Return the launches of a strategy in a completely measured space, in order, and why it stopped."""
    done: list[Observation] = []
    steps = strategy(space)
    try:
        launch = next(steps)
        while True:
            observation = measured[launch.key]
            done.append(observation)
            launch = steps.send(observation)
    except StopIteration as end:
        return done, str(end.value)
