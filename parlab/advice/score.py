"""How good advice was: predicted and realised gains, by kind; and replays over published sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from statistics import mean
from typing import NamedTuple

from parlab.planner import Cluster, Job, predict_job

from .rules import SMALLEST_GAIN, SPREADS, is_certain

CLEAR = 0.05
"""A realised gain or loss above this share, and above the noise of the runs, counts for the sign."""
TOP = 3


class Outcome(NamedTuple):
    """A predicted gain and what the changed run showed."""

    kind: str
    predicted: float
    realised: float
    is_certain: bool = True
    """Whether the change saves clearly more than it adds, so that it would be advised."""
    noise: float = 0.0
    """How much the steps of both runs vary, as a share; a smaller gain or loss shows nothing."""

    @property
    def is_clear(self) -> bool:
        return abs(self.realised) > max(CLEAR, self.noise)

    @property
    def is_right(self) -> bool:
        return (self.predicted > 0) == (self.realised > 0)


NOTHING = Outcome("", 0.0, 0.0)


class Record(NamedTuple):
    """The record of a kind of advice, or of all."""

    kind: str
    tried: int
    clear: int
    right: int
    """Of the clear ones."""
    mean_error: float
    """Mean of |predicted - realised|, in shares of the step time."""

    @property
    def unclear(self) -> int:
        """Those within noise, which count neither as right nor as wrong."""
        return self.tried - self.clear

    @property
    def right_pct(self) -> float | None:
        return 100 * self.right / self.clear if self.clear else None


PUBLISHED = (
    Record("micro_batch", 1558, 1376, 1245, 0.163),
    Record("layout", 1242, 1096, 999, 0.153),
    Record("schedule", 84, 54, 51, 0.039),
    Record("more_nodes", 470, 470, 470, 0.046),
    Record("fewer_nodes", 201, 173, 142, 0.135),
)
"""Replays over published measurements: `advice_sign_right_pct` and `advice_nodes_right_pct` of `make bench-advice`."""


def records(outcomes: Iterable[Outcome]) -> list[Record]:
    """Return the record of each kind, the most tried first, and last that of all."""
    by_kind: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_kind.setdefault(outcome.kind, []).append(outcome)
    rows = [_record(kind, members) for kind, members in by_kind.items()]
    everything = [outcome for members in by_kind.values() for outcome in members]
    ordered = sorted(rows, key=lambda record: -record.tried)
    return [*ordered, _record("all", everything)] if everything else []


def _record(kind: str, members: Sequence[Outcome]) -> Record:
    clear = [outcome for outcome in members if outcome.is_clear]
    error = mean(abs(outcome.predicted - outcome.realised) for outcome in members)
    return Record(kind, len(members), len(clear), sum(outcome.is_right for outcome in clear), error)


class Measurement(NamedTuple):
    """A measured point of a published sweep."""

    sweep: str
    job: Job
    cluster: Cluster
    iteration_s: float


_KIND_OF = {
    "micro_batch_size": "micro_batch",
    "recompute": "recompute",
    "zero_stage": "zero",
    "schedule": "schedule",
    "virtual_stages": "schedule",
    "tensor_parallel": "layout",
    "pipeline_parallel": "layout",
    "data_parallel": "layout",
}


class Replay(NamedTuple):
    """Advice for every point of a sweep, judged by its measured neighbours."""

    outcomes: list[Outcome]
    wrong_in_top: dict[str, int]
    """Sweep -> how many of the first three pieces of advice made the step longer, for its worst point."""


def replay(measurements: Sequence[Measurement]) -> Replay:
    """Predict the gain of each step from one measured point to another that differs in one decision."""
    outcomes: list[Outcome] = []
    wrong: dict[str, int] = {}
    sweeps: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        sweeps.setdefault(measurement.sweep, []).append(measurement)
    for name, members in sweeps.items():
        predictions = [predict_job(member.job, member.cluster) for member in members]
        by_start: dict[int, list[Outcome]] = {}
        for i, first in enumerate(members):
            for j, second in enumerate(members):
                kind = change_of(first, second) if i != j else ""
                if kind:
                    predicted = 1 - predictions[j].iteration_s / predictions[i].iteration_s
                    realised = 1 - second.iteration_s / first.iteration_s
                    certain = is_certain(None, predictions[i].parts, predictions[j].parts)
                    by_start.setdefault(i, []).append(Outcome(kind, predicted, realised, certain))
        outcomes += [outcome for chosen in by_start.values() for outcome in chosen]
        if by_start:
            wrong[name] = max(_wrong(neighbours) for neighbours in by_start.values())
    return Replay(outcomes, wrong)


def _wrong(neighbours: Sequence[Outcome]) -> int:
    """Count those of the first three pieces of advice, as `rules.advise` ranks them, that made the step longer."""
    return sum(outcome.realised < -CLEAR for outcome in top(neighbours))


def top(neighbours: Iterable[Outcome]) -> list[Outcome]:
    """Return the changes that a run would be advised first: of each kind the best, by the lower end of the interval."""
    best: dict[str, Outcome] = {}
    for outcome in neighbours:
        is_advised = outcome.is_certain and outcome.predicted >= SMALLEST_GAIN
        if is_advised and outcome.predicted > best.get(outcome.kind, NOTHING).predicted:
            best[outcome.kind] = outcome
    return sorted(best.values(), key=lambda outcome: -(outcome.predicted - SPREADS[outcome.kind]))[:TOP]


def change_of(first: Measurement, second: Measurement) -> str:
    """Return the kind of change between two points; empty if they differ in more than one decision, or in the work."""
    if first.cluster != second.cluster:
        return ""
    changed = {field.name for field in fields(Job) if getattr(first.job, field.name) != getattr(second.job, field.name)}
    kinds = {_KIND_OF.get(name, "") for name in changed}
    return kinds.pop() if len(kinds) == 1 else ""
