"""Rows of attempts and their summaries. Lock order: the row of the attempt before that of its run."""

import math
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Attempt, Member, Run, Snapshot
from runners.config import digest
from runners.wire.protocol import Report, RunState

from . import storable
from .events import loss_judged


def lock_attempt(attempt: Attempt) -> tuple[Attempt, Run]:
    """Lock an attempt and its run until the end of the transaction, and return their current rows."""
    # Without "no key", appending to the series of this attempt would block on its foreign key to this row.
    locked = Attempt.objects.select_for_update(no_key=True).get(pk=attempt.pk)
    return locked, Run.everything.select_for_update(no_key=True).get(pk=locked.run_id)


def queue_next_attempt(run: Run) -> Attempt:
    """Make a new attempt without results the current one of a locked run; a chain keeps those of earlier ones."""
    results: dict[str, Any] = {} if run.is_chain else {"summary": {}, **headline({})}
    attempt = Attempt.objects.create(run=run, number=run.attempt_number + 1)
    Run.everything.filter(pk=run.pk, attempt_number=run.attempt_number).update(
        attempt_number=attempt.number,
        state=RunState.QUEUED,
        reason="",
        cancel_requested_at=None,
        started_at=None,
        ended_at=None,
        **results,
    )
    configuration_snapshot(run, attempt.number).save(force_insert=True)
    return attempt


@transaction.atomic
def summary_store(*, attempt: Attempt, summary: Mapping[str, Any], of_run: Mapping[str, Any] | None = None) -> None:
    """Store the summary of an attempt; for an attempt that has ended, also as a snapshot.

    `of_run` is that of the run, if it is another one: in a chain that of all attempts.
    """
    current, run = lock_attempt(attempt)
    clean, now = storable.json(summary), timezone.now()
    whole = clean if of_run is None else storable.json(of_run)
    Attempt.objects.filter(pk=current.pk).update(summary=clean, numbers_at=now)
    Run.everything.filter(pk=run.pk, attempt_number=current.number).update(
        summary=whole, numbers_at=now, **headline(whole)
    )
    if run.attempt_number == current.number:
        loss_judged(run=run, attempt_number=current.number, loss=whole.get("loss") or {})
    if RunState(current.state).is_final:
        content = {
            "state": current.state,
            "reason": current.reason,
            "exit_code": current.exit_code,
            "summary": clean,
        }
        Snapshot.objects.bulk_create([results_snapshot(run, current.number, content)], ignore_conflicts=True)


@transaction.atomic
def launch_store(*, attempt: Attempt, launch: Mapping[str, Any]) -> None:
    """Store the launch arguments that a command printed, if this is the current attempt of its run."""
    current, run = lock_attempt(attempt)
    Run.everything.filter(pk=run.pk, attempt_number=current.number).update(launch=storable.json(launch))


def headline(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers by which lists sort, None if the summary has no such number; and the mark of the loss."""
    step_time = _summary_number(summary, "step_time_s", "median")
    return {
        "step_time_s": _summary_number(summary, "step_time_s", "mean") if step_time is None else step_time,
        "samples_per_s": _summary_number(summary, "samples_per_s"),
        "tokens_per_s": _summary_number(summary, "tokens_per_s"),
        "memory_max_bytes": _summary_number(summary, "memory_peak_bytes", "max"),
        "loss_mark": _loss_mark(summary.get("loss") or {}),
    }


def _loss_mark(loss: Mapping[str, Any]) -> str:
    if loss.get("not_finite"):
        return Run.LossMark.NAN
    return Run.LossMark.DIVERGED if loss.get("diverged") else ""


def _summary_number(summary: Mapping[str, Any], *path: str) -> float | None:
    value: Any = summary
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def configuration_snapshot(run: Run, attempt_number: int) -> Snapshot:
    content = {"config": run.resolved, "point": run.point, "version": run.config.version}
    return _snapshot(run, attempt_number, Snapshot.Kind.CONFIGURATION, content)


def results_snapshot(run: Run, attempt_number: int, content: dict[str, Any]) -> Snapshot:
    return _snapshot(run, attempt_number, Snapshot.Kind.RESULTS, content)


def environment_snapshot(run: Run, attempt: Attempt, member: Member, report: Report) -> Snapshot:
    content = {
        "node": member.node.name if member.node else None,
        "environment": storable.json(report.environment),
        "command": storable.json(report.command),
    }
    return _snapshot(run, attempt.number, Snapshot.Kind.ENVIRONMENT, content)


def _snapshot(run: Run, attempt_number: int, kind: Snapshot.Kind, content: dict[str, Any]) -> Snapshot:
    return Snapshot(
        experiment_id=run.experiment_id,
        run=run,
        attempt_number=attempt_number,
        kind=kind,
        digest=digest(content),
        content=content,
    )
