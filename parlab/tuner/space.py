"""The space of a study: settings with their predictions, and the observations of those that ran."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

SURE = 0.95
"""Probability of fitting from which on a setting counts as one that fits; below 1 - SURE it does not."""
Objective = Literal["throughput", "latency", "cost"]


class Fit(StrEnum):
    """Whether a setting is predicted to fit into memory."""

    YES = "fits"
    UNSURE = "may fit"
    NO = "does not fit"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting of a space.

    `features` describe it to the surrogate: one number per axis or physical quantity, in the same order for all of a
    space, scaled so that a difference of 1 matters (a doubling, another ZeRO stage).
    """

    key: str
    """Name within the space, like `z1_gas2_tmbspg8`."""
    samples: float
    """Sequences of one iteration."""
    devices: int = 1
    tuning_space: str = "all"
    """Group of the setting on the result page: `z0` to `z3`, or the layout."""
    micro_batch_size: int = 1
    accumulation: int = 1
    features: tuple[float, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    """Axis values of its point of the sweep."""
    predicted_s: float | None = None
    """Planned seconds per iteration, before any measurement of this study."""
    predicted_bytes: float | None = None
    memory_limit_bytes: float | None = None
    memory_deviation: float = 0.036
    """Standard deviation of the logarithm of the needed bytes around that of `predicted_bytes`."""

    def value(self, objective: Objective, step_time_s: float) -> float:
        """Return the objective of a step time: samples/s, iterations/s or samples per device second; more is better."""
        if objective == "latency":
            return 1 / step_time_s
        return self.samples / step_time_s / (self.devices if objective == "cost" else 1)

    @property
    def room(self) -> float | None:
        """Return log(limit/predicted bytes): above 0 if it is predicted to fit; None without a prediction."""
        if not self.predicted_bytes or not self.memory_limit_bytes:
            return None
        return math.log(self.memory_limit_bytes / self.predicted_bytes)

    @property
    def fits_probability(self) -> float:
        """Return the probability that the setting does not run out of memory; 1 without a prediction."""
        if self.room is None:
            return 1.0
        return 0.5 * math.erfc(-self.room / (self.memory_deviation * math.sqrt(2)))

    @property
    def fit(self) -> Fit:
        probability = self.fits_probability
        return Fit.YES if probability >= SURE else Fit.UNSURE if probability > 1 - SURE else Fit.NO


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of one launch of a candidate; `step_time_s` is set only if it finished."""

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
    """The next candidate that a strategy measures, and why."""

    key: str
    why: str
    expected: float | None = None
    """Objective that the strategy predicts; None: the plan's prediction."""


@dataclass(frozen=True, slots=True)
class Past:
    """A measurement of another workload on the same type of machines, which shows the error of the planner there."""

    features: tuple[float, ...]
    """As those of the candidates, plus one for each quantity in which workloads differ."""
    planned_over_measured: float
    """Planned seconds over measured seconds."""


@dataclass(frozen=True)
class Space:
    """All candidates, the objective, and earlier measurements on such machines."""

    candidates: Sequence[Candidate]
    objective: Objective = "throughput"
    past: Sequence[Past] = ()

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError("space: none of its points can run; see the problem of each point, and change an axis")
        lengths = {len(c.features) for c in self.candidates} | {len(past.features) for past in self.past}
        if len(lengths) > 1:
            raise ValueError(
                f"candidates have different numbers of features: {sorted(lengths)}; use the same features for all"
            )

    @cached_property
    def by_key(self) -> dict[str, Candidate]:
        return {candidate.key: candidate for candidate in self.candidates}

    def score(self, observation: Observation) -> float | None:
        """Return the objective of a measurement; None if it has no time."""
        if not observation.ran or observation.step_time_s is None:
            return None
        return self.by_key[observation.key].value(self.objective, observation.step_time_s)

    def best(self, observations: Sequence[Observation]) -> Observation | None:
        """Return the best measurement, the earlier of two equal ones."""
        ran = [observation for observation in observations if self.score(observation) is not None]
        return max(ran, key=lambda observation: self.score(observation) or -math.inf, default=None)

    def in_tuning_space(self, name: str) -> Iterator[Candidate]:
        return (candidate for candidate in self.candidates if candidate.tuning_space == name)

    @cached_property
    def tuning_spaces(self) -> list[str]:
        """Names, in the order of their first candidate."""
        return list(dict.fromkeys(candidate.tuning_space for candidate in self.candidates))
