"""What a study searches: settings with what the planner says of each, and what became of those that were tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

Objective = Literal["throughput", "latency", "cost"]


class Fit(StrEnum):
    """What the planner says of a setting's memory."""

    YES = "fits"
    UNSURE = "may fit"
    NO = "does not fit"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting of a space.

    `features` describe it to the surrogate: one number for each axis or physical quantity, the same for all of a space,
    scaled so that a step of 1 is a step that matters (a doubling, another ZeRO stage).
    """

    key: str
    """Names it within the space, like `z1_gas2_tmbspg8`."""
    samples: float
    """Sequences of one iteration."""
    devices: int = 1
    tuning_space: str = "all"
    """Group that the result page sums up: `z0` to `z3`, or the layout."""
    micro_batch_size: int = 1
    accumulation: int = 1
    features: tuple[float, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    """Axis values, as a point of a sweep has them."""
    predicted_s: float | None = None
    """Seconds per iteration as planned, before anything of this study was measured."""
    predicted_bytes: float | None = None
    memory_limit_bytes: float | None = None
    memory_error: float = 0.06
    """Relative error of `predicted_bytes`: between limit / (1 + error) and limit · (1 + error) nobody knows."""

    def value(self, objective: Objective, step_time_s: float) -> float:
        """What the objective makes of a time: samples/s, iterations/s, or samples per device second; more is better."""
        if objective == "latency":
            return 1 / step_time_s
        return self.samples / step_time_s / (self.devices if objective == "cost" else 1)

    @property
    def fit(self) -> Fit:
        if self.predicted_bytes is None or self.memory_limit_bytes is None:
            return Fit.YES
        if self.predicted_bytes * (1 + self.memory_error) <= self.memory_limit_bytes:
            return Fit.YES
        return Fit.UNSURE if self.predicted_bytes <= self.memory_limit_bytes * (1 + self.memory_error) else Fit.NO


@dataclass(frozen=True, slots=True)
class Observation:
    """What one launch of a candidate gave; `step_time_s` only of one that finished."""

    key: str
    state: Literal["finished", "oom", "failed"]
    step_time_s: float | None = None
    noise: float = 0.0
    """Relative standard error of `step_time_s`, from the spread of its steps."""

    @property
    def ran(self) -> bool:
        return self.state == "finished" and self.step_time_s is not None and self.step_time_s > 0


@dataclass(frozen=True, slots=True)
class Launch:
    """A strategy's wish: measure this candidate, for this reason."""

    key: str
    why: str
    expected: float | None = None
    """Value by the objective that the strategy expects; None where it expects what the plan says."""


@dataclass(frozen=True, slots=True)
class Past:
    """A measurement of another workload on the same kind of machines, which says how far the planner is off there."""

    features: tuple[float, ...]
    """As those of the space's candidates, with one more for each quantity that tells workloads apart."""
    planned_over_measured: float
    """Planned seconds over measured seconds."""


@dataclass(frozen=True)
class Space:
    """All settings that may be tried, what is sought, and what earlier measurements teach about such settings."""

    candidates: Sequence[Candidate]
    objective: Objective = "throughput"
    past: Sequence[Past] = ()

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError("space: none of its points can run; see the reason of each, and change an axis")
        lengths = {len(c.features) for c in self.candidates} | {len(known.features) for known in self.past}
        if len(lengths) > 1:
            raise ValueError(f"features of {sorted(lengths)} numbers do not describe one space; describe all alike")

    @cached_property
    def by_key(self) -> dict[str, Candidate]:
        return {candidate.key: candidate for candidate in self.candidates}

    def score(self, observation: Observation) -> float | None:
        """Value of a measurement by the objective; None where there is none."""
        if not observation.ran or observation.step_time_s is None:
            return None
        return self.by_key[observation.key].value(self.objective, observation.step_time_s)

    def best(self, observations: Sequence[Observation]) -> Observation | None:
        """The best measurement; the earlier of two equals."""
        ran = [observation for observation in observations if self.score(observation) is not None]
        return max(ran, key=lambda observation: self.score(observation) or -math.inf, default=None)

    def in_tuning_space(self, name: str) -> Iterator[Candidate]:
        return (candidate for candidate in self.candidates if candidate.tuning_space == name)

    @cached_property
    def tuning_spaces(self) -> list[str]:
        """Names in the order in which they first come."""
        return list(dict.fromkeys(candidate.tuning_space for candidate in self.candidates))
