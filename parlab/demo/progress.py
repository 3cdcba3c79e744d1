"""How far the demo's sweeps are."""

from __future__ import annotations

from typing import NamedTuple

from django.conf import settings
from django.db.models import Count, Q, QuerySet

from parlab.lab.models import Experiment
from parlab.lab.selectors import StateCount, state_counts
from runners.config import ConfigError, expand
from runners.protocol import FINAL_STATES, RunState

from .sweeps import demo_sweeps


class SweepProgress(NamedTuple):
    """One experiment of the demo."""

    experiment: Experiment
    points: int
    """Runs that there will be."""
    ended: int
    states: list[StateCount]


class Progress(NamedTuple):
    """All of them together."""

    sweeps: list[SweepProgress]
    points: int
    ended: int
    is_running: bool
    to_start: int
    """Sweeps of which no run was started yet."""

    @property
    def seen(self) -> str:
        """Changes with whatever the block shows."""
        return "-".join(f"{one.ended}:{sum(state.number for state in one.states)}" for one in self.sweeps)


def demo_names() -> frozenset[str]:
    """Name the experiments that the demo's button launches."""
    return frozenset(one.name for one in demo_sweeps(settings.BASE_DIR))


def demo_experiments() -> QuerySet[Experiment]:
    """Experiments of the demo that nobody has renamed or deleted."""
    return Experiment.objects.filter(name__in=demo_names())


def progress() -> Progress:
    """Count the runs of the demo's sweeps; the numbers of points are those of their first configurations."""
    points = {one.name: _points(one.data, one.sweep) for one in demo_sweeps(settings.BASE_DIR)}
    order = {name: at for at, name in enumerate(points)}
    found = demo_experiments().annotate(**{f"runs_{state}": Count("runs", Q(runs__state=state)) for state in RunState})
    sweeps = []
    for experiment in sorted(found, key=lambda one: order[one.name]):
        counts = {state: int(getattr(experiment, f"runs_{state}")) for state in RunState}
        states = state_counts(state.value for state, count in counts.items() for _ in range(count))
        ended = sum(counts[state] for state in FINAL_STATES)
        sweeps.append(SweepProgress(experiment, max(points[experiment.name], sum(counts.values())), ended, states))
    return Progress(
        sweeps,
        sum(one.points for one in sweeps),
        sum(one.ended for one in sweeps),
        any(sum(state.number for state in one.states) > one.ended for one in sweeps),
        sum(not one.states for one in sweeps),
    )


def _points(data: dict[str, object], sweep: dict[str, list[object]]) -> int:
    try:
        return sum(point.config is not None for point in expand(data, sweep))
    except ConfigError:
        return 0
