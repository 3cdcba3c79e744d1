"""The life cycle of an attempt. Lock order: the row of the attempt before that of its run."""

import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Attempt, Run, Snapshot
from runners.config import digest
from runners.protocol import ACTIVE_STATES, Report, RunState

from . import storable

logger = logging.getLogger(__name__)

_MAX_EXIT_CODE = 2**31 - 1


def lock_attempt(attempt: Attempt) -> tuple[Attempt, Run]:
    """Lock an attempt and its run until the end of the transaction, and return their current rows."""
    # Without "no key", appending to the series of this attempt would block on its foreign key to this row.
    locked = Attempt.objects.select_for_update(no_key=True).get(pk=attempt.pk)
    return locked, Run.objects.select_for_update(no_key=True).get(pk=locked.run_id)


@transaction.atomic
def attempt_report(*, attempt: Attempt, report: Report) -> bool:
    """Apply a node's report on an attempt; states only move forward. Returns whether anything changed.

    A lost attempt is followed by a new one if `launcher.max_attempts` allows it and the run was not cancelled.
    """
    current, run = lock_attempt(attempt)
    is_current = run.attempt_number == current.number
    state, reason = RunState(report.state), storable.text(report.reason)
    if state == RunState.LOST and is_current and run.cancel_requested_at is not None:
        state, reason = RunState.CANCELLED, f"cancelled; {reason}".strip("; ")
    may_follow = ACTIVE_STATES if state.is_final else (RunState.QUEUED, RunState.DISPATCHED)
    facts = {"state": state, "reason": reason, **_times(current, state, report.at)}
    if not Attempt.objects.filter(pk=current.pk, state__in=may_follow).update(**facts, **_evidence(report)):
        return False
    if report.environment:
        _environment_snapshot(run, current, report)
    if is_current:
        Run.objects.filter(pk=run.pk, attempt_number=current.number).update(**facts)
        if state == RunState.LOST and current.number < _max_attempts(run):
            queue_next_attempt(run)
    logger.info("run %s attempt %s: %s -> %s %s", run.pk, current.number, current.state, state, reason)
    return True


def attempt_lose(*, attempt: Attempt, reason: str) -> bool:
    """Mark an attempt as lost because its node no longer responds; returns whether it was still active."""
    report = Report(state="lost", at=timezone.now().timestamp(), reason=reason)
    return attempt_report(attempt=attempt, report=report)


def queue_next_attempt(run: Run) -> Attempt:
    """Make a new attempt without results the current one of a locked run."""
    attempt = Attempt.objects.create(run=run, number=run.attempt_number + 1)
    Run.objects.filter(pk=run.pk, attempt_number=run.attempt_number).update(
        attempt_number=attempt.number,
        state=RunState.QUEUED,
        reason="",
        cancel_requested_at=None,
        started_at=None,
        ended_at=None,
        summary={},
        **headline({}),
    )
    configuration_snapshot(run, attempt.number).save(force_insert=True)
    return attempt


@transaction.atomic
def summary_store(*, attempt: Attempt, summary: Mapping[str, Any]) -> None:
    """Store the summary of an attempt; for an attempt that has ended, also as a snapshot."""
    current, run = lock_attempt(attempt)
    clean = storable.json(summary)
    Attempt.objects.filter(pk=current.pk).update(summary=clean)
    Run.objects.filter(pk=run.pk, attempt_number=current.number).update(summary=clean, **headline(clean))
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
    Run.objects.filter(pk=run.pk, attempt_number=current.number).update(launch=storable.json(launch))


def headline(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers by which lists sort; None if the summary has no such number."""
    step_time = _number(summary, "step_time_s", "median")
    return {
        "step_time_s": _number(summary, "step_time_s", "mean") if step_time is None else step_time,
        "samples_per_s": _number(summary, "samples_per_s"),
        "tokens_per_s": _number(summary, "tokens_per_s"),
        "memory_max_bytes": _number(summary, "memory_peak_bytes", "max"),
    }


def _number(summary: Mapping[str, Any], *path: str) -> float | None:
    value: Any = summary
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _times(attempt: Attempt, state: RunState, at: float) -> dict[str, datetime]:
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        moment = timezone.now()  # the clock of the node is wrong
    if state.is_final:
        return {"ended_at": moment}
    return {} if attempt.started_at else {"started_at": moment}


def _evidence(report: Report) -> dict[str, Any]:
    """Return the fields that a report sets on an attempt; empty values keep those of an earlier report."""
    fields: dict[str, Any] = {
        "traceback": storable.text(report.traceback),
        "command": storable.json(report.command),
        "environment": storable.json(report.environment),
    }
    evidence = {name: value for name, value in fields.items() if value}
    if report.exit_code is not None and abs(report.exit_code) <= _MAX_EXIT_CODE:
        evidence["exit_code"] = report.exit_code
    return evidence


def _max_attempts(run: Run) -> int:
    return int(run.resolved.get("launcher", {}).get("max_attempts", 1))


def configuration_snapshot(run: Run, attempt_number: int) -> Snapshot:
    content = {"config": run.resolved, "point": run.point, "version": run.config.version}
    return _snapshot(run, attempt_number, Snapshot.Kind.CONFIGURATION, content)


def results_snapshot(run: Run, attempt_number: int, content: dict[str, Any]) -> Snapshot:
    return _snapshot(run, attempt_number, Snapshot.Kind.RESULTS, content)


def _environment_snapshot(run: Run, attempt: Attempt, report: Report) -> None:
    content = {
        "node": attempt.node.name if attempt.node else None,
        "environment": storable.json(report.environment),
        "command": storable.json(report.command),
    }
    snapshot = _snapshot(run, attempt.number, Snapshot.Kind.ENVIRONMENT, content)
    Snapshot.objects.bulk_create([snapshot], ignore_conflicts=True)


def _snapshot(run: Run, attempt_number: int, kind: Snapshot.Kind, content: dict[str, Any]) -> Snapshot:
    return Snapshot(
        experiment_id=run.experiment_id,
        run=run,
        attempt_number=attempt_number,
        kind=kind,
        digest=digest(content),
        content=content,
    )
