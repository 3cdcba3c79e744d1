"""Progress of the demo sweeps."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.db.models import Count, Q, QuerySet

from parlab.charts.svg import Svg, progress_bar
from parlab.lab.models import Experiment
from parlab.lab.selectors.experiments import StateCount, state_counts
from runners.config import ConfigError, expand
from runners.wire.protocol import FINAL_STATES, RunState

from .sweeps import demo_sweeps


class SweepProgress(NamedTuple):
    """Progress of one demo experiment."""

    experiment: Experiment
    points: int
    """Total number of runs."""
    ended: int
    states: list[StateCount]


class Progress(NamedTuple):
    """Progress of all demo experiments."""

    sweeps: list[SweepProgress]
    points: int
    ended: int
    is_running: bool
    to_start: int
    """Number of sweeps without any run."""

    @property
    def seen(self) -> str:
        """A text that changes whenever the block shows something else."""
        return "-".join(f"{sweep.ended}:{sum(state.number for state in sweep.states)}" for sweep in self.sweeps)


def bar(current: Progress) -> Svg:
    """Draw how many of the runs have ended."""
    return progress_bar(current.ended / max(1, current.points), f"{current.ended} of {current.points} runs have ended")


def demo_names() -> frozenset[str]:
    """Return the names of the experiments that the demo button launches."""
    return frozenset(sweep.name for sweep in demo_sweeps(settings.BASE_DIR))


def demo_experiments() -> QuerySet[Experiment]:
    """Return the demo experiments, except renamed and deleted ones."""
    return Experiment.objects.filter(name__in=demo_names())


def progress() -> Progress:
    """Count the runs of the demo sweeps: those of the first configuration of each experiment."""
    if not demo_experiments().exists():
        return Progress([], 0, 0, False, 0)  # as everywhere but in a demo
    points = _points_of_sweeps(settings.BASE_DIR)
    order = {name: at for at, name in enumerate(points)}
    experiments = demo_experiments().annotate(
        **{f"runs_{state}": Count("runs", Q(runs__state=state, runs__config__version=1)) for state in RunState}
    )
    sweeps = []
    for experiment in sorted(experiments, key=lambda experiment: order[experiment.name]):
        counts = {state: int(getattr(experiment, f"runs_{state}")) for state in RunState}
        states = state_counts(state.value for state, count in counts.items() for _ in range(count))
        ended = sum(counts[state] for state in FINAL_STATES)
        sweeps.append(SweepProgress(experiment, max(points[experiment.name], sum(counts.values())), ended, states))
    return Progress(
        sweeps,
        sum(sweep.points for sweep in sweeps),
        sum(sweep.ended for sweep in sweeps),
        any(sum(state.number for state in sweep.states) > sweep.ended for sweep in sweeps),
        sum(not sweep.states for sweep in sweeps),
    )


@cache
def _points_of_sweeps(project: Path) -> dict[str, int]:
    """Return the number of points that can run of each demo sweep, by its name."""
    return {sweep.name: _points(sweep.data, sweep.sweep) for sweep in demo_sweeps(project)}


def _points(data: dict[str, object], sweep: dict[str, list[object]]) -> int:
    try:
        return sum(point.config is not None for point in expand(data, sweep))
    except ConfigError:
        return 0
