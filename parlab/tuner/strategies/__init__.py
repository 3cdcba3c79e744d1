"""In which order a space is tried, and when enough is known.

A strategy is a generator: it yields the next launch, is sent what came of it, and returns why it stops. It keeps
nothing anywhere else, so a study that was interrupted goes on by telling a new generator what is known already.
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


def advance(strategy: Strategy, space: Space, known: Sequence[Observation]) -> Launch | str:
    """What a strategy wants next, given all that was measured in the space; a text when it stops, and says why.

    A measurement that somebody else made of the same setting is taken as it is: nothing is launched twice.
    """
    by_key = {observation.key: observation for observation in known}
    steps = strategy(space)
    try:
        wish = next(steps)
        while wish.key in by_key:
            wish = steps.send(by_key[wish.key])
    except StopIteration as end:
        return str(end.value)
    return wish


def replay(strategy: Strategy, space: Space, measured: Mapping[str, Observation]) -> tuple[list[Observation], str]:
    """What a strategy would have launched in a space that was measured as a whole, in order, and why it stopped."""
    done: list[Observation] = []
    steps = strategy(space)
    try:
        wish = next(steps)
        while True:
            observation = measured[wish.key]
            done.append(observation)
            wish = steps.send(observation)
    except StopIteration as end:
        return done, str(end.value)
