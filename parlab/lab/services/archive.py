"""The archive of experiments; the archive and the deletion of runs."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from parlab.lab.models import Attempt, Experiment, Finding, Member, Run, RunNote, Snapshot, TrackedRun

from .findings import findings_refresh
from .pictures import files_forget


@transaction.atomic
def experiments_archive(*, experiments: Iterable[Experiment]) -> tuple[list[int], list[str]]:
    """Archive experiments; returns the ids of those archived, and the names of those with active runs."""
    by_id = {experiment.pk: experiment for experiment in experiments}
    busy = set(Run.objects.active().filter(experiment__in=by_id).values_list("experiment_id", flat=True))
    ids = [pk for pk, experiment in by_id.items() if pk not in busy and experiment.archived_at is None]
    Experiment.objects.filter(pk__in=ids, archived_at=None).update(archived_at=timezone.now())
    return ids, [by_id[pk].name for pk in sorted(busy)]


@transaction.atomic
def experiments_restore(*, experiments: Iterable[Experiment]) -> list[int]:
    """Restore experiments from the archive; returns the ids of those that were archived."""
    ids = [experiment.pk for experiment in experiments if experiment.archived_at is not None]
    Experiment.objects.filter(pk__in=ids).update(archived_at=None)
    return ids


@transaction.atomic
def runs_archive(*, runs: Iterable[Run]) -> tuple[list[int], list[Run]]:
    """Archive runs: no table, figure or finding uses them until they are restored.

    Returns the ids of the archived runs, and the active runs, which are not archived.
    """
    ids = [run.pk for run in runs]
    active = list(Run.objects.active().select_related("experiment").filter(pk__in=ids))
    now = timezone.now()
    shown = list(Run.objects.final().filter(pk__in=ids).values_list("pk", flat=True))
    Run.objects.final().filter(pk__in=shown).update(hidden_at=now)
    TrackedRun.objects.filter(run__in=shown).update(deleted_at=now)
    _refresh_findings(shown)
    return shown, active


@transaction.atomic
def runs_restore(*, run_ids: Sequence[int]) -> list[int]:
    """Restore runs from the archive; returns the ids of those that were archived."""
    ids = list(Run.everything.filter(pk__in=run_ids, hidden_at__isnull=False).values_list("pk", flat=True))
    Run.everything.filter(pk__in=ids).update(hidden_at=None)
    TrackedRun.objects.filter(run__in=ids).update(deleted_at=None)
    _refresh_findings(ids)
    return ids


class RunContents(NamedTuple):
    runs: int
    attempts: int
    output_bytes: int
    findings: int
    pictures: int
    notes: int


def runs_contents(*, runs: Sequence[Run]) -> RunContents:
    """Count what `runs_delete` would delete."""
    ids = [run.pk for run in runs]
    output = Member.objects.filter(attempt__run__in=ids).aggregate(total=Sum("committed"))["total"]
    return RunContents(
        len(ids),
        Attempt.objects.filter(run__in=ids).count(),
        int(output or 0),
        Finding.objects.filter(run__in=ids).count(),
        Snapshot.objects.filter(run__in=ids, kind=Snapshot.Kind.IMAGE).count(),
        RunNote.objects.filter(run__in=ids).count(),
    )


@transaction.atomic
def runs_delete(*, runs: Sequence[Run]) -> int:
    """Delete runs with everything recorded about them; published reports keep their numbers.

    Raises ValueError if one of them is active.
    """
    ids = [run.pk for run in runs]
    active = Run.everything.active().select_related("experiment").filter(pk__in=ids).first()
    if active is not None:
        raise ValueError(f"{active} is {active.state}; cancel it first")
    experiments = _experiments_of(ids)
    pictures = Snapshot.objects.filter(run__in=ids, kind=Snapshot.Kind.IMAGE)
    names = [sha for sha in pictures.values_list("content__sha256", flat=True) if sha]
    count = len(Run.everything.filter(pk__in=ids).values_list("pk", flat=True))
    Run.everything.filter(pk__in=ids).delete()
    files_forget(names=names)
    _refresh_later(experiments)
    return count


def _refresh_findings(run_ids: Sequence[int]) -> None:
    _refresh_later(_experiments_of(run_ids))


def _experiments_of(run_ids: Sequence[int]) -> list[Experiment]:
    return list(Experiment.objects.filter(runs__in=Run.everything.filter(pk__in=run_ids)).distinct())


def _refresh_later(experiments: Iterable[Experiment]) -> None:
    for experiment in experiments:
        transaction.on_commit(partial(findings_refresh, experiment=experiment), robust=True)
