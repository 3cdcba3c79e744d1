"""Exclusions of nodes: made and ended, with their line in the inbox. No run is dispatched here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Exclusion, Node
from parlab.lab.services import storable
from parlab.lab.services.access.audit import audit_by_server
from parlab.lab.services.events import node_excluded, node_included

logger = logging.getLogger(__name__)

REASON_LENGTH = 300


@transaction.atomic
def exclude(
    *,
    node: Node,
    host: str = "",
    cause: str,
    reason: str,
    by: str = "",
    faults: Sequence[str] = (),
) -> bool:
    """Exclude a node or one of its compute nodes; return whether it was in use. A person's exclusion has no end."""
    text, now = storable.text(reason)[:REASON_LENGTH], timezone.now()
    Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    if Exclusion.objects.open().filter(node=node, host=host).exists() or (node.left_out and not host):
        return False
    is_automatic = cause != Exclusion.Cause.PERSON
    until = now + timedelta(hours=settings.EXCLUDED_NODE_HOURS) if is_automatic else None
    exclusion = Exclusion.objects.create(
        node=node, host=host, cause=cause, reason=text, faults=list(faults), at=now, until=until
    )
    if not host:
        Node.objects.filter(pk=node.pk).update(left_out=text, left_out_at=now)
        node.refresh_from_db(fields=["left_out", "left_out_at"])
    logger.warning("node %s is left out by %s: %s", exclusion.place_name, by or "parlab", text)
    if is_automatic:
        node_excluded(exclusion=exclusion)
        audit_by_server(route="node-act", path=f"/nodes/{node.name}/leave-out/ {host} {text}")
    return True


@transaction.atomic
def include(*, node: Node, host: str = "", by: str = "") -> bool:
    """End the exclusion of a node or one of its compute nodes; return whether it was excluded."""
    now = timezone.now()
    ended = Exclusion.objects.open().filter(node=node, host=host).update(ended_at=now, ended_by=by[:150])
    if not host:
        ended |= Node.objects.filter(pk=node.pk).exclude(left_out="").update(left_out="", left_out_at=None)
        node.refresh_from_db(fields=["left_out", "left_out_at"])
    if ended:
        logger.info("node %s is put back by %s", host or node.name, by or "parlab, since its time is over")
        node_included(node=node, host=host, reason=f"put back by {by}" if by else "its time was over")
        if not by:
            audit_by_server(route="node-act", path=f"/nodes/{node.name}/put-back/ {host}")
    return bool(ended)
