"""Studies whose strategy is DeepSpeed's own autotuner: the run of the search, and one run per experiment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, cast

from django.db import transaction
from pydantic import BaseModel, Field, ValidationError

from parlab.fleet import services as fleet
from parlab.lab.models import Attempt, Config, Member, Run, Snapshot
from parlab.lab.services import storable
from parlab.lab.services.attempts import configuration_snapshot, headline, results_snapshot
from parlab.lab.services.configs import config_save, lock_experiment
from parlab.lab.services.runs import config_launch, next_number
from parlab.series.log import read_log
from runners.config import Point, RunConfig, digest, tuned_config
from runners.config.engines import AUTOTUNING
from runners.wire.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX, RunState

from .models import Study, Trial
from .planning import Planner, planner_for
from .space import Objective
from .spaces import StudySpace, candidate, setting_name, tuning_space

SEARCH_S = 12 * 3600
"""Least time limit of the search; the autotuner decides itself how many experiments it runs."""
_MARK = b'"event":"experiment"'
Seconds = Annotated[float, Field(gt=0, lt=1e7)]


class Experiment(BaseModel):
    """Event of engine autotuning for one experiment; lines that do not match are not experiments."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{1,200}$")]
    state: Literal["finished", "oom", "failed"]
    reason: str = ""
    zero_stage: Annotated[int, Field(ge=0, le=3)]
    micro_batch_size: Annotated[int, Field(ge=1, le=2**20)]
    accumulation: Annotated[int, Field(ge=1, le=2**20)]
    began: Annotated[float, Field(ge=0, lt=1e11)]
    ended: Annotated[float, Field(ge=0, lt=1e11)]
    steps: Annotated[int, Field(ge=0, le=10**6)] = 0
    step_time_s: dict[Literal["median", "p10", "p90", "mean"], Seconds] = {}
    timers_s: dict[Literal["forward", "backward", "step"], Annotated[float, Field(ge=0, lt=1e7)]] = {}
    memory_peak_bytes: dict[Annotated[str, Field(pattern=r"^\d{1,6}$")], Annotated[int, Field(ge=0, lt=10**18)]] = {}


def refuse_unless_zero(space: StudySpace) -> None:
    """Raise ValueError for a space that DeepSpeed's autotuner does not search."""
    for point in space.points.values():
        assert point.config is not None
        parallel, tuned = point.config.parallel, AUTOTUNING.trial_engine
        if parallel.engine != tuned:
            raise ValueError(
                f"strategy autotuner: DeepSpeed's autotuner tunes engine {tuned}, but this configuration uses engine"
                f" {parallel.engine}; use strategy planned, or a configuration of engine {tuned}"
            )
        if parallel.zero_offload != "none":
            raise ValueError(
                "strategy autotuner: DeepSpeed's autotuner does not support offloading, but zero_offload is"
                f" {parallel.zero_offload}; use strategy planned, or zero_offload none"
            )


def autotuner_start(*, study: Study, space: StudySpace) -> Run:
    """Queue the run that searches the stages and micro batches of a space; a second call returns the same run."""
    if study.driver is not None:
        return study.driver
    config = _search_config(study, space)
    launched = config_launch(config=config, user=study.created_by, only={digest({})})
    study.driver = launched.created[0] if launched.created else config.runs.get(point_digest=digest({}))
    study.save(update_fields=["driver"])
    transaction.on_commit(fleet.dispatch, robust=True)
    return study.driver


def _search_config(study: Study, space: StudySpace) -> Config:
    """Save the version of the search, from the sweep of the study's version."""
    configs = [point.config for point in space.points.values() if point.config is not None]
    least = min(configs, key=lambda config: (config.train.micro_batch_size, config.num_micro_batches))
    data = least.resolved()
    data["cluster"]["gpus_per_node"] = None
    data["parallel"] |= {"engine": AUTOTUNING.name, "zero_stage": 0}
    data["launcher"]["timeout_s"] = max(data["launcher"]["timeout_s"], SEARCH_S)
    data["autotuning"] = {
        "stages": sorted({config.parallel.zero_stage for config in configs}),
        "max_micro_batch_size": max(config.train.micro_batch_size for config in configs),
    }
    note = f"Study {study.pk}: DeepSpeed's own autotuner over the space of version {study.config.version}"
    return config_save(
        experiment=study.config.experiment, data=data, sweep={}, note=note, user=study.created_by, as_next=True
    )


def experiments_of(run: Run) -> Iterator[Experiment]:
    """Read the experiments that the run of the search has printed so far, each name once."""
    attempt, seen_names = run.current_attempt(), set[str]()
    for line in _lines(attempt.pk):
        if not line.startswith(EVENT_PREFIX) or len(line) >= EVENT_LINE_LIMIT or _MARK not in line:
            continue
        try:
            experiment = Experiment.model_validate(json.loads(line))
        except (ValueError, RecursionError, ValidationError):
            continue  # it stays in the log
        if experiment.name not in seen_names:
            seen_names.add(experiment.name)
            yield experiment


def _lines(attempt_id: int) -> Iterator[bytes]:
    rest = b""
    for chunk in read_log(attempt_id):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        rest = rest if len(rest) < EVENT_LINE_LIMIT else b"\0"


def trials_store(*, study: Study, run: Run) -> int:
    """Create a trial and a run for each experiment that the study does not have yet; return the number of new ones."""
    existing_keys = set(study.trials.filter(role=Trial.Role.SEARCH).values_list("key", flat=True))
    new = []
    for experiment in experiments_of(run):
        config, _ = tuned_config(
            run.resolved,
            zero_stage=experiment.zero_stage,
            micro_batch_size=experiment.micro_batch_size,
            num_micro_batches=experiment.accumulation,
        )
        if config is not None and (key := setting_name(config)) not in existing_keys:
            existing_keys.add(key)
            new.append((key, experiment, config))
    if not new:
        return 0
    lock_experiment(run.experiment)
    count, planner = study.trials.count(), planner_for(study.config)
    for number, (key, experiment, config) in enumerate(new, start=count + 1):
        Trial.objects.create(
            study=study,
            run=_run_store(run, experiment, config),
            role=Trial.Role.SEARCH,
            number=number,
            key=key,
            tuning_space=tuning_space(config),
            why="DeepSpeed's autotuner chose it",
            expected=_expected(study, planner, config),
        )
    return len(new)


def _expected(study: Study, planner: Planner, config: RunConfig) -> float | None:
    """Return the planned value of the objective; the autotuner itself predicts none."""
    plan = planner.plan(config)
    described = candidate("", Point({}, config, []), config, plan)
    return described.value(cast(Objective, study.objective), plan.iteration_s) if plan.iteration_s else None


def _run_store(driver: Run, experiment: Experiment, config: RunConfig) -> Run:
    """Store an experiment as an ended run, with the node and environment of the search."""
    attempt = driver.current_attempt()
    point = {"experiment": experiment.name}
    existing = driver.config.runs.filter(point_digest=digest(point)).first()
    if existing is not None:
        return existing
    summary = _summary(experiment, config)
    began, ended = (datetime.fromtimestamp(seconds, UTC) for seconds in sorted((experiment.began, experiment.ended)))
    state = RunState(experiment.state)
    if state == RunState.FINISHED and not summary:
        state = RunState.FAILED
    shared: dict[str, Any] = {
        "state": state,
        "reason": storable.text(experiment.reason)[:500],
        "started_at": began,
        "ended_at": ended,
        "summary": summary,
    }
    run = Run.objects.create(
        experiment=driver.experiment,
        config=driver.config,
        number=next_number(driver.config),
        label=f"autotuner's {experiment.name}"[:300],
        point=point,
        point_digest=digest(point),
        resolved=config.resolved(),
        created_by=driver.created_by,
        **shared,
        **headline(summary),
    )
    stored = Attempt.objects.create(run=run, number=1, environment=attempt.environment, **shared)
    Member.objects.create(attempt=stored, node=attempt.node, environment=attempt.environment, state=run.state)
    content = {"state": run.state, "reason": run.reason, "summary": summary}
    Snapshot.objects.bulk_create([configuration_snapshot(run, 1), results_snapshot(run, 1, content)])
    return run


def _summary(experiment: Experiment, config: RunConfig) -> dict[str, Any]:
    """Return the numbers of an experiment as the summary of a run; empty if it was not timed."""
    median = experiment.step_time_s.get("median")
    if not median:
        return {}
    samples, warmup = config.train.global_batch_size, config.train.warmup_steps
    last = warmup + experiment.steps
    summary: dict[str, Any] = {
        "steps": {"count": experiment.steps, "first": warmup + 1, "last": last},
        "step_time_s": dict(experiment.step_time_s),
        "samples_per_s": samples / median,
        "tokens_per_s": samples * config.model.sequence_length / median,
        "ms_per_sample": 1000 * median / samples,
        "timers_s": {name: {"median": seconds} for name, seconds in experiment.timers_s.items()},
        "basis": f"median of {experiment.steps} steps ({warmup + 1} to {last}), slowest rank of each;"
        " timers as written by DeepSpeed's autotuner",
    }
    if experiment.memory_peak_bytes:
        peaks = experiment.memory_peak_bytes
        summary["memory_peak_bytes"] = {"min": min(peaks.values()), "max": max(peaks.values()), "by_rank": peaks}
    return summary
