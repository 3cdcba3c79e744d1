"""Approval of launches: beyond the budget of a project, runs wait in the queue until a maintainer has decided.

A budget counts GPU hours that a person has queued and running without an approval where the budget holds, each run with
its time limit; so many small launches are treated as a large one. Every launch passes here, whatever road it came by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from parlab.lab.models import Attempt, Event, LaunchApproval, Project, Run
from parlab.lab.services.access.budgets import budget_holder, gpu_hours, is_above_budget, may_decide
from parlab.lab.services.access.rights import project_of
from runners.wire.protocol import RunState

from . import events
from .inbox import item_open, items_close

ACTIVE = (RunState.QUEUED, RunState.DISPATCHED, RunState.RUNNING)
REFUSED = "not approved"


def may_start() -> Q:
    """Match runs that need no approval, or have it."""
    return Q(approval=None) | Q(approval__is_approved=True)


def approval_ask(*, runs: Sequence[Run], user: User) -> LaunchApproval | None:
    """Hold queued runs that go beyond the budget of their project; None if they may start."""
    if not runs:
        return None
    experiment = runs[0].experiment
    holder = budget_holder(project_of(runs[0]))
    budget = holder.approval_gpu_hours
    asked = sum(gpu_hours(run.resolved, run.attempt_number) for run in runs)
    if budget is None or not asked or is_above_budget(user, holder):
        return None
    # Launches at the same moment wait for each other here, so that each counts those before it.
    Project.objects.select_for_update(no_key=True).get(pk=holder.pk)
    if asked + _outstanding(holder, user, runs) <= budget:
        return None
    hours = asked if math.isfinite(asked) else None
    approval = LaunchApproval.objects.create(experiment=experiment, asked_by=user, gpu_hours=hours, budget=budget)
    Run.everything.filter(pk__in=[run.pk for run in runs]).update(approval=approval)
    for run in runs:
        run.approval = approval
    facts = {
        "gpu_hours": hours,
        "budget": budget,
        "runs": len(runs),
        "user": user.get_username(),
        "approval": approval.pk,
    }
    item_open(
        kind=Event.Kind.LAUNCH_ASKED, key=approval.key, experiment=experiment, path=experiment.get_absolute_url(),
        data=facts, run_id=runs[0].pk if len(runs) == 1 else None,
    )  # fmt: skip
    text = f"{user} asks for {approval.amount} in {experiment.name}, beyond the budget of {budget:g}"
    events.event_add(
        kind=Event.Kind.LAUNCH_ASKED, text=text, path=experiment.get_absolute_url(), experiment=experiment, data=facts
    )
    return approval


def _outstanding(holder: Project, user: User, beside: Sequence[Run]) -> float:
    there = Q(experiment__project=holder)
    if holder.is_shared:
        there |= Q(experiment__project__approval_gpu_hours=None)
    mine = Q(queued_by=user) | Q(queued_by=None, created_by=user)
    # In all projects of the budget, also in those that a token does not reach.
    active = Run._base_manager.filter(there, mine, state__in=ACTIVE, approval=None, origin=Run.Origin.MEASURED)
    others = active.exclude(pk__in=[run.pk for run in beside])
    return sum(gpu_hours(*row) for row in others.values_list("resolved", "attempt_number"))


@transaction.atomic
def approval_decide(*, approval: LaunchApproval, user: User, is_approved: bool) -> int:
    """Let runs start, or cancel them; returns how many. Raises PermissionDenied, and ValueError if it was decided."""
    project = project_of(approval)
    if not may_decide(user, project):
        raise PermissionDenied(
            f"Launches beyond the budget are decided by people who maintain project {budget_holder(project)}."
        )
    decision = {"is_approved": is_approved, "decided_by": user, "decided_at": timezone.now()}
    if not LaunchApproval.objects.filter(pk=approval.pk, is_approved=None).update(**decision):
        raise ValueError("somebody has decided already")
    word = "approved" if is_approved else REFUSED
    items_close(keys=[approval.key], reason=f"{word} by {user}", user=user)
    held = Run.everything.filter(approval=approval, state=RunState.QUEUED)
    return held.count() if is_approved else _cancel(held, f"{REFUSED} by {user}")


def _cancel(held: Any, reason: str) -> int:
    runs = list(held.select_related("experiment"))
    now = timezone.now()
    end = {"state": RunState.CANCELLED, "reason": reason, "ended_at": now}
    for run in runs:
        Attempt.objects.filter(run=run, number=run.attempt_number, state=RunState.QUEUED).update(**end)
        Run.everything.filter(pk=run.pk, state=RunState.QUEUED).update(**end, cancel_requested_at=now)
        events.run_ended(run=run, attempt_number=run.attempt_number, state=RunState.CANCELLED, reason=reason)
    return len(runs)
