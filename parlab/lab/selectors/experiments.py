"""One experiment: its versions, runs and launch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery

from parlab.lab.models import Attempt, Config, Experiment, Run
from parlab.lab.services.runs import launchable
from runners.config import ConfigError, Point, digest
from runners.protocol import RunState

from .links import why_no_links


class StateCount(NamedTuple):
    state: str
    number: int


def state_counts(states: Iterable[str]) -> list[StateCount]:
    """Count states, in the order in which a run goes through them."""
    counted = Counter(states)
    return [StateCount(state.value, counted[state.value]) for state in RunState if counted[state.value]]


def experiment_states(experiment_ids: Iterable[int], runs: Q | None = None) -> defaultdict[int, list[StateCount]]:
    """Count the runs of each experiment by state; with a condition only those that fulfil it."""
    counted = Run.objects.filter(runs or Q(), experiment__in=list(experiment_ids)).order_by()
    counts: defaultdict[int, list[str]] = defaultdict(list)
    for experiment_id, state, count in counted.values_list("experiment_id", "state").annotate(n=Count("pk")):
        counts[experiment_id] += [state] * count
    found: defaultdict[int, list[StateCount]] = defaultdict(list)
    return found | {pk: state_counts(states) for pk, states in counts.items()}


class Versions(NamedTuple):
    """The config versions of an experiment, newest first, and which of them a page is about."""

    configs: Sequence[Config]
    shown: Config | None
    """None: all of them."""
    is_all: bool

    @property
    def query(self) -> str:
        """Value of `?version=` that leads back here."""
        return "all" if self.is_all else str(self.shown.version) if self.shown else ""


def experiment_versions(experiment: Experiment, wanted: str) -> Versions:
    """Read the versions with their number of runs; `wanted` is a version, "all", or "" for the newest.

    Without a wish, an experiment of published figures only shows all versions: they are one table of a paper.
    """
    configs: list[Any] = list(
        experiment.configs.annotate(
            run_count=Count("runs"),
            published_count=Count("runs", filter=~Q(runs__origin=Run.Origin.MEASURED)),
        ).order_by("-version")
    )
    if wanted.isdecimal():
        chosen = next((config for config in configs if config.version == int(wanted)), None)
        if chosen:
            return Versions(configs, chosen, False)
    published = bool(configs) and all(config.run_count == config.published_count > 0 for config in configs)
    if len(configs) > 1 and (wanted == "all" or (published and not wanted)):
        return Versions(configs, None, True)
    return Versions(configs, configs[0] if configs else None, False)


def experiment_runs(experiment: Experiment, versions: Versions) -> list[Run]:
    """Read the runs of the shown versions, with last step and node of their current attempts."""
    runs = experiment.runs.select_related("config", "experiment").order_by("number")
    if versions.shown is not None:
        runs = runs.filter(config=versions.shown)
    return list(with_current_attempt(runs).annotate(config_version=F("config__version")))


def with_current_attempt(runs: QuerySet[Run]) -> QuerySet[Any]:
    """Add `last_step` and `node_name` of each run's current attempt."""
    current = Attempt.objects.filter(run=OuterRef("pk"), number=OuterRef("attempt_number"))
    return runs.annotate(
        last_step=Subquery(current.values("last_step")[:1]), node_name=Subquery(current.values("node__name")[:1])
    )


class LaunchPlan(NamedTuple):
    """What a click on Launch would start, and what it could not."""

    points: list[Point]
    """Points of the sweep that are worth showing beside the runs; none for published figures."""
    to_start: int
    """Runs that would be started."""
    invalid: list[Point]
    hint: str
    """Why nothing would be started; empty where something would."""
    is_offered: bool = True
    """False where a launch makes no sense at all: the runs came out of files."""
    why_no_links: str = ""
    """Why no node can make the links that these runs need; empty where one can."""


def launch_plan(config: Config | None, runs: Sequence[Run]) -> LaunchPlan:
    """Compare the points of a config with the runs that it has."""
    if config is None:
        return LaunchPlan([], 0, [], "There is no configuration yet. Write one first.")
    mine = [run for run in runs if run.config_id == config.pk]
    if any(run.origin == Run.Origin.IMPORTED for run in mine):
        return LaunchPlan([], 0, [], "", is_offered=False)
    if any(run.origin != Run.Origin.MEASURED for run in mine):
        return LaunchPlan([], 0, [], "These figures were published elsewhere. Clone the experiment to measure it here.")
    try:
        points = [launchable(point) for point in config.points()]
    except ConfigError as error:
        return LaunchPlan([], 0, [], f"The sweep makes no sense: {error}. Edit the configuration.")
    invalid = [point for point in points if point.config is None]
    known = {run.point_digest for run in mine}
    count = sum(1 for point in points if point.config is not None and digest(point.values) not in known)
    hint = ""
    if len(invalid) == len(points):
        hint = "No point of the sweep can run. Edit the configuration."
    elif not count:
        hint = "Every point that can run has its run. Relaunch a run, or change the configuration for new ones."
    return LaunchPlan(points, count, invalid, hint, why_no_links=why_no_links(points) if count else "")
