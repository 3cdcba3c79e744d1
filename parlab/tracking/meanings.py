"""The table from the names that scripts use to parlab's quantities and settings, for one experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from django.db import transaction
from django.db.models import Count

from parlab.formats.grammar.names import SETTINGS, setting_of
from parlab.formats.grammar.quantities import CHOICES, quantity_of_metric
from parlab.ingest.batches.services import attempts_end
from parlab.ingest.summaries.attempt_summaries import attempt_summarise, is_printed
from parlab.lab.models import Experiment, LatestMetric, NameMeaning, Run, RunParameter, TrackedRun
from parlab.lab.services.configs import lock_experiment
from parlab.lab.services.findings import findings_refresh
from parlab.tracking.runs import settings_read

MAX_NAMES = 500
"""Maximum number of names of each kind in the table; the most frequent ones."""
Kind = NameMeaning.Kind


class NameRow(NamedTuple):
    """One name, what it means by itself, and what a person has chosen."""

    name: str
    runs: int
    guess: str
    """Key of CHOICES or SETTINGS; empty: no meaning."""
    chosen: str | None
    """None: the guess counts."""


def metric_rows(experiment: Experiment) -> list[NameRow]:
    """Return the metrics of an experiment's reported runs."""
    return _rows(experiment, Kind.METRIC)


def setting_rows(experiment: Experiment) -> list[NameRow]:
    """Return the parameters of an experiment's reported runs."""
    return _rows(experiment, Kind.SETTING)


def _rows(experiment: Experiment, kind: NameMeaning.Kind) -> list[NameRow]:
    model: type[LatestMetric] | type[RunParameter] = LatestMetric if kind == Kind.METRIC else RunParameter
    counted = (
        model._default_manager.filter(tracked__run__experiment=experiment, tracked__deleted_at=None)
        .order_by()
        .values_list("key")
        .annotate(runs=Count("pk"))
        .order_by("-runs", "key")[:MAX_NAMES]
    )
    chosen = dict(experiment.name_meanings.filter(kind=kind).values_list("name", "meaning"))
    guess = metric_guess if kind == Kind.METRIC else setting_of
    rows = [NameRow(name, runs, guess(name), chosen.get(name)) for name, runs in counted]
    return sorted(rows, key=lambda row: (not row.guess and not row.chosen, row.name))


def metric_guess(name: str) -> str:
    """Return the key of CHOICES that a metric of this name has by itself; empty for none."""
    quantity = quantity_of_metric(name)
    if quantity is None:
        return ""
    exact = (key for key, choice in CHOICES.items() if choice.meaning == quantity)
    return next(exact, quantity.name)


@transaction.atomic
def meanings_set(*, experiment: Experiment, kind: str, meanings: Mapping[str, str]) -> int:
    """Replace the chosen meanings of one kind and compute the runs again; returns how many runs.

    Raises ValueError for a meaning that does not exist.
    """
    choices: Sequence[str] = list(CHOICES) if kind == Kind.METRIC else SETTINGS
    for name, meaning in meanings.items():
        if meaning and meaning not in choices:
            raise ValueError(f"unknown meaning {meaning!r} of {name!r}; use one of {', '.join(choices)}, or none")
    lock_experiment(experiment)
    rows = experiment.name_meanings.filter(kind=kind)
    if dict(rows.values_list("name", "meaning")) == dict(meanings):
        return 0
    rows.delete()
    NameMeaning.objects.bulk_create(
        NameMeaning(experiment=experiment, kind=kind, name=name, meaning=meaning) for name, meaning in meanings.items()
    )
    return _runs_compute(experiment)


def _runs_compute(experiment: Experiment) -> int:
    count = 0
    runs = TrackedRun.objects.select_related("run").filter(run__experiment=experiment, run__origin=Run.Origin.REPORTED)
    for tracked in runs.iterator():
        settings_read(tracked=tracked)
        attempt = tracked.run.attempts.select_related("run").get(number=tracked.run.attempt_number)
        if is_printed(attempt):
            transaction.on_commit(partial(attempts_end, [attempt]))
        else:
            attempt_summarise(attempt=attempt)
        count += 1
    findings_refresh(experiment=experiment)
    return count
