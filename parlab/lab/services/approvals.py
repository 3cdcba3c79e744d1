"""Approval of launches: beyond the budget of a project, runs wait in the queue until a maintainer has decided.

A budget counts GPU hours that a person has queued and running in the project without an approval, each run with its
time limit; so many small launches are treated as a large one. Every launch passes here, whatever road it came by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from parlab.lab.models import Attempt, Event, LaunchApproval, Project, Role, Run
from parlab.lab.models.access.viewer import viewer_of
from parlab.lab.services.access.rights import project_of, viewer_for
from runners.config.devices import DEVICES
from runners.wire.protocol import RunState

from . import events
from .inbox import item_open, items_close

ACTIVE = (RunState.QUEUED, RunState.DISPATCHED, RunState.RUNNING)
REFUSED = "not approved"


def gpu_hours(resolved: Mapping[str, Any]) -> float:
    """Return the GPU hours that a run may take at most; none on the CPU."""
    cluster, limit_s = resolved["cluster"], float(resolved["launcher"]["timeout_s"])
    if not DEVICES[cluster["device"]].may_use_gpus:
        return 0.0
    return int(cluster["gpus_per_node"] or 1) * int(cluster.get("nodes") or 1) * limit_s / 3600


def may_start() -> Q:
    """Match runs that need no approval, or have it."""
    return Q(approval=None) | Q(approval__is_approved=True)


def approval_ask(*, runs: Sequence[Run], user: User) -> LaunchApproval | None:
    """Hold queued runs that go beyond the budget of their project; None if they may start."""
    if not runs:
        return None
    experiment = runs[0].experiment
    project = Project.objects.get(pk=project_of(runs[0]))
    budget = project.approval_gpu_hours
    # Not the viewer of the request, whose token may belong to another person than the run.
    if budget is None or viewer_of(user).has_role(Role.MAINTAINER, project.pk):
        return None
    asked = sum(gpu_hours(run.resolved) for run in runs)
    if asked + _outstanding(project, user, runs) <= budget:
        return None
    approval = LaunchApproval.objects.create(experiment=experiment, asked_by=user, gpu_hours=asked, budget=budget)
    Run.everything.filter(pk__in=[run.pk for run in runs]).update(approval=approval)
    for run in runs:
        run.approval = approval
    facts = {
        "gpu_hours": asked,
        "budget": budget,
        "runs": len(runs),
        "user": user.get_username(),
        "approval": approval.pk,
    }
    item_open(
        kind=Event.Kind.LAUNCH_ASKED, key=approval.key, experiment=experiment, path=experiment.get_absolute_url(),
        data=facts, run_id=runs[0].pk if len(runs) == 1 else None,
    )  # fmt: skip
    text = f"{user} asks for {asked:.3g} GPU hours in {experiment.name}, beyond the budget of {budget:g}"
    events.event_add(
        kind=Event.Kind.LAUNCH_ASKED, text=text, path=experiment.get_absolute_url(), experiment=experiment, data=facts
    )
    return approval


def _outstanding(project: Project, user: User, beside: Sequence[Run]) -> float:
    mine = Run.everything.filter(
        experiment__project=project, created_by=user, state__in=ACTIVE, approval=None, origin=Run.Origin.MEASURED
    )
    others = mine.exclude(pk__in=[run.pk for run in beside])
    return sum(gpu_hours(resolved) for resolved in others.values_list("resolved", flat=True))


@transaction.atomic
def approval_decide(*, approval: LaunchApproval, user: User, is_approved: bool) -> int:
    """Let runs start, or cancel them; returns how many. Raises PermissionDenied, and ValueError if it was decided."""
    project = project_of(approval)
    if not viewer_for(user).has_role(Role.MAINTAINER, project) or hasattr(user, "service_account"):
        raise PermissionDenied("Launches beyond the budget are decided by people who maintain the project.")
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
