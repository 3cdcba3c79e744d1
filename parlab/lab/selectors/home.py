"""The home page: active runs, and the experiments whose runs ended last."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Max

from parlab.lab.models import Experiment, Run
from runners.wire.protocol import RunState

from .experiments import with_current_attempt
from .runs import step_time

ACTIVE_SHOWN = 12
RECENT_SHOWN = 6


class ActiveRun(NamedTuple):
    """A queued or running run."""

    run: Run
    step: int | None
    remaining_s: float | None


class Active(NamedTuple):
    """The first active runs, running ones first."""

    runs: list[ActiveRun]
    running: int
    waiting: int
    """Runs that have not started."""


class Recent(NamedTuple):
    """An experiment whose runs ended recently."""

    experiment: Experiment
    ended_at: datetime


def active_runs() -> Active:
    """Return the first active runs, running ones first, with the numbers of all."""
    runs = Run.objects.active().filter(experiment__archived_at=None)
    states = list(runs.values_list("pk", "state"))
    order = [RunState.RUNNING, RunState.DISPATCHED, RunState.QUEUED]
    first = sorted(states, key=lambda row: (order.index(RunState(row[1])), row[0]))[:ACTIVE_SHOWN]
    positions = {pk: position for position, (pk, _) in enumerate(first)}
    selected: list[Any] = list(with_current_attempt(runs.select_related("experiment").filter(pk__in=positions)))
    active = [ActiveRun(run, run.last_step, _remaining_s(run)) for run in selected]
    running = sum(state == RunState.RUNNING for _, state in states)
    return Active(sorted(active, key=lambda item: positions[item.run.pk]), running, len(states) - running)


def _remaining_s(run: Any) -> float | None:
    measured = step_time(run.summary)
    done = run.last_step or 0
    if measured is None or not done or not run.iterations:
        return None
    remaining_steps: int = max(0, run.iterations - done)
    return measured.median * remaining_steps


def recent_experiments(count: int = RECENT_SHOWN) -> list[Recent]:
    """Return the experiments whose runs ended last; those with own runs before imported ones."""
    ended = Run.objects.final().filter(experiment__archived_at=None, ended_at__isnull=False).order_by()
    by_experiment = ended.values_list("experiment_id")
    own = by_experiment.filter(origin__in=[Run.Origin.MEASURED, Run.Origin.REPORTED])
    last = dict(own.annotate(last=Max("ended_at")).order_by("-last")[:count])
    if len(last) < count:
        others = by_experiment.exclude(experiment__in=last).annotate(last=Max("ended_at"))
        last |= dict(others.order_by("-last")[: count - len(last)])
    experiments = Experiment.objects.defer("notes", "source").in_bulk(list(last))
    return [Recent(experiments[pk], at) for pk, at in last.items() if pk in experiments]


def has_own_runs() -> bool:
    """Whether anything was measured here: before, Home shows the ways to begin."""
    return Run.objects.filter(origin=Run.Origin.MEASURED).exists()
