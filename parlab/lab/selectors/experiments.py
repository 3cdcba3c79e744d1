"""Experiments: the list of them, and the versions, runs and launch of one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.core.paginator import Page, Paginator
from django.db.models import Count, F, Max, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce, Greatest

from parlab.lab.models import Attempt, Config, Experiment, Run
from parlab.lab.services.runs import launchable
from runners.config import ConfigError, Point, digest
from runners.protocol import RunState

from .findings import open_findings

PER_PAGE = 50


class StateCount(NamedTuple):
    state: str
    number: int


class ExperimentRow(NamedTuple):
    """One line of the list of experiments."""

    experiment: Experiment
    states: list[StateCount]
    best: Run | None
    last_activity_at: datetime
    findings: int
    """Those that nobody has acknowledged."""


def state_counts(states: Iterable[str]) -> list[StateCount]:
    """Count states, in the order in which a run goes through them."""
    counted = Counter(states)
    return [StateCount(state.value, counted[state.value]) for state in RunState if counted[state.value]]


def experiment_list(*, query: str, page: str | None) -> tuple[list[ExperimentRow], Page[Any]]:
    """Find experiments whose name, question or notes contain all words of the query, the last active first."""
    found = Experiment.objects.select_related("owner").defer("notes", "source")
    for word in query.split():
        found = found.filter(
            Q(name__icontains=word) | Q(slug__icontains=word) | Q(question__icontains=word) | Q(notes__icontains=word)
        )
    best = Run.objects.filter(experiment=OuterRef("pk"), state=RunState.FINISHED, samples_per_s__isnull=False)
    run_at = Max(Coalesce("runs__ended_at", "runs__started_at", "runs__queued_at"))
    found = found.annotate(
        best_run=Subquery(best.order_by("-samples_per_s").values("pk")[:1]),
        active_at=Greatest("updated_at", Coalesce(run_at, "updated_at")),
    ).order_by("-active_at", "-pk")
    shown = Paginator(found, PER_PAGE).get_page(page)
    # mypy does not see annotated columns on a page's objects.
    experiments: list[Any] = list(shown.object_list)
    counted = Run.objects.filter(experiment__in=[experiment.pk for experiment in experiments])
    counts: defaultdict[int, list[str]] = defaultdict(list)
    for experiment_id, state, count in counted.values_list("experiment_id", "state").annotate(n=Count("pk")).order_by():
        counts[experiment_id] += [state] * count
    bests = Run.objects.defer("resolved", "summary", "launch").in_bulk([e.best_run for e in experiments if e.best_run])
    doubted = open_findings(experiment.pk for experiment in experiments)
    rows = [
        ExperimentRow(
            experiment,
            state_counts(counts[experiment.pk]),
            bests.get(experiment.best_run or 0),
            experiment.active_at,
            doubted.get(experiment.pk, 0),
        )
        for experiment in experiments
    ]
    return rows, shown


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
    current = Attempt.objects.filter(run=OuterRef("pk"), number=OuterRef("attempt_number"))
    runs = experiment.runs.select_related("config", "experiment").order_by("number")
    if versions.shown is not None:
        runs = runs.filter(config=versions.shown)
    return list(
        runs.annotate(
            last_step=Subquery(current.values("last_step")[:1]),
            node_name=Subquery(current.values("node__name")[:1]),
            config_version=F("config__version"),
        )
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
    return LaunchPlan(points, count, invalid, hint)
