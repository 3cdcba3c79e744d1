"""One experiment: its versions, its runs, and what a launch would start."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from parlab.lab.models import Attempt, Config, Experiment, Member, Run
from parlab.lab.services.runs import launchable
from parlab.whole_numbers import whole_number
from runners.config import ConfigError, Point, repeated
from runners.wire.protocol import RunState

from .links import why_no_links


class StateCount(NamedTuple):
    state: str
    number: int


def state_counts(states: Iterable[str]) -> list[StateCount]:
    """Count states, in the order of the life cycle of a run."""
    counted = Counter(states)
    return [StateCount(state, counted[state]) for state in _STATES if counted[state]]


_STATES = (*(state.value for state in RunState), Run.UNFINISHED)


def experiment_states(experiment_ids: Iterable[int], runs: Q | None = None) -> defaultdict[int, list[StateCount]]:
    """Count the runs of each experiment by state, optionally only those that fulfil a condition."""
    counted = Run.objects.filter(runs or Q(), experiment__in=list(experiment_ids)).order_by()
    counts: defaultdict[int, list[str]] = defaultdict(list)
    columns = ("experiment_id", "state", "has_end")
    for experiment_id, state, has_end, count in counted.values_list(*columns).annotate(n=Count("pk")):
        counts[experiment_id] += [Run.shown_state_of(state, has_end=has_end)] * count
    empty: defaultdict[int, list[StateCount]] = defaultdict(list)
    return empty | {pk: state_counts(states) for pk, states in counts.items()}


class Versions(NamedTuple):
    """The config versions of an experiment, newest first, and the selected one."""

    configs: Sequence[Config]
    selected: Config | None
    """None if all versions are selected."""
    is_all: bool

    @property
    def query(self) -> str:
        """Value of `?version=` for this selection."""
        return "all" if self.is_all else str(self.selected.version) if self.selected else ""


def experiment_versions(experiment: Experiment, version: str) -> Versions:
    """Return the versions with their number of runs; `version` is a number, "all", or "" for the default.

    The default is the newest version. If all runs are published results, the default is all versions, which form one
    table of a publication.
    """
    configs: list[Any] = list(
        experiment.configs.annotate(
            run_count=Count("runs", filter=Q(runs__hidden_at=None)),
            published_count=Count("runs", filter=Q(runs__hidden_at=None) & ~Q(runs__origin=Run.Origin.MEASURED)),
        ).order_by("-version")
    )
    if (number := whole_number(version)) is not None:
        selected = next((config for config in configs if config.version == number), None)
        if selected:
            return Versions(configs, selected, False)
    published = bool(configs) and all(config.run_count == config.published_count > 0 for config in configs)
    if len(configs) > 1 and (version == "all" or (published and not version)):
        return Versions(configs, None, True)
    return Versions(configs, configs[0] if configs else None, False)


def versions_with_results(experiment: Experiment, version: str) -> Versions:
    """Return the versions as `experiment_versions` does, but default to the newest version that has results.

    A result is a run that finished or ran out of memory. If there is none, the default is the newest version.
    """
    versions = experiment_versions(experiment, version)
    if version or versions.selected is None:
        return versions
    with_results = experiment.runs.filter(state__in=[RunState.FINISHED, RunState.OOM])
    newest = with_results.order_by("-config__version").values_list("config__version", flat=True).first()
    if newest is None or newest == versions.selected.version:
        return versions
    return versions._replace(selected=next(config for config in versions.configs if config.version == newest))


def experiment_runs(experiment: Experiment, versions: Versions) -> list[Run]:
    """Return the runs of the selected versions, with last step and node of their current attempts."""
    runs = experiment.runs.order_by("number")
    if versions.selected is not None:
        runs = runs.filter(config=versions.selected)
    listed = list(with_current_attempt(runs))
    # Joined, the configuration would be parsed once for each run.
    configs = {config.pk: config for config in versions.configs}
    for run in listed:
        if config := configs.get(run.config_id):
            run.config = config
    return listed


def with_current_attempt(runs: QuerySet[Run]) -> QuerySet[Any]:
    """Annotate runs with `last_step` and `node_name` of their current attempt."""
    current = Attempt.objects.filter(run=OuterRef("pk"), number=OuterRef("attempt_number"))
    first_member = Member.objects.filter(
        attempt__run=OuterRef("pk"), attempt__number=OuterRef("attempt_number"), node_rank=0
    )
    return runs.annotate(
        last_step=Subquery(current.values("last_step")[:1]), node_name=Subquery(first_member.values("node__name")[:1])
    )


class LaunchPlan(NamedTuple):
    """The runs that a launch would start, and the points that cannot run."""

    points: list[Point]
    """Points of the sweep, for display beside the runs; empty for published results."""
    to_start: int
    """Number of runs that would start."""
    invalid: list[Point]
    hint: str
    """Why no run would start; otherwise empty."""
    is_offered: bool = True
    """False for imported and reported runs, which cannot be launched."""
    why_no_links: str = ""
    """Why no online node can emulate the links of these runs; otherwise empty."""

    @property
    def repeats(self) -> int:
        """The largest number of runs of a point."""
        return max((point.config.launcher.repeats for point in self.points if point.config), default=1)


def launch_plan(config: Config | None, runs: Sequence[Run]) -> LaunchPlan:
    """Compare the points of a config with its existing runs."""
    if config is None:
        return LaunchPlan([], 0, [], "There is no configuration yet. Create one first.")
    own_runs = [run for run in runs if run.config_id == config.pk]
    if any(run.origin in (Run.Origin.IMPORTED, Run.Origin.REPORTED) for run in own_runs):
        return LaunchPlan([], 0, [], "", is_offered=False)
    if any(run.origin != Run.Origin.MEASURED for run in own_runs):
        return LaunchPlan([], 0, [], "These are published results. Clone the experiment to measure them here.")
    try:
        points = [launchable(point) for point in config.points()]
    except ConfigError as error:
        return LaunchPlan([], 0, [], f"The sweep is invalid: {error}. Edit the configuration.")
    invalid = [point for point in points if point.config is None]
    launched = {run.point_digest for run in own_runs}
    count = sum(1 for point in repeated(points) if point.config is not None and point.digest not in launched)
    hint = ""
    if len(invalid) == len(points):
        hint = "No point of the sweep can run. Edit the configuration."
    elif not count:
        hint = "Every valid point already has a run. Relaunch a run, or change the configuration to add points."
    return LaunchPlan(points, count, invalid, hint, why_no_links=why_no_links(points) if count else "")
