"""Events that people may be notified of, stored in the caller's transaction: what is committed is announced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from parlab.lab.models import Event, Exclusion, Experiment, Finding, InboxItem, MemberState, Node, Run
from runners.wire.protocol import RunState

from . import storable
from .inbox import item_open, items_close

MAX_TEXT = 2_000
_RUN_KINDS = {
    RunState.FINISHED: Event.Kind.RUN_FINISHED,
    RunState.FAILED: Event.Kind.RUN_FAILED,
    RunState.OOM: Event.Kind.RUN_OOM,
    RunState.LOST: Event.Kind.RUN_LOST,
    RunState.CANCELLED: Event.Kind.RUN_CANCELLED,
    RunState.CHECKPOINTED: Event.Kind.RUN_CANCELLED,
    RunState.TIME_LIMIT: Event.Kind.RUN_FAILED,
    RunState.PREEMPTED: Event.Kind.RUN_LOST,
}
_ENDINGS = {
    RunState.FINISHED: "finished",
    RunState.FAILED: "failed",
    RunState.OOM: "ran out of memory",
    RunState.LOST: "was lost",
    RunState.CANCELLED: "was cancelled",
    RunState.CHECKPOINTED: "ended with a checkpoint",
    RunState.TIME_LIMIT: "reached its time limit",
    RunState.PREEMPTED: "was preempted",
}


_TROUBLES = {Event.Kind.RUN_FAILED, Event.Kind.RUN_OOM, Event.Kind.RUN_LOST}


def run_ended(*, run: Run, attempt_number: int, state: RunState, reason: str = "") -> Event:
    """Store the event that the current attempt of a run has ended; one that went wrong needs a decision."""
    label = f" ({run.label})" if run.label else ""
    text = f"Run #{run.number}{label} of {run.experiment.name} {_ENDINGS[state]}"
    kind = _RUN_KINDS[state]
    if kind in _TROUBLES:
        item_open(
            kind=kind,
            key=f"{kind}/{run.pk}",
            occurrence=str(attempt_number),
            path=run.get_absolute_url(),
            experiment=run.experiment,
            run_id=run.pk,
            data={"reason": reason[:MAX_TEXT], "attempt": attempt_number},
        )
    elif state == RunState.FINISHED:
        items_close(keys=[f"{trouble}/{run.pk}" for trouble in _TROUBLES], reason="the run has finished")
    return event_add(
        kind=kind,
        text=f"{text}: {reason}" if reason else text,
        path=run.get_absolute_url(),
        experiment=run.experiment,
        run=run,
        data={"run": run.number, "attempt": attempt_number, "label": run.label, "state": state, "reason": reason},
    )


def run_alerted(*, run: Run, title: str, text: str, severity: str) -> Event:
    """Store the event that a script has raised an alert; the same title again is the same cause."""
    item_open(
        kind=Event.Kind.RUN_ALERT,
        key=f"{Event.Kind.RUN_ALERT}/{run.pk}/{storable.text(title)[:120]}",
        occurrence=timezone.now().isoformat(),
        path=run.get_absolute_url(),
        experiment=run.experiment,
        run_id=run.pk,
        data={"title": title, "reason": text, "severity": severity},
    )
    return event_add(
        kind=Event.Kind.RUN_ALERT,
        text=f"Run #{run.number} of {run.experiment.name}: {title}" + (f": {text}" if text else ""),
        path=run.get_absolute_url(),
        experiment=run.experiment,
        run=run,
        data={"run": run.number, "label": run.label, "title": title, "text": text, "severity": severity},
    )


def loss_judged(*, run: Run, attempt_number: int, loss: Mapping[str, Any]) -> None:
    """Open and close the items about the loss of a run's current attempt, by what the rules say about it."""
    gone = []
    for kind, part in _LOSS_PARTS.items():
        if part in loss:
            found = loss[part]
            _loss_open(kind, run, attempt_number, found if isinstance(found, Mapping) else loss)
        elif kind in _REVERSIBLE or attempt_number > 1:
            gone.append(f"{kind}/{run.pk}")
    if gone:
        items_close(keys=gone, reason="the loss is normal again")


def _loss_open(kind: Event.Kind, run: Run, attempt_number: int, data: Mapping[str, Any]) -> None:
    is_new = item_open(
        kind=kind,
        key=f"{kind}/{run.pk}",
        occurrence=str(attempt_number),
        path=run.get_absolute_url(),
        experiment=run.experiment,
        run_id=run.pk,
        data={name: value for name, value in data.items() if not isinstance(value, Mapping)},
    )
    if is_new:
        event_add(
            kind=kind,
            text=f"Run #{run.number} of {run.experiment.name}: {loss_text(kind, data)}",
            path=run.get_absolute_url(),
            experiment=run.experiment,
            run=run,
            data={"run": run.number, "attempt": attempt_number, "label": run.label},
        )


_LOSS_PARTS = {Event.Kind.RUN_NAN: "not_finite", Event.Kind.RUN_DIVERGED: "diverged", Event.Kind.RUN_SPIKE: "spikes"}
_REVERSIBLE = {Event.Kind.RUN_DIVERGED}
"""A loss may come down again while the run continues; a NaN and a spike have happened."""


def loss_text(kind: str, data: Mapping[str, Any]) -> str:
    """Return what a rule says about a loss as a part of a sentence."""
    if kind == Event.Kind.RUN_NAN:
        step = data.get("first_not_finite")
        return "the loss is NaN or infinite" + ("" if step is None else f" from step {step}")
    if kind == Event.Kind.RUN_DIVERGED:
        return f"the loss rose from {data['level']:.3g} to {data['reached']:.3g} since step {data['step']}"
    return f"the loss spiked to {data['value']:.3g} at step {data['step']}, from {data['level']:.3g}"


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


def findings_judged(*, experiment: Experiment, user: User | None = None) -> None:
    """Open, count and close the items about the findings of an experiment: one for each rule with open findings."""
    columns = ("pk", "rule", "message", "numbers", "run_id", "acknowledged_at")
    by_rule: dict[str, list[dict[str, Any]]] = {}
    for row in experiment.findings.order_by("severity", "pk").values(*columns):
        by_rule.setdefault(row["rule"][:80], []).append(row)
    prefix = finding_key(experiment.pk, "")
    open_keys = [prefix + rule for rule, rows in by_rule.items() if _finding_open(prefix + rule, experiment, rows)]
    gone = InboxItem.objects.open().filter(key__startswith=prefix).exclude(key__in=open_keys)
    reason = "acknowledged" if user else "the numbers no longer contradict each other"
    items_close(keys=list(gone.values_list("key", flat=True)), reason=reason, user=user)


def finding_key(experiment_id: int, rule: str) -> str:
    """Return the key of the item about the findings of a rule."""
    return f"{Event.Kind.FINDING_NEW}/{experiment_id}/{rule[:80]}"


def _finding_open(key: str, experiment: Experiment, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Open or update the item of a rule; False if none of its findings is open."""
    listed = [row for row in rows if row["acknowledged_at"] is None]
    if not listed:
        return False
    first, runs = listed[0], {row["run_id"] for row in listed}
    ids = ",".join(str(row["pk"]) for row in listed[:50])
    item_open(
        kind=Event.Kind.FINDING_NEW,
        key=key,
        occurrence=str(max(row["pk"] for row in rows)),
        path=f"{reverse('findings', args=[experiment.slug])}?id={ids}",
        experiment=experiment,
        run_id=first["run_id"] if len(runs) == 1 else None,
        data={"rule": first["rule"], "message": first["message"], "numbers": first["numbers"], "findings": len(listed)},
    )
    return True


def node_lost(*, node: Node, last_heartbeat_at: datetime) -> None:
    """Store the event that a node is silent, once per silence."""
    stopped = node.members.filter(state=MemberState.LOST, ended_at__gte=last_heartbeat_at).count()
    item_open(
        kind=Event.Kind.NODE_LOST,
        key=f"{Event.Kind.NODE_LOST}/{node.pk}",
        occurrence=f"{last_heartbeat_at.timestamp():.3f}",
        path=reverse("nodes"),
        node=node,
        data={"last_heartbeat_at": last_heartbeat_at.isoformat(), "pool": node.pool, "runs": stopped},
    )
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


def nodes_back(*, nodes: Iterable[Node]) -> None:
    """Close the items of nodes that report again."""
    items_close(keys=[f"{Event.Kind.NODE_LOST}/{node.pk}" for node in nodes], reason="the node reports again")


def node_excluded(*, exclusion: Exclusion) -> None:
    """Store the event that a node has excluded itself."""
    node, path = exclusion.node, reverse("node", args=[exclusion.node.name])
    item_open(
        kind=Event.Kind.NODE_EXCLUDED,
        key=_exclusion_key(node, exclusion.host),
        occurrence=str(exclusion.pk),
        path=path,
        node=node,
        data={
            "place": exclusion.place_name,
            "pool": node.pool,
            "reason": exclusion.reason,
            "until": exclusion.until.isoformat() if exclusion.until else "",
        },
    )
    event_add(
        kind=Event.Kind.NODE_EXCLUDED,
        text=f"Node {exclusion.place_name} gets no runs: {exclusion.reason}",
        path=path,
        data={"node": exclusion.place_name, "pool": node.pool, "reason": exclusion.reason},
    )


def node_included(*, node: Node, host: str, reason: str) -> None:
    """Close the item of a node that gets runs again."""
    items_close(keys=[_exclusion_key(node, host)], reason=reason)


def _exclusion_key(node: Node, host: str) -> str:
    return f"{Event.Kind.NODE_EXCLUDED}/{node.pk}/{host}"


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
