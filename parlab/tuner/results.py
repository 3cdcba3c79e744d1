"""Results of a study, in the form in which autotuning results are published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple

from django.utils import timezone

from parlab.charts.sweeps import studies as charts
from parlab.lab.models import Attempt, Run
from runners.config import engine_of
from runners.wire.protocol import RunState

from .models import Study, Trial

ROLES = {
    Trial.Role.BASELINE: "baseline",
    Trial.Role.HAND_TUNED: "hand-tuned",
    Trial.Role.SEARCH: "tuned",
}
_LATELY, _SHOWN_LATELY = timedelta(days=7), 5
_SIDE_BY_SIDE = 30
_CLOSE = 0.99
_TRAINING_PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "numpy")
"""Packages of a node's environment that training depends on."""
_TUNER_TIMERS = ("forward-compute", "backward-compute", "optimizer", "forward", "backward", "step")


class Tried(NamedTuple):
    """A trial and the value of its objective; None if it has none."""

    trial: Trial
    run: Run
    value: float | None
    """Value of the objective, measured end to end."""
    objective: str

    @property
    def tuner_value(self) -> float | None:
        """The same for the passes and the update only, as DeepSpeed's autotuner counts."""
        inside = _inside_s(self.run.summary) if self.value else None
        return _value(self.objective, self.run, inside) if inside else None

    @property
    def setting(self) -> str:
        train, parallel = self.run.resolved["train"], self.run.resolved["parallel"]
        engine = engine_of(self.run.resolved)
        parts = [f"ZeRO {parallel['zero_stage']}"] if engine.has_zero_stages else []
        sizes = {"DP": "data_parallel_size", "TP": "tensor_parallel_size", "PP": "pipeline_parallel_size"}
        if not engine.is_data_parallel_only:
            parts += [f"{name} {parallel[field]}" for name, field in sizes.items() if parallel[field] > 1]
        return ", ".join(
            [*parts, f"micro batch {train['micro_batch_size']}", f"accumulation {_accumulation(self.run)}"]
        )


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
    """All that the page and the report of a study show."""

    study: Study
    tried: Sequence[Tried]
    compared: Sequence[Compared]
    spaces: Sequence[SpaceRow]
    """By tuning space, then `global`."""
    tuning_time: timedelta
    """From the first launch of the search to its last end, without reused runs."""

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """Hardware and versions of the first trial that reports them."""
        return _environment([trial.run for trial in self.tried])

    @property
    def unit(self) -> str:
        return unit(self.study.objective)

    @property
    def best(self) -> Tried | None:
        return self.compared[-1].best

    def improvement_over(self, name: str) -> float | None:
        """Return the tuned value over that of another column; None if one of them is missing."""
        other = next((column.best for column in self.compared if column.name == name), None)
        if other is None or self.best is None or not other.value or not self.best.value:
            return None
        return self.best.value / other.value

    @property
    def best_so_far(self) -> list[float | None]:
        """Best value after each trial of the search."""
        best: float | None = None
        course = []
        for each in self.search:
            best = max(filter(None, (best, each.value)), default=None)
            course.append(best)
        return course

    def launches_until(self, value: float) -> int | None:
        """Return the launches of the search until the first with this value or more; None if there is none."""
        return next((i + 1 for i, each in enumerate(self.search) if each.value and each.value >= value), None)

    @property
    def search(self) -> list[Tried]:
        return [each for each in self.tried if each.trial.role == Trial.Role.SEARCH]


def unit(objective: str) -> str:
    return {"latency": "iterations/s", "cost": "samples per device second"}.get(objective, "samples/s")


def results_of(studies: Sequence[Study]) -> list[Result]:
    """Return the results of studies so far, with as many queries as for one study."""
    by_study: dict[int, list[Trial]] = {study.pk: [] for study in studies}
    rows = Trial.objects.filter(study__in=by_study).select_related("run__experiment").order_by("number")
    for trial in rows:
        by_study[trial.study_id].append(trial)
    return [_result(study, by_study[study.pk]) for study in studies]


def result_of(study: Study) -> Result:
    """Return the results of a study so far."""
    (result,) = results_of([study])
    return result


def _result(study: Study, trials: Sequence[Trial]) -> Result:
    tried = [_tried(study, trial) for trial in trials]
    compared = [_compared(role, name, tried) for role, name in ROLES.items()]
    search = [each for each in tried if each.trial.role == Trial.Role.SEARCH]
    return Result(
        study,
        tried,
        [column for column in compared if column.experiments or column.name == "tuned"],
        _by_space(search),
        _tuning_time(study, search),
    )


def _tried(study: Study, trial: Trial) -> Tried:
    run = trial.run
    if run.run_state != RunState.FINISHED or not run.step_time_s:
        return Tried(trial, run, None, study.objective)
    return Tried(trial, run, _value(study.objective, run, run.step_time_s), study.objective)


def _value(objective: str, run: Run, seconds: float) -> float:
    if objective == "latency":
        return 1 / seconds
    samples = float(run.resolved["train"]["global_batch_size"])
    parallel = run.resolved["parallel"]
    ranks = parallel["data_parallel_size"] * parallel["tensor_parallel_size"] * parallel["pipeline_parallel_size"]
    return samples / seconds / (ranks if objective == "cost" else 1)


def _inside_s(summary: Mapping[str, Any]) -> float | None:
    """Return the seconds of a step in forward, backward and update; None if a run does not have these timers."""
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


def _tuning_time(study: Study, search: Sequence[Tried]) -> timedelta:
    mine = [each for each in search if not each.trial.reused]
    ends = [each.run.ended_at or timezone.now() for each in mine]
    if study.driver is not None:  # its trials are stored only when they have ended
        ends += [] if study.driver.is_final else [timezone.now()]
        return max(max(ends, default=study.created_at) - study.created_at, timedelta(0))
    # Nodes and the server have clocks of their own.
    return max(max(ends) - min(each.trial.created_at for each in mine), timedelta(0)) if mine else timedelta(0)


def _environment(runs: Sequence[Run]) -> dict[str, str]:
    """Hardware and versions of the first trial that reports them."""
    attempts = Attempt.objects.filter(run__in=[run.pk for run in runs]).exclude(environment={}).with_members()
    attempt = attempts.order_by("pk").first()
    if attempt is None:
        return {}
    environment = attempt.environment
    lines = {"node": attempt.node.name if attempt.node else "", "host": str(environment.get("hostname", ""))}
    gpus = environment.get("gpus") or []
    lines["devices"] = (
        f"{len(gpus)} x {gpus[0].get('name', 'GPU')}" if gpus else str(environment.get("cpu_model") or "CPU")
    )
    lines |= {"driver": str(environment.get("driver") or ""), "python": str(environment.get("python") or "")}
    packages = environment.get("packages")
    if isinstance(packages, Mapping):
        lines |= {name: str(packages[name]) for name in _TRAINING_PACKAGES if name in packages}
    if lines["host"] == lines["node"]:
        del lines["host"]
    return {name: text for name, text in lines.items() if text}


def described_course(result: Result) -> charts.Course:
    """Return a study for the figure of progress."""
    return charts.Course(f"study {result.study.pk}, {result.study.strategy}", result.best_so_far)


def described_trials(result: Result) -> list[charts.Trial]:
    """Return the launches of the search, for the figures."""
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


class Contender(NamedTuple):
    """A study compared with others of the same space and objective."""

    result: Result
    launches_until: int | None
    """Launches until within 1 % of the best result of all; None if it was not reached."""
    off: float | None
    """Difference of its best from that result, as a share."""


def side_by_side(study: Study) -> list[Contender]:
    """Compare all studies of the same space and objective, in the order of their start."""
    same = Study.objects.filter(config=study.config_id, objective=study.objective).order_by("pk")
    results = results_of(list(same.select_related("config__experiment", "driver")[:_SIDE_BY_SIDE]))
    top = max((result.best.value or 0.0 for result in results if result.best), default=0.0)
    return [
        Contender(
            result,
            result.launches_until(_CLOSE * top) if top else None,
            1 - (result.best.value or 0.0) / top if result.best and top else None,
        )
        for result in results
    ]
