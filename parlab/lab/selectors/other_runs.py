"""Search for runs to compare with a run."""

from __future__ import annotations

import re
from typing import NamedTuple

from django.db.models import Case, Q, QuerySet, When

from parlab.lab.models import Experiment, Run

from . import filters

MAX_OFFERED = 20
"""Maximum number of search results."""
_NUMBER = re.compile(r"#?(\d{1,9})")


class OtherRuns(NamedTuple):
    """Search results, and the invalid terms of the search."""

    runs: list[Run]
    is_more: bool
    problems: list[filters.Problem]


def other_runs(run: Run, query: str) -> OtherRuns:
    """Search for runs to compare with: terms as in lists, words in labels and experiment names, run numbers."""
    terms, texts = filters.split(query)
    parsed = filters.parse(terms)
    numbers = [int(match[1]) for word in texts if (match := _NUMBER.fullmatch(word))]
    condition = parsed.runs
    for word in texts:
        condition &= _word_condition(word)
    if parsed.experiments:
        condition &= Q(experiment__in=Experiment.objects.filter(parsed.experiments).values("pk"))
    if not parsed.wants_archived:
        condition &= Q(experiment__archived_at=None) | Q(experiment=run.experiment_id)
    runs = Run.objects.filter(condition).exclude(pk=run.pk).select_related("experiment")
    number_order = Case(When(number__in=numbers, then=0), default=1)
    # Runs of the same experiment first, then the newest of other experiments.
    same = list(_light(runs.filter(experiment=run.experiment_id).order_by(number_order, "number")))
    missing = MAX_OFFERED + 1 - len(same)
    others = _light(runs.exclude(experiment=run.experiment_id).order_by(number_order, "-pk"))
    matches = [*same, *others[:missing]] if missing > 0 else same
    return OtherRuns(matches[:MAX_OFFERED], len(matches) > MAX_OFFERED, parsed.problems)


def _word_condition(word: str) -> Q:
    match = _NUMBER.fullmatch(word)
    if match is None:
        return Q(label__icontains=word) | Q(experiment__name__icontains=word)
    # A number matches the number of a run, or a whole number in a label: 4 does not match 64.
    return Q(number=int(match[1])) | Q(label__regex=rf"(^|[^0-9.]){match[1]}([^0-9.]|$)")


def _light(runs: QuerySet[Run]) -> QuerySet[Run]:
    return runs.defer("resolved", "summary", "launch", "experiment__notes", "experiment__source")[: MAX_OFFERED + 1]
