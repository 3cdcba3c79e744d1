"""Events that people may be notified of, stored in the caller's transaction: what is committed is announced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils import timezone

from parlab.lab.models import Event, Experiment, Finding, Node, Run
from runners.wire.protocol import RunState

from . import storable

MAX_TEXT = 2_000
_RUN_KINDS = {
    RunState.FINISHED: Event.Kind.RUN_FINISHED,
    RunState.FAILED: Event.Kind.RUN_FAILED,
    RunState.OOM: Event.Kind.RUN_OOM,
    RunState.LOST: Event.Kind.RUN_LOST,
    RunState.CANCELLED: Event.Kind.RUN_CANCELLED,
}
_ENDINGS = {
    RunState.FINISHED: "finished",
    RunState.FAILED: "failed",
    RunState.OOM: "ran out of memory",
    RunState.LOST: "was lost",
    RunState.CANCELLED: "was cancelled",
}


def run_ended(*, run: Run, attempt_number: int, state: RunState, reason: str = "") -> Event:
    """Store the event that the current attempt of a run has ended."""
    label = f" ({run.label})" if run.label else ""
    text = f"Run #{run.number}{label} of {run.experiment.name} {_ENDINGS[state]}"
    return event_add(
        kind=_RUN_KINDS[state],
        text=f"{text}: {reason}" if reason else text,
        path=run.get_absolute_url(),
        experiment=run.experiment,
        run=run,
        data={"run": run.number, "attempt": attempt_number, "label": run.label, "state": state, "reason": reason},
    )


def findings_added(*, experiment: Experiment, findings: Sequence[Finding]) -> None:
    """Store an event per new finding; one that disappears and comes back is no new finding."""
    now, path = timezone.now(), reverse("findings", args=[experiment.slug])
    Event.objects.bulk_create(
        [
            Event(
                kind=Event.Kind.FINDING_NEW,
                key=f"finding/{experiment.pk}/{finding.rule[:80]}/{finding.where_digest}",
                at=now,
                experiment=experiment,
                run_id=finding.run_id,
                text=f"New finding in {experiment.name}: {finding.message}"[:MAX_TEXT],
                path=path,
                data={"rule": finding.rule, "severity": finding.severity, "message": finding.message},
            )
            for finding in findings
        ],
        batch_size=100,
        ignore_conflicts=True,
    )


def node_lost(*, node: Node, last_heartbeat_at: datetime) -> None:
    """Store the event that a node is silent, once per silence."""
    Event.objects.bulk_create(
        [
            Event(
                kind=Event.Kind.NODE_LOST,
                key=f"node/{node.pk}/{last_heartbeat_at.timestamp():.3f}",
                at=timezone.now(),
                text=f"Node {node.name} is lost: no heartbeat since {last_heartbeat_at:%Y-%m-%d %H:%M:%S} UTC",
                path=reverse("nodes"),
                data={"node": node.name, "pool": node.pool, "last_heartbeat_at": last_heartbeat_at.isoformat()},
            )
        ],
        ignore_conflicts=True,
    )


def event_add(
    *,
    kind: str,
    text: str,
    path: str = "",
    experiment: Experiment | None = None,
    run: Run | None = None,
    data: Mapping[str, Any] | None = None,
) -> Event:
    """Store an event in the transaction of the caller."""
    return Event.objects.create(
        kind=kind,
        at=timezone.now(),
        experiment=experiment,
        run=run,
        text=storable.text(text)[:MAX_TEXT],
        path=path[:300],
        data=storable.json(data or {}),
    )
