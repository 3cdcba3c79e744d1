"""Decisions about launches beyond a budget: what was approved goes to nodes at once."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction

from parlab.lab.models import LaunchApproval
from parlab.lab.services.approvals import approval_decide

from .services import dispatch


def approve(*, approval: LaunchApproval, user: User, is_approved: bool) -> int:
    """Let runs start, or cancel them; returns how many. Raises PermissionDenied, ValueError."""
    count = approval_decide(approval=approval, user=user, is_approved=is_approved)
    if is_approved:
        transaction.on_commit(dispatch, robust=True)
    return count
