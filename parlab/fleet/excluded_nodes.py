"""Nodes that get no runs except health sweeps, until somebody puts them back or their time is over."""

from django.db import transaction

from parlab.lab.models import Exclusion, Node

from .exclusions import REASON_LENGTH, exclude, include
from .services import dispatch

__all__ = ["REASON_LENGTH", "node_leave_out", "node_put_back"]


def node_leave_out(*, node: Node, reason: str, by: str, host: str = "", cause: str = Exclusion.Cause.PERSON) -> bool:
    """Leave a node out of dispatch; its runs continue. Return whether it was in use. Raise ValueError."""
    reason = reason.strip()
    if not reason:
        raise ValueError("reason is empty; enter why the node gets no runs, which runs that wait show")
    return exclude(node=node, host=host.strip()[:120], cause=cause, reason=reason, by=by)


def node_put_back(*, node: Node, by: str, host: str = "") -> bool:
    """Give a node runs again; return whether it was left out."""
    is_changed = include(node=node, host=host, by=by)
    if is_changed:
        transaction.on_commit(dispatch, robust=True)
    return is_changed
