"""The life of a study: created, advanced a step at a time, paused, resumed, cancelled."""

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
from parlab.lab import services as lab
from parlab.lab.models import Config, Run
from parlab.lab.services.configs import lock_experiment
from runners.config import digest
from runners.protocol import RunState

from .autotuner import autotuner_start, refuse_unless_zero, trials_store
from .models import Study, Trial
from .planning import planner_for
from .space import Fit, Launch, Objective
from .spaces import StudySpace, observation, space_of
from .strategies import STRATEGIES, Strategy, by_hand

logger = logging.getLogger(__name__)

LEAST_STEPS = 10
"""Timed steps of a trial; fewer say too little of what training takes from end to end."""
COUNTING = timedelta(seconds=30)
"""A run that has just finished has its figures within this; after it, it has none."""
MAX_ATTEMPTS = 3
"""Attempts at a trial that was lost with its node; after them it counts as failed."""


class _Arm(NamedTuple):
    """One of the searches of a study: its own, and those that it is compared with."""

    role: Trial.Role
    config: Config
    strategy: Strategy
    launches: int | None
    """At most; None without limit."""


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
    """Start a study of a config's sweep, or find the one that runs already as it is asked for here.

    Raises ValueError that names field, value and remedy.
    """
    if strategy not in Study.Strategy.values:
        raise ValueError(f"strategy {strategy!r} is unknown; use {', '.join(Study.Strategy.values)}")
    if objective not in Study.Objective.values:
        raise ValueError(f"objective {objective!r} is unknown; use {', '.join(Study.Objective.values)}")
    if max_launches < 1:
        raise ValueError(f"max_launches {max_launches} launches nothing; use 1 or more")
    if baseline is not None and baseline.experiment_id != config.experiment_id:
        raise ValueError(f"baseline {baseline} is of another experiment; use a config of {config.experiment}")
    found = space_of(config, "throughput", planner_for(config))
    _check_steps(found)
    if strategy == Study.Strategy.AUTOTUNER:
        refuse_unless_zero(found)
    if baseline is not None:
        _check_steps(space_of(baseline, "throughput", planner_for(baseline)))
    lock_experiment(config.experiment)
    asked: dict[str, Any] = {
        "config": config,
        "baseline": baseline,
        "hand_tuned": hand_tuned,
        "strategy": strategy,
        "objective": objective,
        "max_launches": max_launches,
    }
    running = Study.objects.running().filter(**asked).first()
    if running is not None:  # a second click
        return running
    past = len(found.space.past) if strategy == Study.Strategy.PLANNED else 0
    study = Study.objects.create(**asked, past_runs=past, created_by=user)
    transaction.on_commit(lambda: study_advance(study=study), robust=True)
    return study


def _check_steps(found: StudySpace) -> None:
    """Refuse a space whose runs are too short to tell anything."""
    for point in found.points.values():
        assert point.config is not None
        train = point.config.train
        if train.iterations - train.warmup_steps < LEAST_STEPS:
            raise ValueError(
                f"train.iterations {train.iterations} leaves {train.iterations - train.warmup_steps} timed steps after"
                f" {train.warmup_steps} of warm-up; use {train.warmup_steps + LEAST_STEPS} or more"
            )


@transaction.atomic
def study_advance(*, study: Study) -> Study:
    """Take all steps that need no waiting: note what ended, launch what is wanted next, or finish.

    Everything it knows it reads from trials and runs, so it may be called at any time, by anybody, also twice.
    """
    related = ("config__experiment", "driver__experiment", "driver__config")
    current = Study.objects.select_for_update(of=("self",)).select_related(*related).get(pk=study.pk)
    if current.state != Study.State.RUNNING:
        return current
    # Most looks find a run that goes on: the space and what is expected of it are not worked out for those.
    for trial in current.trials.select_related("run").order_by("number"):
        if not _has_ended(trial.run):
            _wait(current, trial.run)
            return current
    reasons: dict[Trial.Role, str] = {}
    for arm in _arms(current):
        is_theirs = arm.role == Trial.Role.SEARCH and current.strategy == Study.Strategy.AUTOTUNER
        reason = _advance_autotuner(current) if is_theirs else _advance_arm(current, arm)
        if reason is None:
            return current
        reasons[arm.role] = reason
    found = any(trial.run.run_state == RunState.FINISHED for trial in _trials(current, Trial.Role.SEARCH))
    state = Study.State.FINISHED if found else Study.State.FAILED
    reason = reasons[Trial.Role.SEARCH] if found else f"no trial finished: {_why_none(current, reasons)}"
    _end(current, state, reason)
    return current


def _why_none(study: Study, reasons: Mapping[Trial.Role, str]) -> str:
    """Say why a search found nothing; where memory was the whole reason, what to do about it."""
    states = [trial.run.run_state for trial in _trials(study, Trial.Role.SEARCH)]
    if states and set(states) == {RunState.OOM}:
        return (
            f"all {len(states)} that were launched ran out of memory; sweep over smaller micro batches, more ranks or a"
            " higher ZeRO stage"
        )
    found = space_of(study.config, cast(Objective, study.objective), planner_for(study.config)).space
    planned = [one for one in found.candidates if one.predicted_bytes and one.memory_limit_bytes]
    if states or not planned or any(one.fit != Fit.NO for one in found.candidates):
        return reasons[Trial.Role.SEARCH]
    least = min(planned, key=lambda one: one.predicted_bytes or 0.0)
    needed, limit = (
        quantity(size, "B").replace(SPACE, " ") for size in (least.predicted_bytes, least.memory_limit_bytes)
    )
    return (
        f"by the plan none of the {len(found.candidates)} settings fits into {limit}, so none was launched; {least.key}"
        f" needs least, {needed}: sweep over a higher ZeRO stage or more ranks, or use a smaller model"
    )


def study_pause(*, study: Study) -> bool:
    """Launch nothing more for now; a trial that runs goes on. Returns whether it was running."""
    return _switch(study, (Study.State.RUNNING,), Study.State.PAUSED)


@transaction.atomic
def study_resume(*, study: Study) -> bool:
    """Go on with a study that stopped early; what it measured stays. Returns whether it had stopped."""
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
    """End a study and the trial that it waits for; returns whether it went on until now."""
    if not _switch(study, (Study.State.RUNNING, Study.State.PAUSED), Study.State.CANCELLED):
        return False
    for trial in study.trials.select_related("run").filter(run__in=Run.objects.active(), reused=False):
        fleet.cancel(run=trial.run)
    driver = Run.objects.active().filter(studies_as_driver=study).first()
    if driver is not None:
        fleet.cancel(run=driver)
    return True


def _switch(study: Study, from_states: tuple[str, ...], state: str) -> bool:
    ended = timezone.now() if state == Study.State.CANCELLED else None
    rows = Study.objects.filter(pk=study.pk, state__in=from_states)
    return bool(rows.update(state=state, reason="", ended_at=ended))


def _end(study: Study, state: Study.State, reason: str) -> None:
    Study.objects.filter(pk=study.pk, state=Study.State.RUNNING).update(
        state=state, reason=reason, ended_at=timezone.now()
    )
    study.refresh_from_db()
    logger.info("study %s %s: %s", study.pk, state, reason)


def _arms(study: Study) -> Iterator[_Arm]:
    strategy = STRATEGIES.get(study.strategy, by_hand)  # DeepSpeed's own autotuner follows none of ours
    yield _Arm(Trial.Role.SEARCH, study.config, strategy, study.max_launches)
    if study.hand_tuned:
        yield _Arm(Trial.Role.HAND_TUNED, study.config, by_hand, None)
    if study.baseline is not None:
        yield _Arm(Trial.Role.BASELINE, study.baseline, by_hand, None)


def _advance_arm(study: Study, arm: _Arm) -> str | None:
    """Follow a strategy through what is measured; returns why it stopped, None while it waits for a run."""
    found = space_of(arm.config, cast(Objective, study.objective), planner_for(arm.config))
    trials = {trial.key: trial for trial in _trials(study, arm.role)}
    steps = arm.strategy(found.space)
    try:
        wish = next(steps)
        while True:
            trial = trials.get(wish.key)
            if trial is None:
                if arm.launches is not None and len(trials) >= arm.launches:
                    return f"{arm.launches} launches were made, the most that were allowed"
                trial = trials[wish.key] = _launch(study, arm, found, wish)
            if not _has_ended(trial.run):
                _wait(study, trial.run)
                return None
            wish = steps.send(observation(wish.key, trial.run))
    except StopIteration as end:
        return str(end.value)


def _advance_autotuner(study: Study) -> str | None:
    """Follow DeepSpeed's own autotuner through its run; returns why it stopped, None while it searches."""
    if study.driver is None:
        autotuner_start(study=study, found=space_of(study.config, "throughput", planner_for(study.config)))
        return None
    run = study.driver
    trials_store(study=study, run=run)
    count = study.trials.filter(role=Trial.Role.SEARCH).count()
    if count >= study.max_launches and run.run_state != RunState.FINISHED:
        if not run.is_final:
            fleet.cancel(run=run)
        return f"{count} launches were made, the most that were allowed"
    if not run.is_final or _is_started_again(run):
        _wait(study, run)
        return None
    if run.run_state == RunState.FINISHED:
        return f"DeepSpeed's autotuner ended after {count} experiments"
    return f"the run of DeepSpeed's autotuner ended as {run.state}: {run.reason or 'see its log'}"


def _is_started_again(run: Run) -> bool:
    """Start a run that was lost with its node again, unless it was often enough."""
    if run.run_state != RunState.LOST or run.attempt_number >= MAX_ATTEMPTS or run.origin != Run.Origin.MEASURED:
        return False
    fleet.relaunch(run=run, user=run.created_by)
    return True


def _trials(study: Study, role: Trial.Role) -> list[Trial]:
    return list(study.trials.filter(role=role).select_related("run").order_by("number"))


def _launch(study: Study, arm: _Arm, found: StudySpace, wish: Launch) -> Trial:
    """Note a wish and queue its run, unless the config has one for this point already."""
    point = found.points[wish.key]
    run = arm.config.runs.filter(point_digest=digest(point.values)).first()
    was_there = run is not None
    if run is None:
        launched = lab.config_launch(config=arm.config, user=study.created_by, only={digest(point.values)})
        run = launched.created[0] if launched.created else arm.config.runs.get(point_digest=digest(point.values))
        transaction.on_commit(fleet.dispatch, robust=True)
    candidate = found.space.by_key[wish.key]
    expected = wish.expected
    if expected is None and candidate.predicted_s:
        expected = candidate.value(found.space.objective, candidate.predicted_s)
    return Trial.objects.create(
        study=study,
        run=run,
        role=arm.role,
        number=study.trials.count() + 1,
        key=wish.key,
        tuning_space=candidate.tuning_space,
        why=wish.why[:300],
        expected=expected,
        reused=was_there,
    )


def _has_ended(run: Run) -> bool:
    """Whether a trial's run is done with; one that was lost with its node is started again."""
    if _is_started_again(run):
        return False
    is_counted = bool(run.summary) or run.run_state != RunState.FINISHED
    return run.is_final and (is_counted or run.ended_at is None or timezone.now() - run.ended_at > COUNTING)


def _wait(study: Study, run: Run) -> None:
    reason = fleet.waiting_reason(run) if run.run_state == RunState.QUEUED else ""
    Study.objects.filter(pk=study.pk, state=Study.State.RUNNING).exclude(reason=reason or "").update(
        reason=reason or ""
    )
