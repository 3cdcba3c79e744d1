"""A study that DeepSpeed's own autotuner conducts: the run in which it searches, and a run for each experiment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, cast

from django.db import transaction
from pydantic import BaseModel, Field, ValidationError

from parlab.fleet import services as fleet
from parlab.lab import services as lab
from parlab.lab.models import Attempt, Config, Run, Snapshot
from parlab.lab.services import storable
from parlab.lab.services.attempts import configuration_snapshot, headline, results_snapshot
from parlab.lab.services.configs import lock_experiment
from parlab.lab.services.runs import next_number
from parlab.series.log import read_log
from runners.config import Point, RunConfig, digest, tuned_config
from runners.config.engines import AUTOTUNING
from runners.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX, RunState

from .models import Study, Trial
from .planning import Planner, planner_for
from .space import Objective
from .spaces import StudySpace, candidate, setting_name, tuning_space

SEARCH_S = 12 * 3600
"""The tuner's run has at least so long: it decides itself how many experiments it makes."""
_MARK = b'"event":"experiment"'
Seconds = Annotated[float, Field(gt=0, lt=1e7)]


class Experiment(BaseModel):
    """What engine autotuning prints of one experiment; whatever else a line claims is no experiment."""

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


def refuse_unless_zero(found: StudySpace) -> None:
    """Raise ValueError for a space that DeepSpeed's autotuner does not search."""
    for point in found.points.values():
        assert point.config is not None
        parallel, tuned = point.config.parallel, AUTOTUNING.trial_engine
        if parallel.engine != tuned:
            raise ValueError(
                f"strategy autotuner: DeepSpeed's autotuner tunes engine {tuned}, but this configuration uses engine"
                f" {parallel.engine}; use strategy planned, or a configuration of engine {tuned}"
            )
        if parallel.zero_offload != "none":
            raise ValueError(
                f"strategy autotuner: DeepSpeed's autotuner does not support offloading, but zero_offload is"
                f" {parallel.zero_offload};"
                " use strategy planned, or zero_offload none"
            )


def autotuner_start(*, study: Study, found: StudySpace) -> Run:
    """Queue the run in which the tuner searches the stages and micro batches of a space; a second call finds it."""
    if study.driver is not None:
        return study.driver
    config = _search_config(study, found)
    launched = lab.config_launch(config=config, user=study.created_by)
    study.driver = launched.created[0] if launched.created else config.runs.get(point_digest=digest({}))
    study.save(update_fields=["driver"])
    transaction.on_commit(fleet.dispatch, robust=True)
    return study.driver


def _search_config(study: Study, found: StudySpace) -> Config:
    """Save the version that lets the tuner search what the sweep of the study's version names."""
    configs = [point.config for point in found.points.values() if point.config is not None]
    least = min(configs, key=lambda one: (one.train.micro_batch_size, one.num_micro_batches))
    data = least.resolved()
    data["cluster"]["gpus_per_node"] = None
    data["parallel"] |= {"engine": AUTOTUNING.name, "zero_stage": 0}
    data["launcher"]["timeout_s"] = max(data["launcher"]["timeout_s"], SEARCH_S)
    data["autotuning"] = {
        "stages": sorted({one.parallel.zero_stage for one in configs}),
        "max_micro_batch_size": max(one.train.micro_batch_size for one in configs),
    }
    note = f"Study {study.pk}: DeepSpeed's own autotuner over the space of version {study.config.version}"
    return lab.config_save(
        experiment=study.config.experiment, data=data, sweep={}, note=note, user=study.created_by, as_next=True
    )


def experiments_of(run: Run) -> Iterator[Experiment]:
    """Read what the tuner's run has told of its experiments so far, each name once."""
    attempt, seen = run.current_attempt(), set[str]()
    for line in _lines(attempt.pk):
        if not line.startswith(EVENT_PREFIX) or len(line) >= EVENT_LINE_LIMIT or _MARK not in line:
            continue
        try:
            one = Experiment.model_validate(json.loads(line))
        except (ValueError, RecursionError, ValidationError):
            continue  # it stays in the log
        if one.name not in seen:
            seen.add(one.name)
            yield one


def _lines(attempt_id: int) -> Iterator[bytes]:
    rest = b""
    for chunk in read_log(attempt_id):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        rest = rest if len(rest) < EVENT_LINE_LIMIT else b"\0"


def trials_store(*, study: Study, run: Run) -> int:
    """Make a trial and its run of each experiment that the study does not have yet; returns how many are new."""
    known = set(study.trials.filter(role=Trial.Role.SEARCH).values_list("key", flat=True))
    new = []
    for one in experiments_of(run):
        config, _ = tuned_config(
            run.resolved,
            zero_stage=one.zero_stage,
            micro_batch_size=one.micro_batch_size,
            num_micro_batches=one.accumulation,
        )
        if config is not None and (key := setting_name(config)) not in known:
            known.add(key)
            new.append((key, one, config))
    if not new:
        return 0
    lock_experiment(run.experiment)
    count, planner = study.trials.count(), planner_for(study.config)
    for number, (key, one, config) in enumerate(new, start=count + 1):
        Trial.objects.create(
            study=study,
            run=_run_store(run, one, config),
            role=Trial.Role.SEARCH,
            number=number,
            key=key,
            tuning_space=tuning_space(config),
            why="DeepSpeed's autotuner chose it",
            expected=_expected(study, planner, config),
        )
    return len(new)


def _expected(study: Study, planner: Planner, config: RunConfig) -> float | None:
    """Value by the objective as planned; the tuner itself expects nothing."""
    plan = planner.plan(config)
    described = candidate("", Point({}, config, []), config, plan)
    return described.value(cast(Objective, study.objective), plan.iteration_s) if plan.iteration_s else None


def _run_store(driver: Run, one: Experiment, config: RunConfig) -> Run:
    """Enter an experiment as a run that has ended: a child of the tuner's, with its node and environment."""
    attempt = driver.current_attempt()
    point = {"experiment": one.name}
    known = driver.config.runs.filter(point_digest=digest(point)).first()
    if known is not None:
        return known
    summary = _summary(one, config)
    began, ended = (datetime.fromtimestamp(seconds, UTC) for seconds in sorted((one.began, one.ended)))
    state = RunState(one.state)
    if state == RunState.FINISHED and not summary:
        state = RunState.FAILED
    shared: dict[str, Any] = {
        "state": state,
        "reason": storable.text(one.reason)[:500],
        "started_at": began,
        "ended_at": ended,
        "summary": summary,
    }
    run = Run.objects.create(
        experiment=driver.experiment,
        config=driver.config,
        number=next_number(driver.config),
        label=f"autotuner's {one.name}"[:300],
        point=point,
        point_digest=digest(point),
        resolved=config.resolved(),
        created_by=driver.created_by,
        **shared,
        **headline(summary),
    )
    Attempt.objects.create(run=run, number=1, node=attempt.node, environment=attempt.environment, **shared)
    content = {"state": run.state, "reason": run.reason, "summary": summary}
    Snapshot.objects.bulk_create([configuration_snapshot(run, 1), results_snapshot(run, 1, content)])
    return run


def _summary(one: Experiment, config: RunConfig) -> dict[str, Any]:
    """Write the figures of an experiment in the shape of a run's summary; empty where it was not timed."""
    median = one.step_time_s.get("median")
    if not median:
        return {}
    samples, warmup = config.train.global_batch_size, config.train.warmup_steps
    last = warmup + one.steps
    summary: dict[str, Any] = {
        "steps": {"count": one.steps, "first": warmup + 1, "last": last},
        "step_time_s": dict(one.step_time_s),
        "samples_per_s": samples / median,
        "tokens_per_s": samples * config.model.sequence_length / median,
        "ms_per_sample": 1000 * median / samples,
        "timers_s": {name: {"median": seconds} for name, seconds in one.timers_s.items()},
        "basis": f"median of {one.steps} steps ({warmup + 1} to {last}), slowest rank of each; timers as DeepSpeed's"
        " autotuner writes them",
    }
    if one.memory_peak_bytes:
        peaks = one.memory_peak_bytes
        summary["memory_peak_bytes"] = {"min": min(peaks.values()), "max": max(peaks.values()), "by_rank": peaks}
    return summary
