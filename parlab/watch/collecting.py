"""Results of watches: from ended runs of their configuration, and from other runs with their key.

Each look reads only what was stored since the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Experiment, Run, RunTag
from parlab.lab.services import storable
from parlab.watch.analysis.environments import hardware_of
from parlab.watch.analysis.measures import MAX_MEASURES, values_of
from runners.wire.protocol import RunState

from .commits import commit_of
from .models import Result, Watch

_Row = TypeVar("_Row")
TAG = "parlab.watch"
"""Tag with which a script says to which watch its run belongs."""
COMMIT_TAG = "mlflow.source.git.commit"
AT_ONCE = 500
"""Rows in memory at a time."""
OVERLAP = timedelta(minutes=5)
"""What is read twice: a transaction becomes visible only when it ends, and clocks of nodes differ."""


@transaction.atomic
def results_collect(*, watch: Watch) -> int:
    """Store the results that are new or have changed since the last look at a watch; return how many."""
    now = timezone.now()
    checked_at = Watch.objects.values_list("checked_at", flat=True).get(pk=watch.pk)
    since = checked_at - OVERLAP if checked_at else None
    places = _Places(watch)
    count = sum(_attempts_store(watch, rows, places) for rows in _parts(_new_attempts(watch, since)))
    count += sum(_foreign_store(watch, rows, places) for rows in _parts(_new_foreign(watch, since)))
    Watch.objects.filter(pk=watch.pk).update(checked_at=now)
    return count


class _Places:
    """Positions of commits, read when the first of them is needed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._positions: dict[str, int] | None = None

    def of(self, commit: str) -> int | None:
        """Return the place of a commit, 0 without a repository; None if the branch does not contain it."""
        if not self._watch.repository:
            return 0
        if self._positions is None:
            self._positions = dict(self._watch.commits.values_list("sha", "position"))
        return self._positions.get(commit)


def _parts(rows: Iterable[_Row]) -> Iterator[Sequence[_Row]]:
    iterator = iter(rows)
    while part := list(islice(iterator, AT_ONCE)):
        yield part


def _new_attempts(watch: Watch, since: datetime | None) -> Iterator[Attempt]:
    attempts = Attempt.objects.filter(run__in=_runs_of(watch), state=RunState.FINISHED).exclude(summary={})
    if since is not None:
        attempts = attempts.filter(Q(numbers_at__gte=since) | Q(ended_at__gte=since))
    rows = attempts.select_related("run__config").defer("environment", "command", "traceback", "run__summary")
    return rows.with_members().order_by("pk").iterator(AT_ONCE)


def _runs_of(watch: Watch) -> QuerySet[Run]:
    """Return the measured runs of the configuration of a watch, in all versions that it made for commits."""
    if watch.config is None:
        return Run.objects.none()
    versions = Config.objects.filter(
        Q(pk=watch.config_id) | Q(digest=watch.config.digest) | Q(note__startswith=note_of(watch))
    )
    if not watch.repository:
        versions = versions.filter(digest=watch.config.digest)
    of_project = Experiment.objects.filter(project=watch.project_id).values("pk")
    return Run.objects.filter(config__in=versions, experiment__in=of_project, origin=Run.Origin.MEASURED)


def note_of(watch: Watch) -> str:
    """Return how the notes of the versions begin that a watch made for commits."""
    return f"watch {watch.pk}: commit "


def _attempts_store(watch: Watch, attempts: Sequence[Attempt], places: _Places) -> int:
    """Store the results of some attempts; return how many are new or have changed."""
    runs = {attempt.run_id for attempt in attempts}
    rows = watch.results.filter(run__in=runs).defer("environment")
    stored = {(row.run_id, row.attempt_number): row for row in rows}
    new: dict[int, Result] = {}
    changed = []
    for attempt in attempts:
        commit = commit_of(attempt.run.config.data)
        position, values = places.of(commit), values_of(attempt.summary)
        if position is None or not values:
            continue
        earlier = stored.get((attempt.run_id, attempt.number))
        if earlier is None:
            new[attempt.pk] = Result(
                watch=watch, run=attempt.run, attempt_number=attempt.number,
                series=attempt.run.label if attempt.run.point else "",
                at=attempt.ended_at or attempt.started_at or timezone.now(),
                position=position, commit=commit, node=attempt.node_names[:200], values=values,
            )  # fmt: skip
        elif (earlier.values, earlier.position) != (values, position):
            earlier.values, earlier.position = values, position
            changed.append(earlier)
    for pk, environment in Attempt.objects.filter(pk__in=new).values_list("pk", "environment"):
        new[pk].environment, new[pk].hardware = environment, hardware_of(environment)
    Result.objects.bulk_create(new.values(), ignore_conflicts=True)
    Result.objects.bulk_update(changed, ["values", "position"])
    return len(new) + len(changed)


def _new_foreign(watch: Watch, since: datetime | None) -> Iterator[Run]:
    """Return reported and imported runs with the key of a watch that ended or changed since a moment."""
    tagged = RunTag.objects.filter(key=TAG, value=watch.key).values("tracked__run")
    runs = Run.objects.exclude(origin=Run.Origin.MEASURED).filter(state=RunState.FINISHED).exclude(summary={})
    runs = runs.filter(experiment__in=Experiment.objects.filter(project=watch.project_id).values("pk"))
    if since is not None:
        # A tag that is set later counts as a report.
        runs = runs.filter(Q(numbers_at__gte=since) | Q(ended_at__gte=since) | Q(tracked__last_report_at__gte=since))
    return runs.filter(Q(pk__in=tagged) | Q(label=watch.key)).order_by("pk").iterator(AT_ONCE)


def _foreign_store(watch: Watch, runs: Sequence[Run], places: _Places) -> int:
    """Store the results of some reported or imported runs; return how many are new or have changed."""
    stored = {row.run_id: row for row in watch.results.filter(run__in=runs).defer("environment")}
    tags = _tags(runs)
    new, changed = [], []
    for run in runs:
        own, values = tags.get(run.pk, {}), values_of(run.summary)
        commit = own.get(COMMIT_TAG, "")[:64]
        position = places.of(commit)
        if not values or position is None:
            continue
        earlier = stored.get(run.pk)
        if earlier is None:
            new.append(
                Result(
                    watch=watch, run=run, attempt_number=run.attempt_number, at=run.ended_at or run.queued_at,
                    commit=commit, position=position, node=own.get("host", "")[:200],
                    environment={"tags": own} if own else {}, values=values,
                )
            )  # fmt: skip
        elif earlier.values != values:
            earlier.values = values
            changed.append(earlier)
    Result.objects.bulk_create(new, ignore_conflicts=True)
    Result.objects.bulk_update(changed, ["values"])
    return len(new) + len(changed)


def _tags(runs: Sequence[Run]) -> dict[int, dict[str, str]]:
    tags: dict[int, dict[str, str]] = {}
    for tag in RunTag.objects.filter(tracked__run__in=runs).select_related("tracked"):
        tags.setdefault(tag.tracked.run_id, {})[tag.key] = tag.value[:200]
    return tags


@transaction.atomic
def experiment_store(*, watch: Watch, experiment: Experiment) -> int:
    """Store the finished runs of an experiment in the order in which they ended; return how many are new."""
    runs = Run.objects.filter(experiment=experiment, state=RunState.FINISHED).exclude(summary={})
    stored = set(watch.results.exclude(run=None).values_list("run_id", flat=True))
    attempts = Attempt.objects.filter(run__in=runs).select_related("run").with_members()
    by_run = {attempt.run_id: attempt for attempt in attempts.order_by("number")}
    new = []
    for run in runs.exclude(pk__in=stored).order_by("ended_at", "pk"):
        values, attempt = values_of(run.summary), by_run.get(run.pk)
        if values:
            new.append(
                Result(
                    watch=watch, run=run, attempt_number=run.attempt_number, at=run.ended_at or run.queued_at,
                    node=attempt.node_names[:200] if attempt else "", values=values,
                    environment=attempt.environment if attempt else {}, commit=commit_of(run.resolved),
                    hardware=hardware_of(attempt.environment) if attempt else "",
                )
            )  # fmt: skip
    Result.objects.bulk_create(new, ignore_conflicts=True)
    return len(new)


def history_store(*, watch: Watch, rows: Sequence[Any]) -> int:
    """Store the rows of an imported history; a row that the watch already has is updated. Return the number of rows."""
    places = _Places(watch)
    with transaction.atomic():
        for part in _parts({row.line[:200]: row for row in rows}.values()):
            _lines_store(watch, part, places)
    return len(rows)


_LINE_FIELDS = ["at", "commit", "position", "node", "series", "environment", "values"]


def _lines_store(watch: Watch, rows: Sequence[Any], places: _Places) -> None:
    lines = [row.line[:200] for row in rows]
    stored = {row.line: row for row in watch.results.filter(line__in=lines)}
    new: list[Result] = []
    changed: list[Result] = []
    for line, row in zip(lines, rows, strict=True):
        result = stored.get(line) or Result(watch=watch, line=line)
        result.at, result.commit = row.at, storable.text(row.commit)[:64]
        result.position = places.of(row.commit) or 0
        result.node, result.series = storable.text(row.node)[:200], storable.text(row.series)[:300]
        result.environment = storable.json(row.environment)
        result.values = {name[:200]: value for name, value in list(row.values.items())[:MAX_MEASURES]}
        (changed if result.pk else new).append(result)
    Result.objects.bulk_create(new)
    Result.objects.bulk_update(changed, _LINE_FIELDS)
