"""The filtered lists of experiments and of runs of all experiments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.core.paginator import Page, Paginator
from django.db.models import Count, F, Max, OuterRef, Q, QuerySet, Subquery, TextField, Value
from django.db.models.expressions import OrderBy
from django.db.models.functions import Cast, Coalesce, Greatest

from parlab.lab.models import Experiment, Finding, Run, RunNote, Star, Tag, TagOfRun
from parlab.lab.models.run import FACTS
from runners.wire.protocol import RunState

from . import filters
from .experiments import StateCount, experiment_states
from .filters import Filter

EXPERIMENTS_PER_PAGE = 50
RUNS_PER_PAGE = 100
# What the lists show. Further fields, above all those with JSON, would take most of the time of a page.
_OF_EXPERIMENTS = ("name", "slug", "question", "archived_at", "created_at", "owner__username")
_OF_RUNS = (
    "number",
    "label",
    "reason",
    "hidden_at",
    "has_end",
    "loss_mark",
    *FACTS,
    "experiment__name",
    "experiment__slug",
)


class ExperimentRow(NamedTuple):
    experiment: Experiment
    states: list[StateCount]
    """Of the runs that match the filter."""
    last_activity_at: datetime
    findings: int
    """Number of open findings."""
    tags: Sequence[str]


class RunMarks(NamedTuple):
    """What people added to a run."""

    tags: Sequence[str] = ()
    stars: Sequence[str] = ()
    """Names of the users who starred it."""
    note: str = ""


class RunLine(NamedTuple):
    run: Run
    ended_at: datetime
    findings: int
    marks: RunMarks


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
    related = objects.filter(experiment=OuterRef("pk")).order_by().values("experiment")
    return Coalesce(Subquery(related.annotate(value=Count("pk")).values("value")), 0)


def _active_at() -> Greatest:
    related = Run.objects.filter(experiment=OuterRef("pk")).order_by().values("experiment")
    at = related.annotate(at=Max(Coalesce("ended_at", "started_at", "queued_at"))).values("at")
    return Greatest("updated_at", Coalesce(Subquery(at), "updated_at"))


def _best_of(field: str) -> Subquery:
    finished = Run.objects.filter(experiment=OuterRef("pk"), state=RunState.FINISHED).order_by().values("experiment")
    return Subquery(finished.annotate(value=Max(field)).values("value"))


# Sort key -> expression; only the selected one is evaluated.
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


def _order(sort: str, orders: Mapping[str, Any], default: str) -> tuple[str, str, bool]:
    """Parse `?sort=-best`: return (valid sort, name, whether it is descending)."""
    name = sort.removeprefix("-")
    if name not in orders:
        sort, name = default, default.removeprefix("-")
    return sort, name, sort.startswith("-")


def _ordered(value: Any, descending: bool) -> OrderBy:
    # Missing values are last in both directions.
    return OrderBy(value, descending=descending, nulls_last=True)


def experiment_list(*, query: str, page: str | None, sort: str = "") -> ExperimentList:
    """Return the experiments that match a filter, by default the most recently active first."""
    query_filter = filters.parse(query)
    sort, name, descending = _order(sort, _EXPERIMENT_ORDERS, EXPERIMENT_SORT)
    matches = Experiment.objects.filter(query_filter.of_experiments())
    matches = matches.annotate(active_at=_active_at(), doubted=_count_of(Finding.objects.open()))
    if not query_filter.wants_archived:
        matches = matches.filter(archived_at=None)
    value = F("active_at") if name == "activity" else _EXPERIMENT_ORDERS[name]
    ordered = matches.select_related("owner").only(*_OF_EXPERIMENTS).order_by(_ordered(value, descending), "-pk")
    page_objects = Paginator(ordered, EXPERIMENTS_PER_PAGE).get_page(page)
    # mypy does not see annotated columns on a page's objects.
    experiments: list[Any] = list(page_objects.object_list)
    ids = [experiment.pk for experiment in experiments]
    states = experiment_states(ids, query_filter.runs)
    tags = experiment_tags(ids)
    rows = [
        ExperimentRow(
            experiment,
            states[experiment.pk],
            experiment.active_at,
            experiment.doubted,
            tags.get(experiment.pk, []),
        )
        for experiment in experiments
    ]
    return ExperimentList(rows, page_objects, query_filter, sort)


def experiment_tags(experiment_ids: Sequence[int]) -> dict[int, list[str]]:
    """Return the tags of experiments in alphabetical order: experiment id -> tags."""
    tags: dict[int, list[str]] = {}
    rows = Tag.objects.filter(experiment__in=experiment_ids).order_by("name")
    for experiment_id, name in rows.values_list("experiment_id", "name"):
        tags.setdefault(experiment_id, []).append(name)
    return tags


def tag_names() -> list[str]:
    """Return the names of tags in use, as suggestions."""
    of_experiments = Tag.objects.order_by().values_list("name")
    names = of_experiments.union(TagOfRun.objects.order_by().values_list("name"))
    return sorted(name for (name,) in names)[:200]


def run_marks(run_ids: Sequence[int]) -> dict[int, RunMarks]:
    """Return tags, stars and notes of runs: run id -> marks; runs without any are left out."""
    if not run_ids:
        return {}

    def rows(kind: str, marks: QuerySet[Any], text: str) -> Any:
        named = marks.filter(run__in=run_ids).order_by().annotate(kind=Value(kind))
        return named.values_list("kind", "run_id", Cast(text, TextField()))

    tags = rows("tag", TagOfRun.objects.all(), "name")
    stars = rows("star", Star.objects.all(), "user__username")
    collected: dict[int, dict[str, list[str]]] = {}
    for kind, run_id, text in tags.union(stars, rows("note", RunNote.objects.all(), "text")):
        collected.setdefault(run_id, {}).setdefault(kind, []).append(text)
    return {
        pk: RunMarks(sorted(marks.get("tag", [])), sorted(marks.get("star", [])), "".join(marks.get("note", [])))
        for pk, marks in collected.items()
    }


def run_list(*, query: str, page: str | None, sort: str = "") -> RunList:
    """Return the runs of all experiments that match a filter, by default the most recently ended first."""
    query_filter = filters.parse(query)
    sort, name, descending = _order(sort, _RUN_ORDERS, RUN_SORT)
    # Select ids first: they come from an index, without reading the rows of skipped runs.
    listed = Run.everything if query_filter.wants_archived_runs else Run.objects
    matches = listed.filter(query_filter.runs)
    if query_filter.experiments:
        matches = matches.filter(experiment__in=Experiment.objects.filter(query_filter.experiments).values("pk"))
    if not query_filter.wants_archived:
        # Databases sort all runs of the experiments that a condition lists, but read the newest of the others only.
        matches = matches.exclude(experiment__in=Experiment.objects.filter(archived_at__isnull=False).values("pk"))
    ids = matches.order_by(_ordered(_RUN_ORDERS[name], descending), "-pk").values_list("pk", flat=True)
    page_objects = Paginator(ids, RUNS_PER_PAGE).get_page(page)
    run_ids = list(page_objects.object_list)
    selected = listed.select_related("experiment").only(*_OF_RUNS).annotate(stored_kinds=F("summary__kinds"))
    runs = selected.in_bulk(run_ids)
    _summaries_add(runs.values())
    counted = Finding.objects.open().filter(run__in=run_ids).order_by().values_list("run_id")
    doubted = dict(counted.annotate(number=Count("pk")))
    marks = run_marks(run_ids)
    lines = [
        RunLine(run, run.ended_at or run.started_at or run.queued_at, doubted.get(pk, 0), marks.get(pk, RunMarks()))
        for pk in run_ids
        if (run := runs.get(pk))
    ]
    return RunList(lines, page_objects, query_filter, sort)


def _summaries_add(runs: Iterable[Run]) -> None:
    """Add the summaries of runs without the usual numbers, whose files may state others, with one query."""
    bare = {run.pk: run for run in runs if run.step_time_s is run.samples_per_s is run.tokens_per_s is None}
    stored = Run.everything.filter(pk__in=bare).values_list("pk", "summary")
    for pk, summary in stored:
        bare[pk].summary = summary


def matching_runs(run_ids: Sequence[int], condition: Q | None = None) -> list[Run]:
    """Return the selected runs in the order of their ids in `run_ids`."""
    runs = Run.objects.filter(condition or Q()).select_related("experiment", "config").in_bulk(list(run_ids))
    return [runs[pk] for pk in dict.fromkeys(run_ids) if pk in runs]
