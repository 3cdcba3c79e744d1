"""The two lists that a filter narrows: experiments, and runs of all experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.core.paginator import Page, Paginator
from django.db.models import Count, F, Max, OuterRef, Q, QuerySet, Subquery
from django.db.models.expressions import OrderBy
from django.db.models.functions import Coalesce, Greatest

from parlab.lab.models import Experiment, Finding, Run, Tag
from runners.protocol import RunState

from . import filters
from .experiments import StateCount, experiment_states
from .filters import Filter
from .leads import Lead, experiment_leads

EXPERIMENTS_PER_PAGE = 50
RUNS_PER_PAGE = 100


class ExperimentRow(NamedTuple):
    """One line of the list of experiments."""

    experiment: Experiment
    states: list[StateCount]
    """Of the runs that the filter asks for."""
    lead: Lead | None
    last_activity_at: datetime
    findings: int
    """Those that nobody has acknowledged."""
    tags: Sequence[Tag]


class RunLine(NamedTuple):
    """One line of the list of runs."""

    run: Run
    ended_at: datetime
    findings: int


class ExperimentList(NamedTuple):
    rows: list[ExperimentRow]
    page: Page[Any]
    filter: Filter
    sort: str


class RunList(NamedTuple):
    rows: list[RunLine]
    page: Page[Any]
    filter: Filter
    sort: str


def _count_of(objects: QuerySet[Any]) -> Coalesce:
    mine = objects.filter(experiment=OuterRef("pk")).order_by().values("experiment")
    return Coalesce(Subquery(mine.annotate(value=Count("pk")).values("value")), 0)


def _active_at() -> Greatest:
    mine = Run.objects.filter(experiment=OuterRef("pk")).order_by().values("experiment")
    at = mine.annotate(at=Max(Coalesce("ended_at", "started_at", "queued_at"))).values("at")
    return Greatest("updated_at", Coalesce(Subquery(at), "updated_at"))


def _best_of(field: str) -> Subquery:
    finished = Run.objects.filter(experiment=OuterRef("pk"), state=RunState.FINISHED).order_by().values("experiment")
    return Subquery(finished.annotate(value=Max(field)).values("value"))


# Name of a column -> what the list of experiments is sorted by; read only where it is asked for.
_EXPERIMENT_ORDERS: dict[str, Any] = {
    "activity": None,
    "name": F("name"),
    "owner": F("owner__username"),
    "made": F("created_at"),
    "runs": _count_of(Run.objects.all()),
    "findings": F("doubted"),
    "best": _best_of("samples_per_s"),
}
EXPERIMENT_SORT = "-activity"
_RUN_ORDERS: dict[str, Any] = {
    **{name: F(field.lookup) for name, field in filters.FIELDS.items()},
    "experiment": F("experiment__name"),
    "ended": F("ended_at"),
}
RUN_SORT = "-ended"


def _order(sort: str, known: Mapping[str, Any], default: str) -> tuple[str, str, bool]:
    """Read `?sort=-best`: (as it is understood, name, whether the largest come first)."""
    name = sort.removeprefix("-")
    if name not in known:
        sort, name = default, default.removeprefix("-")
    return sort, name, sort.startswith("-")


def _ordered(value: Any, descending: bool) -> OrderBy:
    # What was not measured stands last, either way.
    return OrderBy(value, descending=descending, nulls_last=True)


def experiment_list(*, query: str, page: str | None, sort: str = "") -> ExperimentList:
    """Find the experiments that a filter asks for; the last active first, unless sorted otherwise."""
    asked = filters.parse(query)
    sort, name, descending = _order(sort, _EXPERIMENT_ORDERS, EXPERIMENT_SORT)
    found = Experiment.objects.filter(asked.of_experiments())
    found = found.annotate(active_at=_active_at(), doubted=_count_of(Finding.objects.open()))
    if not asked.wants_archived:
        found = found.filter(archived_at=None)
    value = F("active_at") if name == "activity" else _EXPERIMENT_ORDERS[name]
    ordered = found.select_related("owner").defer("notes", "source").order_by(_ordered(value, descending), "-pk")
    shown = Paginator(ordered, EXPERIMENTS_PER_PAGE).get_page(page)
    # mypy does not see annotated columns on a page's objects.
    experiments: list[Any] = list(shown.object_list)
    ids = [experiment.pk for experiment in experiments]
    states, leads = experiment_states(ids, asked.runs), experiment_leads(ids, asked.runs)
    tags = experiment_tags(ids)
    rows = [
        ExperimentRow(
            experiment,
            states[experiment.pk],
            leads.get(experiment.pk),
            experiment.active_at,
            experiment.doubted,
            tags.get(experiment.pk, []),
        )
        for experiment in experiments
    ]
    return ExperimentList(rows, shown, asked, sort)


def experiment_tags(experiment_ids: Sequence[int]) -> dict[int, list[Tag]]:
    """Read the tags of experiments, in the order of the alphabet."""
    found: dict[int, list[Tag]] = {}
    for tag in Tag.objects.filter(experiment__in=experiment_ids).order_by("name"):
        found.setdefault(tag.experiment_id, []).append(tag)
    return found


def tag_names() -> list[str]:
    """List the tags in use, to offer them."""
    return list(Tag.objects.order_by("name").values_list("name", flat=True).distinct()[:200])


def run_list(*, query: str, page: str | None, sort: str = "") -> RunList:
    """Find the runs of all experiments that a filter asks for; the last ended first, unless sorted otherwise."""
    asked = filters.parse(query)
    sort, name, descending = _order(sort, _RUN_ORDERS, RUN_SORT)
    wanted = Experiment.objects.filter(asked.experiments)
    if not asked.wants_archived:
        wanted = wanted.filter(archived_at=None)
    # Ids first: they are found in an index, where whole rows would be read for every run that is passed over.
    found = Run.objects.filter(asked.runs, experiment__in=wanted.values("pk"))
    ids = found.order_by(_ordered(_RUN_ORDERS[name], descending), "-pk").values_list("pk", flat=True)
    shown = Paginator(ids, RUNS_PER_PAGE).get_page(page)
    listed = list(shown.object_list)
    rows = Run.objects.select_related("experiment").defer(
        "resolved", "summary", "launch", "experiment__notes", "experiment__source"
    )
    runs = rows.in_bulk(listed)
    counted = Finding.objects.open().filter(run__in=listed).order_by().values_list("run_id")
    doubted = dict(counted.annotate(number=Count("pk")))
    lines = [
        RunLine(run, run.ended_at or run.started_at or run.queued_at, doubted.get(pk, 0))
        for pk in listed
        if (run := runs.get(pk))
    ]
    return RunList(lines, shown, asked, sort)


def matching_runs(run_ids: Sequence[int], condition: Q | None = None) -> list[Run]:
    """Read chosen runs in the order in which they were chosen."""
    found = Run.objects.filter(condition or Q()).select_related("experiment", "config").in_bulk(list(run_ids))
    return [found[pk] for pk in dict.fromkeys(run_ids) if pk in found]
