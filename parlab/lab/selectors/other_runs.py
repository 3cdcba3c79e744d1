"""Runs to compare a run with, as a search selects them."""

from __future__ import annotations

import re
from typing import NamedTuple

from django.db.models import Case, Q, QuerySet, When

from parlab.lab.models import Experiment, Run

from . import filters

MAX_OFFERED = 20
"""Runs that a search offers at a time."""
_NUMBER = re.compile(r"#?(\d{1,9})")


class OtherRuns(NamedTuple):
    """Runs that a search found, with what could not be understood of it."""

    runs: list[Run]
    is_more: bool
    problems: list[filters.Problem]


def other_runs(run: Run, query: str) -> OtherRuns:
    """Search runs to compare with: terms as in the lists; words in labels and names of experiments; `#7`, `7`."""
    terms, words = filters.split(query)
    asked = filters.parse(terms)
    numbers = [int(match[1]) for word in words if (match := _NUMBER.fullmatch(word))]
    condition = asked.runs
    for word in words:
        condition &= _says(word)
    if asked.experiments:
        condition &= Q(experiment__in=Experiment.objects.filter(asked.experiments).values("pk"))
    if not asked.wants_archived:
        condition &= Q(experiment__archived_at=None) | Q(experiment=run.experiment_id)
    runs = Run.objects.filter(condition).exclude(pk=run.pk).select_related("experiment")
    is_meant = Case(When(number__in=numbers, then=0), default=1)
    # Those of its own experiment first; of others the newest.
    mine = list(_light(runs.filter(experiment=run.experiment_id).order_by(is_meant, "number")))
    missing = MAX_OFFERED + 1 - len(mine)
    others = _light(runs.exclude(experiment=run.experiment_id).order_by(is_meant, "-pk"))
    found = [*mine, *others[:missing]] if missing > 0 else mine
    return OtherRuns(found[:MAX_OFFERED], len(found) > MAX_OFFERED, asked.problems)


def _says(word: str) -> Q:
    match = _NUMBER.fullmatch(word)
    if match is None:
        return Q(label__icontains=word) | Q(experiment__name__icontains=word)
    # A number is that of a run, or stands for itself in a label: 4 is not in 64.
    return Q(number=int(match[1])) | Q(label__regex=rf"(^|[^0-9.]){match[1]}([^0-9.]|$)")


def _light(runs: QuerySet[Run]) -> QuerySet[Run]:
    return runs.defer("resolved", "summary", "launch", "experiment__notes", "experiment__source")[: MAX_OFFERED + 1]
