"""What a study found, in the shape in which results of autotuning are published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from django.utils import timezone

from parlab.charts import studies as charts
from parlab.lab.models import Attempt, Run
from runners.protocol import RunState

from .models import Study, Trial

ROLES = {
    Trial.Role.BASELINE: "baseline",
    Trial.Role.HAND_TUNED: "hand-tuned",
    Trial.Role.SEARCH: "tuned",
}
_TUNER_TIMERS = ("forward-compute", "backward-compute", "optimizer", "forward", "backward", "step")


class Tried(NamedTuple):
    """A trial with its numbers; None where it has none."""

    trial: Trial
    run: Run
    value: float | None
    """By the objective, from end to end."""
    tuner_value: float | None
    """The same, counting only the passes and the update, as DeepSpeed's autotuner does."""


class Compared(NamedTuple):
    """One column of the comparison."""

    name: str
    best: Tried | None
    experiments: int


class SpaceRow(NamedTuple):
    """One row of the summary by tuning space."""

    tuning_space: str
    num_experiments: int
    best: Tried | None


@dataclass(frozen=True)
class Result:
    """Everything that the page and the report of a study show."""

    study: Study
    tried: Sequence[Tried]
    compared: Sequence[Compared]
    spaces: Sequence[SpaceRow]
    """By tuning space, then `global`."""
    environment: Mapping[str, str]
    tuning_time: timedelta
    """From the first launch of the search to its last end, without what was measured before."""

    @property
    def unit(self) -> str:
        return unit(self.study.objective)

    @property
    def best(self) -> Tried | None:
        return self.compared[-1].best

    def improvement_over(self, name: str) -> float | None:
        """Tuned value over that of another column; None where one of them is missing."""
        other = next((column.best for column in self.compared if column.name == name), None)
        if other is None or self.best is None or not other.value or not self.best.value:
            return None
        return self.best.value / other.value

    @property
    def best_so_far(self) -> list[float | None]:
        """After each trial of the search, the best value until then."""
        best: float | None = None
        course = []
        for each in self.search:
            best = max(filter(None, (best, each.value)), default=None)
            course.append(best)
        return course

    @property
    def search(self) -> list[Tried]:
        return [each for each in self.tried if each.trial.role == Trial.Role.SEARCH]


def unit(objective: str) -> str:
    """Unit of the values of an objective."""
    return {"latency": "iterations/s", "cost": "samples per device second"}.get(objective, "samples/s")


def result_of(study: Study) -> Result:
    """Read what a study has found so far."""
    trials = list(study.trials.select_related("run").order_by("number"))
    tried = [_tried(study, trial) for trial in trials]
    compared = [_compared(role, name, tried) for role, name in ROLES.items()]
    search = [each for each in tried if each.trial.role == Trial.Role.SEARCH]
    return Result(
        study,
        tried,
        [column for column in compared if column.experiments or column.name == "tuned"],
        _by_space(search),
        _environment([each.run for each in tried]),
        _tuning_time(search),
    )


def _tried(study: Study, trial: Trial) -> Tried:
    run = trial.run
    if run.run_state != RunState.FINISHED or not run.step_time_s:
        return Tried(trial, run, None, None)
    seconds = run.step_time_s
    inside = _inside_s(run.summary)
    return Tried(trial, run, _value(study, run, seconds), _value(study, run, inside) if inside else None)


def _value(study: Study, run: Run, seconds: float) -> float:
    if study.objective == "latency":
        return 1 / seconds
    samples = float(run.resolved["train"]["global_batch_size"])
    parallel = run.resolved["parallel"]
    ranks = parallel["data_parallel_size"] * parallel["tensor_parallel_size"] * parallel["pipeline_parallel_size"]
    return samples / seconds / (ranks if study.objective == "cost" else 1)


def _inside_s(summary: Mapping[str, Any]) -> float | None:
    """Seconds of a step inside forward, backward and update; None where a run was not timed so."""
    timers = summary.get("timers_s") or {}
    parts = [timers[name].get("median") for name in _TUNER_TIMERS if name in timers]
    return float(sum(parts)) if len(parts) >= 2 and all(parts) else None


def _best(tried: Iterable[Tried]) -> Tried | None:
    return max((each for each in tried if each.value), key=lambda each: each.value or 0, default=None)


def _compared(role: Trial.Role, name: str, tried: Sequence[Tried]) -> Compared:
    mine = [each for each in tried if each.trial.role == role]
    return Compared(name, _best(mine), len(mine))


def _by_space(search: Sequence[Tried]) -> list[SpaceRow]:
    names = sorted({each.trial.tuning_space for each in search})
    groups = {name: [each for each in search if each.trial.tuning_space == name] for name in names}
    rows = [SpaceRow(name, len(group), _best(group)) for name, group in groups.items()]
    return [*rows, SpaceRow("global", len(search), _best(search))]


def _tuning_time(search: Sequence[Tried]) -> timedelta:
    mine = [each for each in search if not each.trial.reused]
    if not mine:
        return timedelta(0)
    ends = [each.run.ended_at or timezone.now() for each in mine]
    return max(ends) - min(each.trial.created_at for each in mine)


def _environment(runs: Sequence[Run]) -> dict[str, str]:
    """Hardware and versions of the first trial that has told them."""
    attempts = Attempt.objects.filter(run__in=[run.pk for run in runs]).exclude(environment={}).select_related("node")
    attempt = attempts.order_by("pk").first()
    if attempt is None:
        return {}
    said = attempt.environment
    lines = {"node": attempt.node.name if attempt.node else "", "host": str(said.get("hostname", ""))}
    gpus = said.get("gpus") or []
    lines["devices"] = f"{len(gpus)} x {gpus[0].get('name', 'GPU')}" if gpus else str(said.get("cpu_model") or "CPU")
    packages = said.get("packages")
    lines |= {name: str(version) for name, version in packages.items()} if isinstance(packages, Mapping) else {}
    return {name: text for name, text in lines.items() if text}


def described_trials(result: Result) -> list[charts.Trial]:
    """The launches of the search as the figures see them."""
    return [
        charts.Trial(
            each.trial.number,
            each.trial.key,
            each.run.state,
            each.trial.tuning_space,
            each.run.resolved["train"]["micro_batch_size"],
            _accumulation(each.run),
            each.value,
            each.trial.expected,
            each.trial.why,
        )
        for each in result.search
    ]


def _accumulation(run: Run) -> int:
    train, parallel = run.resolved["train"], run.resolved["parallel"]
    passes = train["global_batch_size"] // (train["micro_batch_size"] * parallel["data_parallel_size"])
    return max(1, int(passes))
