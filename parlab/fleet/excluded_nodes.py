"""Nodes that get no runs except health sweeps, until somebody puts them back."""

import logging

from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Node

from .services import dispatch

logger = logging.getLogger(__name__)

REASON_LENGTH = 300


def node_leave_out(*, node: Node, reason: str, by: str) -> bool:
    """Leave a node out of dispatch; its runs continue. Return whether it was in use. Raise ValueError."""
    reason = reason.strip()[:REASON_LENGTH]
    if not reason:
        raise ValueError("reason is empty; enter why the node gets no runs, which runs that wait show")
    is_changed = bool(Node.objects.filter(pk=node.pk, left_out="").update(left_out=reason, left_out_at=timezone.now()))
    node.refresh_from_db(fields=["left_out", "left_out_at"])
    if is_changed:
        logger.warning("node %s is left out by %s: %s", node.name, by, reason)
    return is_changed


def node_put_back(*, node: Node, by: str) -> bool:
    """Give a node runs again; return whether it was left out."""
    is_changed = bool(Node.objects.filter(pk=node.pk).exclude(left_out="").update(left_out="", left_out_at=None))
    node.refresh_from_db(fields=["left_out", "left_out_at"])
    if is_changed:
        logger.info("node %s is put back by %s", node.name, by)
        transaction.on_commit(dispatch, robust=True)
    return is_changed
