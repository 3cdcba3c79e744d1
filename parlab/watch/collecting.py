"""Results of watches: from ended runs of their configuration, and from other runs with their key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Experiment, Run, RunTag
from parlab.lab.services import storable
from runners.protocol import RunState

from .commits import commit_of
from .measures import MAX_MEASURES, values_of
from .models import Result, Watch

TAG = "parlab.watch"
"""Tag with which a script says to which watch its run belongs."""
COMMIT_TAG = "mlflow.source.git.commit"
AT_ONCE = 2_000


@transaction.atomic
def results_collect(*, watch: Watch) -> int:
    """Store the results of ended attempts that belong to a watch; return how many are new or have changed."""
    attempts = Attempt.objects.filter(run__in=_runs_of(watch), state=RunState.FINISHED).exclude(summary={})
    rows = attempts.select_related("run__config").with_members().order_by("-pk")[:AT_ONCE]
    commits = {commit.sha: commit.position for commit in watch.commits.all()}
    stored = {(row.run_id, row.attempt_number): row for row in watch.results.exclude(run=None)}
    new, count = [], 0
    for attempt in reversed(rows):
        result = _result_of(watch, attempt, commits)
        if result is None:
            continue
        earlier = stored.get((attempt.run_id, attempt.number))
        if earlier is None:
            new.append(result)
        elif (earlier.values, earlier.position) != (result.values, result.position):
            Result.objects.filter(pk=earlier.pk).update(values=result.values, position=result.position)
            count += 1
    Result.objects.bulk_create(new, ignore_conflicts=True)
    reported = _reported(watch, commits)
    Watch.objects.filter(pk=watch.pk).update(checked_at=timezone.now())
    return len(new) + count + reported


def _runs_of(watch: Watch) -> Any:
    """Return the measured runs of the configuration of a watch, in all versions that it made for commits."""
    if watch.config is None:
        return Run.objects.none()
    versions = Config.objects.filter(
        Q(pk=watch.config_id) | Q(digest=watch.config.digest) | Q(note__startswith=note_of(watch))
    )
    if not watch.repository:
        versions = versions.filter(digest=watch.config.digest)
    return Run.objects.filter(config__in=versions, origin=Run.Origin.MEASURED)


def note_of(watch: Watch) -> str:
    """Return how the notes of the versions begin that a watch made for commits."""
    return f"watch {watch.pk}: commit "


def _result_of(watch: Watch, attempt: Attempt, commits: dict[str, int]) -> Result | None:
    values = values_of(attempt.summary)
    if not values:
        return None
    commit = commit_of(attempt.run.config.data)
    if watch.repository and commit not in commits:
        return None  # it has no place in the order of commits
    return Result(
        watch=watch,
        run=attempt.run,
        attempt_number=attempt.number,
        series=attempt.run.label if attempt.run.point else "",
        at=attempt.ended_at or attempt.started_at or timezone.now(),
        position=commits.get(commit, 0) if watch.repository else 0,
        commit=commit,
        node=attempt.node_names[:200],
        environment=attempt.environment,
        values=values,
    )


def _reported(watch: Watch, commits: dict[str, int]) -> int:
    """Store the results of reported and imported runs with the key of a watch."""
    tagged = RunTag.objects.filter(key=TAG, value=watch.key).values("tracked__run")
    foreign = Run.objects.exclude(origin=Run.Origin.MEASURED).filter(state=RunState.FINISHED)
    runs = foreign.filter(Q(pk__in=tagged) | Q(label=watch.key)).exclude(summary={}).select_related("tracked")
    stored = {
        row.run_id: row for row in watch.results.filter(run__origin__in=[Run.Origin.REPORTED, Run.Origin.IMPORTED])
    }
    tags = _tags(runs)
    new, changed = [], 0
    for run in runs.order_by("pk")[:AT_ONCE]:
        values = values_of(run.summary)
        own = tags.get(run.pk, {})
        commit = own.get(COMMIT_TAG, "")[:64]
        if not values or (watch.repository and commit not in commits):
            continue
        earlier = stored.get(run.pk)
        if earlier is not None:
            if earlier.values != values:
                changed += Result.objects.filter(pk=earlier.pk).update(values=values)
            continue
        environment = {"tags": own} if own else {}
        new.append(
            Result(
                watch=watch, run=run, attempt_number=run.attempt_number, at=run.ended_at or run.queued_at,
                commit=commit, position=commits.get(commit, 0) if watch.repository else 0,
                node=own.get("host", "")[:200], environment=environment, values=values,
            )
        )  # fmt: skip
    Result.objects.bulk_create(new, ignore_conflicts=True)
    return len(new) + changed


def _tags(runs: Iterable[Run]) -> dict[int, dict[str, str]]:
    tags: dict[int, dict[str, str]] = {}
    for tag in RunTag.objects.filter(tracked__run__in=[run.pk for run in runs]).select_related("tracked"):
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
                )
            )  # fmt: skip
    Result.objects.bulk_create(new, ignore_conflicts=True)
    return len(new)


def history_store(*, watch: Watch, rows: Sequence[Any]) -> int:
    """Store the rows of an imported history; a row that the watch already has is updated. Return the number of rows."""
    commits = {commit.sha: commit.position for commit in watch.commits.all()}
    with transaction.atomic():
        for row in rows:
            values = {name[:200]: value for name, value in list(row.values.items())[:MAX_MEASURES]}
            fields = {
                "at": row.at,
                "commit": storable.text(row.commit)[:64],
                "position": commits.get(row.commit, 0) if watch.repository else 0,
                "node": storable.text(row.node)[:200],
                "series": storable.text(row.series)[:300],
                "environment": storable.json(row.environment),
                "values": values,
            }
            Result.objects.update_or_create(watch=watch, line=row.line[:200], defaults=fields)
    return len(rows)
