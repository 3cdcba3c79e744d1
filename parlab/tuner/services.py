"""Services of studies: create, advance, pause, resume, cancel."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, cast

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from parlab.charts.format import SPACE, quantity
from parlab.fleet import services as fleet
from parlab.lab.models import Config, Event, Run
from parlab.lab.services.access.rights import guard, guard_change
from parlab.lab.services.configs import lock_experiment
from parlab.lab.services.events import event_add
from parlab.lab.services.runs import config_launch
from runners.config import RunConfig, digest, expand
from runners.wire.protocol import RunState

from .autotuner import autotuner_start, refuse_unless_zero, trials_store
from .models import Study, Trial
from .planning import planner_for
from .space import Fit, Launch, Objective
from .spaces import StudySpace, features, observation, space_of
from .strategies import STRATEGIES, Strategy, by_hand

logger = logging.getLogger(__name__)

LEAST_STEPS = 10
"""Timed steps of a trial; fewer do not give a reliable step time."""
COUNTING = timedelta(seconds=30)
"""Time within which a finished run gets its summary; a run without one after that has none."""
MAX_ATTEMPTS = 3
"""Attempts at a trial that is lost with its node; after them it counts as failed."""


class _Arm(NamedTuple):
    """One search of a study: its own, or one that it is compared with."""

    role: Trial.Role
    config: Config
    strategy: Strategy
    launches: int | None
    """Maximum number of launches; None: no limit."""


@transaction.atomic
def study_create(
    *,
    config: Config,
    user: User,
    strategy: str = Study.Strategy.PLANNED,
    objective: str = Study.Objective.THROUGHPUT,
    max_launches: int = 20,
    baseline: Config | None = None,
    hand_tuned: bool = True,
) -> Study:
    """Start a study of a configuration's sweep, or return the running one with the same arguments.

    Raises ValueError with field, value and remedy.
    """
    guard(config)
    if strategy not in Study.Strategy.values:
        raise ValueError(f"unknown strategy {strategy!r}; use {', '.join(Study.Strategy.values)}")
    if objective not in Study.Objective.values:
        raise ValueError(f"unknown objective {objective!r}; use {', '.join(Study.Objective.values)}")
    if max_launches < 1:
        raise ValueError(f"max_launches {max_launches} is less than 1; use 1 or more")
    if baseline is not None and baseline.experiment_id != config.experiment_id:
        raise ValueError(
            f"baseline {baseline} belongs to another experiment; use a configuration of {config.experiment}"
        )
    study_space = space_of(config, "throughput", planner_for(config))
    _check_steps(study_space)
    if strategy == Study.Strategy.AUTOTUNER:
        refuse_unless_zero(study_space)
    if baseline is not None:
        _check_steps(space_of(baseline, "throughput", planner_for(baseline)))
    lock_experiment(config.experiment)
    fields: dict[str, Any] = {
        "config": config,
        "baseline": baseline,
        "hand_tuned": hand_tuned,
        "strategy": strategy,
        "objective": objective,
        "max_launches": max_launches,
    }
    running = Study.objects.running().filter(**fields).first()
    if running is not None:  # the form was sent twice
        return running
    past = len(study_space.space.past) if strategy == Study.Strategy.PLANNED else 0
    study = Study.objects.create(**fields, past_runs=past, created_by=user)
    transaction.on_commit(lambda: study_advance(study=study), robust=True)
    return study


def why_not_tuned(config: Config) -> str:
    """Return why a configuration cannot be tuned, or an empty string; judged by the first point of its sweep.

    This is quick enough for a list of configurations; `study_create` checks all points.
    """
    try:
        (point,) = expand(config.data, {axes: values[:1] for axes, values in config.sweep.items()})
        if point.config is not None:
            _check_timed_steps(point.config)
            features(point.config)
    except ValueError as problem:
        return str(problem)
    return ""


def _check_steps(study_space: StudySpace) -> None:
    """Raise ValueError for a space whose runs have too few timed steps."""
    for point in study_space.points.values():
        assert point.config is not None
        _check_timed_steps(point.config)


def _check_timed_steps(config: RunConfig) -> None:
    train = config.train
    left = train.iterations - train.warmup_steps
    if left < LEAST_STEPS:
        raise ValueError(
            f"train.iterations {train.iterations} leaves {left} timed step{'' if left == 1 else 's'} after"
            f" {train.warmup_steps} warm-up steps; use {train.warmup_steps + LEAST_STEPS} or more"
        )


@transaction.atomic
def study_advance(*, study: Study) -> Study:
    """Advance a study as far as possible without waiting: record ended trials, launch the next ones, or finish.

    All its state is in trials and runs, so it may be called at any time, also concurrently.
    """
    related = ("config__experiment", "driver__experiment", "driver__config")
    current = Study.objects.select_for_update(of=("self",)).select_related(*related).get(pk=study.pk)
    if current.state != Study.State.RUNNING:
        return current
    # Most calls find a trial that is still running: they return before the space and its predictions are computed.
    for trial in current.trials.select_related("run").order_by("number"):
        if not _has_ended(trial.run):
            _wait(current, trial.run)
            return current
    reasons: dict[Trial.Role, str] = {}
    for arm in _arms(current):
        is_autotuner = arm.role == Trial.Role.SEARCH and current.strategy == Study.Strategy.AUTOTUNER
        reason = _advance_autotuner(current) if is_autotuner else _advance_arm(current, arm)
        if reason is None:
            return current
        reasons[arm.role] = reason
    has_result = any(trial.run.run_state == RunState.FINISHED for trial in _trials(current, Trial.Role.SEARCH))
    state = Study.State.FINISHED if has_result else Study.State.FAILED
    reason = reasons[Trial.Role.SEARCH] if has_result else f"no trial finished: {_why_none(current, reasons)}"
    _end(current, state, reason)
    return current


def _why_none(study: Study, reasons: Mapping[Trial.Role, str]) -> str:
    """Return why a search has no result, with a remedy if memory is the only reason."""
    states = [trial.run.run_state for trial in _trials(study, Trial.Role.SEARCH)]
    if states and set(states) == {RunState.OOM}:
        return (
            f"all {len(states)} launched trials ran out of memory; sweep over smaller micro batches, more ranks or a"
            " higher ZeRO stage"
        )
    candidates = space_of(study.config, cast(Objective, study.objective), planner_for(study.config)).space.candidates
    planned = [candidate for candidate in candidates if candidate.predicted_bytes and candidate.memory_limit_bytes]
    if states or not planned or any(candidate.fit != Fit.NO for candidate in candidates):
        return reasons[Trial.Role.SEARCH]
    least = min(planned, key=lambda candidate: candidate.predicted_bytes or 0.0)
    needed, limit = (
        quantity(size, "B").replace(SPACE, " ") for size in (least.predicted_bytes, least.memory_limit_bytes)
    )
    return (
        f"none of the {len(candidates)} settings was launched, because none is predicted to fit into {limit};"
        f" {least.key} needs the least, {needed}: sweep over a higher ZeRO stage or more ranks, or use a smaller model"
    )


def study_pause(*, study: Study) -> bool:
    """Stop launching trials; a running trial continues. Return whether the study was running."""
    return _switch(study, (Study.State.RUNNING,), Study.State.PAUSED)


@transaction.atomic
def study_resume(*, study: Study) -> bool:
    """Continue a study that stopped early, with its measurements. Return whether it had stopped."""
    stopped = (Study.State.PAUSED, Study.State.FAILED, Study.State.CANCELLED)
    resumed = _switch(study, stopped, Study.State.RUNNING)
    if resumed:
        driver = Run.objects.final().exclude(state=RunState.FINISHED).filter(studies_as_driver=study).first()
        if driver is not None:
            fleet.relaunch(run=driver, user=study.created_by)
        transaction.on_commit(lambda: study_advance(study=study), robust=True)
    return resumed


@transaction.atomic
def study_cancel(*, study: Study) -> bool:
    """End a study and the trial that it waits for; return whether the study was running or paused."""
    if not _switch(study, (Study.State.RUNNING, Study.State.PAUSED), Study.State.CANCELLED):
        return False
    for trial in study.trials.select_related("run").filter(run__in=Run.objects.active(), reused=False):
        fleet.cancel(run=trial.run)
    driver = Run.objects.active().filter(studies_as_driver=study).first()
    if driver is not None:
        fleet.cancel(run=driver)
    return True


def _switch(study: Study, from_states: tuple[str, ...], state: str) -> bool:
    guard_change(study)  # its runs belong to whoever started it
    ended = timezone.now() if state == Study.State.CANCELLED else None
    rows = Study.objects.filter(pk=study.pk, state__in=from_states)
    return bool(rows.update(state=state, reason="", ended_at=ended))


def _end(study: Study, state: Study.State, reason: str) -> None:
    ended = Study.objects.filter(pk=study.pk, state=Study.State.RUNNING).update(
        state=state, reason=reason, ended_at=timezone.now()
    )
    study.refresh_from_db()
    if ended:
        event_add(
            kind=Event.Kind.STUDY_DONE,
            text=f"Study {study.pk} of {study.config.experiment.name} {state}: {reason}",
            path=study.get_absolute_url(),
            experiment=study.config.experiment,
            data={"study": study.pk, "state": state, "reason": reason},
        )
    logger.info("study %s %s: %s", study.pk, state, reason)


def _arms(study: Study) -> Iterator[_Arm]:
    strategy = STRATEGIES.get(study.strategy, by_hand)  # unused for DeepSpeed's own autotuner
    yield _Arm(Trial.Role.SEARCH, study.config, strategy, study.max_launches)
    if study.hand_tuned:
        yield _Arm(Trial.Role.HAND_TUNED, study.config, by_hand, None)
    if study.baseline is not None:
        yield _Arm(Trial.Role.BASELINE, study.baseline, by_hand, None)


def _advance_arm(study: Study, arm: _Arm) -> str | None:
    """Replay a strategy on the measurements; return why it stopped, None while it waits for a run."""
    study_space = space_of(arm.config, cast(Objective, study.objective), planner_for(arm.config))
    trials = {trial.key: trial for trial in _trials(study, arm.role)}
    steps = arm.strategy(study_space.space)
    try:
        launch = next(steps)
        while True:
            trial = trials.get(launch.key)
            if trial is None:
                if arm.launches is not None and len(trials) >= arm.launches:
                    return f"reached the maximum of {arm.launches} launches"
                trial = trials[launch.key] = _launch(study, arm, study_space, launch)
            if not _has_ended(trial.run):
                _wait(study, trial.run)
                return None
            launch = steps.send(observation(launch.key, trial.run))
    except StopIteration as end:
        return str(end.value)


def _advance_autotuner(study: Study) -> str | None:
    """Read the run of DeepSpeed's own autotuner; return why it stopped, None while it searches."""
    if study.driver is None:
        autotuner_start(study=study, space=space_of(study.config, "throughput", planner_for(study.config)))
        return None
    run = study.driver
    trials_store(study=study, run=run)
    count = study.trials.filter(role=Trial.Role.SEARCH).count()
    if count >= study.max_launches and run.run_state != RunState.FINISHED:
        if not run.is_final:
            fleet.cancel(run=run)
        return f"reached the maximum of {study.max_launches} launches"
    if not run.is_final or _is_restarted(run):
        _wait(study, run)
        return None
    if run.run_state == RunState.FINISHED:
        return f"DeepSpeed's autotuner ended after {count} experiments"
    return f"the run of DeepSpeed's autotuner ended as {run.state}: {run.reason or 'see its log'}"


def _is_restarted(run: Run) -> bool:
    """Restart a run that was lost with its node, up to MAX_ATTEMPTS; return whether it was restarted."""
    is_lost = run.run_state in (RunState.LOST, RunState.PREEMPTED)
    if not is_lost or run.attempt_number >= MAX_ATTEMPTS or run.origin != Run.Origin.MEASURED:
        return False
    fleet.relaunch(run=run, user=run.created_by)
    return True


def _trials(study: Study, role: Trial.Role) -> list[Trial]:
    return list(study.trials.filter(role=role).select_related("run").order_by("number"))


def _launch(study: Study, arm: _Arm, study_space: StudySpace, launch: Launch) -> Trial:
    """Create a trial and queue its run, unless the configuration already has a run of this point."""
    point = study_space.points[launch.key]
    run = arm.config.runs.filter(point_digest=digest(point.values)).first()
    is_reused = run is not None
    if run is None:
        result = config_launch(config=arm.config, user=study.created_by, only={digest(point.values)})
        run = result.created[0] if result.created else arm.config.runs.get(point_digest=digest(point.values))
        transaction.on_commit(fleet.dispatch, robust=True)
    candidate = study_space.space.by_key[launch.key]
    expected = launch.expected
    if expected is None and candidate.predicted_s:
        expected = candidate.value(study_space.space.objective, candidate.predicted_s)
    return Trial.objects.create(
        study=study,
        run=run,
        role=arm.role,
        number=study.trials.count() + 1,
        key=launch.key,
        tuning_space=candidate.tuning_space,
        why=launch.why[:300],
        expected=expected,
        reused=is_reused,
    )


def _has_ended(run: Run) -> bool:
    """Return whether the run of a trial has ended, with its summary; restart it if it was lost with its node."""
    if _is_restarted(run):
        return False
    is_counted = bool(run.summary) or run.run_state != RunState.FINISHED
    return run.is_final and (is_counted or run.ended_at is None or timezone.now() - run.ended_at > COUNTING)


def _wait(study: Study, run: Run) -> None:
    reason = fleet.waiting_reason(run) if run.run_state == RunState.QUEUED else ""
    Study.objects.filter(pk=study.pk, state=Study.State.RUNNING).exclude(reason=reason or "").update(
        reason=reason or ""
    )
