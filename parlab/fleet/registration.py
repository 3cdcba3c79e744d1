"""What heartbeats record of their nodes, and two daemons that use one name."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from parlab.lab.models import Node
from parlab.lab.services import storable
from parlab.series.statements import Update
from runners.wire.protocol import LEASE_S, Heartbeat

logger = logging.getLogger(__name__)

_update_beats = Update(Node, ["last_heartbeat_at", "clock", "heartbeat_number"])


def register(messages: Sequence[Heartbeat], numbers: Mapping[str, int], now: datetime) -> dict[str, Node]:
    """Record heartbeats of different nodes; return their nodes, without those whose name another living daemon has.

    `numbers` are those of the messages, by node.
    """
    nodes: dict[str, Node] = {}
    with transaction.atomic():
        # In the order of their rows, in which the dispatcher locks them, too.
        rows = Node.objects.filter(name__in=[message.node for message in messages]).order_by("pk")
        registered = {node.name: node for node in rows.select_for_update(no_key=True)}
        for message in messages:
            node = registered.get(message.node)
            if node is not None and _is_taken(node, _identity(message), now):
                _conflict(node, _identity(message), now)
                continue
            facts = _facts(message)
            node = node or _registered(message.node, facts)
            _update(node, facts)
            node.last_heartbeat_at = now
            node.clock = storable.json(message.clock.model_dump()) if message.clock else {}
            node.heartbeat_number = numbers.get(node.name, node.heartbeat_number)
            nodes[node.name] = node
        _update_beats(list(nodes.values()))
    return nodes


def _facts(message: Heartbeat) -> dict[str, Any]:
    """Return what is the same in most heartbeats of a node."""
    return {
        "pool": message.pool,
        "slots": message.slots,
        "daemon_version": message.version[:40],
        "hardware": storable.json(message.hardware),
        "abilities": storable.json(message.abilities.model_dump(mode="json")) if message.abilities else {},
        "lease_s": message.lease_s,
        "is_draining": message.is_draining,
        "identity": _identity(message),
    }


def _registered(name: str, facts: dict[str, Any]) -> Node:
    node, created = Node.objects.get_or_create(name=name, defaults=facts)
    if created:
        logger.info("node %s of pool %s registered", name, node.pool)
    return node


def _update(node: Node, facts: dict[str, Any]) -> None:
    """Store facts that have changed."""
    changed = [name for name, value in facts.items() if getattr(node, name) != value]
    if changed:
        for name in changed:
            setattr(node, name, facts[name])
        node.save(update_fields=changed)


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
