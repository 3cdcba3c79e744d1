"""What a heartbeat records of its node, and two daemons that use one name."""

import logging
from datetime import datetime, timedelta
from typing import Any

from parlab.lab.models import Node
from parlab.lab.services import storable
from runners.protocol import LEASE_S, Heartbeat

logger = logging.getLogger(__name__)


def register(message: Heartbeat, now: datetime) -> Node | None:
    """Record a heartbeat and return its node; None if another living daemon has the same name."""
    identity = _identity(message)
    node = Node.objects.filter(name=message.node).first()
    if node is not None and _is_taken(node, identity, now):
        _conflict(node, identity, now)
        return None
    facts: dict[str, Any] = {
        "pool": message.pool,
        "slots": message.slots,
        "daemon_version": message.version[:40],
        "hardware": storable.json(message.hardware),
        "abilities": storable.json(message.abilities.model_dump(mode="json")) if message.abilities else {},
        "clock": storable.json(message.clock.model_dump()) if message.clock else {},
        "lease_s": message.lease_s,
        "is_draining": message.is_draining,
        "identity": identity,
        "last_heartbeat_at": now,
    }
    if not Node.objects.filter(name=message.node).update(**facts):
        _, created = Node.objects.get_or_create(name=message.node, defaults=facts)
        if created:
            logger.info("node %s of pool %s registered", message.node, message.pool)
    return Node.objects.get(name=message.node)


def _identity(message: Heartbeat) -> str:
    """Return what distinguishes two daemons with one name: their state directories, with the host for people."""
    return storable.text(f"{message.state_id}@{message.hardware.get('hostname', '')}")[:300] if message.state_id else ""


def _is_taken(node: Node, identity: str, now: datetime) -> bool:
    # A container gets a new host name at each start, but keeps its state directory.
    own, other = identity.partition("@")[0], node.identity.partition("@")[0]
    if not own or not other or own == other or node.last_heartbeat_at is None:
        return False
    return now - node.last_heartbeat_at < timedelta(seconds=LEASE_S)


def _conflict(node: Node, identity: str, now: datetime) -> None:
    logger.error(
        "heartbeat refused: node name %s is used by the daemons %s and %s; start one of them with another --node",
        node.name,
        node.identity,
        identity,
    )
    Node.objects.filter(pk=node.pk).update(conflict=identity, conflict_at=now)
