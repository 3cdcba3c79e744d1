"""What the palette lists: runs, experiments, metrics and nodes that match words, and what a person opened last."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db.models import Case, Count, F, IntegerField, Max, Q, QuerySet, Value, When

from parlab.charts.svg import Look
from parlab.lab.models import Experiment, LatestMetric, Node, Run, Visit
from parlab.whole_numbers import whole_number

from .analysis.identities import identities
from .filters import Filter

LIMIT = 5
"""Rows of a group."""
MOST_NAMED = 60
"""Runs of an experiment up to which its runs have names made of what differs: more cost too much at each letter."""
_RECENT_TRACKED = 200
"""Reported runs whose metrics are listed: the names of older ones are the same, or out of use."""
_OF_RUNS = ("number", "label", "point", "state", "origin", "samples_per_s", "experiment__name", "experiment__slug")
_FACTS = ("schedule", "engine", "precision", "state", "origin")


class NamedRun(NamedTuple):
    run: Run
    name: str
    """What differs from the other runs of its experiment."""
    look: Look


class MatchedExperiment(NamedTuple):
    experiment: Experiment
    runs: int


class Fact(NamedTuple):
    """A field whose value is a word of the query."""

    field: str
    value: str
    runs: int


def visible_runs(_user: User) -> QuerySet[Run]:
    """Return the runs that a person may see: every list of the palette starts from these."""
    return Run.objects.all()


def visible_experiments(_user: User) -> QuerySet[Experiment]:
    """Return the experiments that a person may see, without archived ones."""
    return Experiment.objects.in_use()


def matching_experiments(words: Sequence[str], *, user: User) -> list[MatchedExperiment]:
    """Return experiments whose name, address or question has all words: those with the words in their name first."""
    condition = reduce(operator.and_, (_in_experiment(word) for word in words), Q())
    in_name = reduce(operator.and_, (Q(name__icontains=word) for word in words), Q())
    rank = Case(When(in_name, then=Value(0)), default=Value(1), output_field=IntegerField())
    matches = visible_experiments(user).filter(condition).only("name", "slug", "question")
    return _with_counts(list(matches.order_by(rank, "-updated_at")[:LIMIT]))


def recent_experiments(*, user: User) -> list[MatchedExperiment]:
    """Return the experiments that a person opened last."""
    visits = Visit.objects.filter(user=user, experiment__in=visible_experiments(user)).select_related("experiment")
    return _with_counts([visit.experiment for visit in visits.order_by("-last_at")[:LIMIT] if visit.experiment])


def _with_counts(experiments: Sequence[Experiment]) -> list[MatchedExperiment]:
    runs = Run.objects.filter(experiment__in=[experiment.pk for experiment in experiments]).order_by()
    counts = dict(runs.values_list("experiment").annotate(runs=Count("pk")))
    return [MatchedExperiment(experiment, counts.get(experiment.pk, 0)) for experiment in experiments]


def _in_experiment(word: str) -> Q:
    return Q(name__icontains=word) | Q(slug__icontains=word) | Q(question__icontains=word)


def matching_runs(words: Sequence[str], *, user: User, open_slug: str = "") -> list[NamedRun]:
    """Return runs that have all words, each in a setting, a label, a number or the experiment.

    Runs of the open experiment come first, then those whose name has the words, then the newest.
    """
    names = _names_of_experiments(user)
    condition = reduce(operator.and_, (_in_run(word, names) for word in words), Q())
    opened = next((pk for pk, (slug, _) in names.items() if slug == open_slug), 0)
    named = reduce(operator.and_, (Q(label__icontains=word) for word in words), Q())
    rank = Case(
        When(experiment_id=opened, then=Value(0)),
        *([When(named, then=Value(1))] if words else []),
        default=Value(2),
        output_field=IntegerField(),
    )
    ids = visible_runs(user).filter(condition, experiment__in=Experiment.objects.in_use()).order_by(rank, "-pk")
    return named_runs(list(ids.values_list("pk", flat=True)[:LIMIT]))


def _names_of_experiments(user: User) -> dict[int, tuple[str, str]]:
    """Return the address and the lower-case name of each experiment: a table of hundreds, read once for all words."""
    rows = visible_experiments(user).order_by().values_list("pk", "slug", "name")
    return {pk: (slug, f"{slug} {name}".lower()) for pk, slug, name in rows}


def _in_run(word: str, names: Mapping[int, tuple[str, str]]) -> Q:
    named = [pk for pk, (_, text) in names.items() if word.lower() in text]
    condition = Q(label__icontains=word) | Q(experiment_id__in=named)
    for fact in _FACTS:
        condition |= Q(**{f"{fact}__iexact": word})
    number = whole_number(word.removeprefix("#"), 8)
    return condition if number is None else condition | Q(number=number)


def run_of(text: str, *, user: User, open_slug: str = "") -> Run | None:
    """Return the run that a text names: `#5` or `5` in the open experiment, `slug/5` in any; None if there is none."""
    slug, _, last = text.rpartition("/")
    number = whole_number(last.removeprefix("#"), 8)
    if number is None:
        return None
    runs = visible_runs(user).select_related("experiment").only(*_OF_RUNS)
    return runs.filter(experiment__slug=slug or open_slug, number=number).first()


def named_runs(ids: Sequence[int]) -> list[NamedRun]:
    """Return runs in the order of their ids, with their names and looks."""
    runs = Run.objects.select_related("experiment").only(*_OF_RUNS).in_bulk(list(ids))
    names = _names({run.experiment_id for run in runs.values()})
    return [
        NamedRun(runs[pk], *names.get(pk, (runs[pk].shown_label or f"#{runs[pk].number}", Look())))
        for pk in ids
        if pk in runs
    ]


def _names(experiments: set[int]) -> dict[int, tuple[str, Look]]:
    counted = Run.objects.filter(experiment__in=experiments).order_by().values_list("experiment")
    names: dict[int, tuple[str, Look]] = {}
    for experiment, count, newest, changed in counted.annotate(Count("pk"), Max("pk"), Max("numbers_at")):
        if count <= MOST_NAMED:
            names |= _names_in(experiment, count, newest, changed)
    return names


@lru_cache(maxsize=256)
def _names_in(experiment: int, _count: int, _newest: int, _changed: object) -> dict[int, tuple[str, Look]]:
    """Return names and looks of the runs of an experiment, by id; they are made once until its runs change."""
    runs = list(Run.objects.filter(experiment=experiment))
    return {pk: (identity.name, identity.look) for pk, identity in identities(runs).items()}


def facts_of(word: str, *, user: User) -> list[Fact]:
    """Return the fields of which a word is a value, with the number of such runs, counted in one pass of an index."""
    counts = {fact: Count("pk", filter=Q(**{f"{fact}__iexact": word})) for fact in _FACTS}
    row: dict[str, Any] = visible_runs(user).aggregate(**{f"of_{fact}": count for fact, count in counts.items()})
    return [Fact(fact, word.lower(), row[f"of_{fact}"]) for fact in _FACTS if row[f"of_{fact}"]]


def count_matches(condition: Filter, *, user: User) -> int:
    """Return the number of runs that match a filter."""
    return _filtered(condition, user).count()


def filtered_runs(condition: Filter, *, user: User) -> list[NamedRun]:
    """Return the newest runs that match a filter."""
    return named_runs(list(_filtered(condition, user).order_by("-pk").values_list("pk", flat=True)[:LIMIT]))


def _filtered(condition: Filter, user: User) -> QuerySet[Run]:
    runs: QuerySet[Run] = Run.everything.all() if condition.wants_archived_runs else visible_runs(user)
    matches = runs.filter(condition.runs)
    if condition.experiments:
        matches = matches.filter(experiment__in=Experiment.objects.filter(condition.experiments).values("pk"))
    if condition.wants_archived:
        return matches
    return matches.exclude(experiment__in=Experiment.objects.filter(archived_at__isnull=False).values("pk"))


def matching_metrics(words: Sequence[str], *, user: User) -> list[tuple[str, Run]]:
    """Return names of metrics that scripts reported lately and that have all words, each with the newest run of it."""
    runs = visible_runs(user).filter(origin=Run.Origin.REPORTED).order_by("-pk").values_list("pk", flat=True)
    recent = list(runs[:_RECENT_TRACKED])
    if not recent:
        return []
    condition = reduce(operator.and_, (Q(key__icontains=word) for word in words), Q())
    rows = LatestMetric.objects.filter(condition, tracked__run__in=recent).order_by("key").values_list("key")
    newest = dict(rows.annotate(run=Max("tracked__run"))[:LIMIT])
    found = Run.objects.select_related("experiment").only(*_OF_RUNS).in_bulk(list(newest.values()))
    return [(key, found[pk]) for key, pk in newest.items() if pk in found]


def matching_nodes(words: Sequence[str]) -> list[Node]:
    """Return nodes whose name or pool has all words."""
    condition = reduce(operator.and_, (Q(name__icontains=word) | Q(pool__icontains=word) for word in words), Q())
    return list(Node.objects.filter(condition).order_by(F("last_heartbeat_at").desc(nulls_last=True), "name")[:LIMIT])
