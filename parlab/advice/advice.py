"""A piece of advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.advice.waterfalls.terms import TERMS

from .adjacent_settings import KINDS

OTHER_PARTS = {
    "memory": "Memory over time",
    "latency": "Latency of messages",
    "trials": "Steps of the trials",
    "search": "Border of the search",
}
"""What advice comes from besides the terms of a waterfall."""


class Advice(NamedTuple):
    """A change with its predicted gain."""

    kind: str
    title: str
    gain: float
    """Share of the step time that the change saves (0.1: the step takes 10 % less)."""
    low: float
    high: float
    """Interval of the gain that 80 % of such predictions stay within."""
    part: str
    """Key of the term that it comes from, or of OTHER_PARTS."""
    rule: str
    evidence: str
    settings: Mapping[str, Any]
    """Fields of the configuration with their new values; empty: not a setting."""
    own_cost: str = ""
    """What it costs; empty: what its kind costs."""

    @property
    def cost(self) -> str:
        return self.own_cost or KINDS[self.kind].cost

    @property
    def risk(self) -> str:
        return KINDS[self.kind].risk

    @property
    def saves_time(self) -> bool:
        """Whether it shortens the step; memory that grows ends the run instead."""
        return bool(self.gain or self.low or self.high)

    @property
    def part_title(self) -> str:
        return TERMS[self.part].title if self.part in TERMS else OTHER_PARTS[self.part]

    def predicted_s(self, step_time_s: float) -> float:
        """Return the step time after the change (s)."""
        return step_time_s * (1 - self.gain)
