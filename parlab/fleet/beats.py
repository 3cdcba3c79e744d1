"""Signed heartbeats: their order, and which of them need the database.

Most heartbeats say what the one before said. They need the database only when something has changed, or when the last
stored one is STORE_EVERY_S old. Numbers of heartbeats rise; the last stored one is in the database, later ones are
known to the worker that took them, so that a replayed heartbeat can at most repeat what the node said in that time.
"""

import logging
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from django.conf import settings
from django.db import InterfaceError, OperationalError

from parlab.fleet import services
from parlab.ingest.batches import orders
from parlab.ingest.batches.clock import shared_now
from parlab.ingest.tasks import sender_of
from parlab.lab.models import Node
from parlab.lab.services.access.node_keys import key_finder, key_used, rotation_orders
from runners.wire.protocol import Heartbeat
from runners.wire.trust import LIFETIME_S, Opened, Untrusted, open_envelope

STORE_EVERY_S = 5.0
_NOT_LATER = "heartbeat is older than the one before, or was sent twice"

logger = logging.getLogger(__name__)


class Beat(NamedTuple):
    """The last heartbeat of a node that this worker has taken."""

    number: int
    key_id: str
    digest: bytes
    stored_at: float


_beats: dict[str, Beat] = {}


class Due(NamedTuple):
    """A heartbeat that the database needs."""

    envelope: Any
    message: Heartbeat
    opened: Opened
    digest: bytes


def heartbeats_receive(envelopes: Sequence[Any], refuse: Callable[[Any, ValueError], None]) -> None:
    """Take signed heartbeats; `refuse` is called with those that are untrusted or invalid, and the reason."""
    now = shared_now()
    find_key = key_finder({node for envelope in envelopes if (node := sender_of(envelope))})
    due: dict[str, Due] = {}
    for envelope in envelopes:
        try:
            opened = open_envelope(envelope, "heartbeat", find_key, now=now.timestamp())
            message = Heartbeat.model_validate(opened.content)
            if message.node != opened.node:
                raise Untrusted(f"heartbeat of node {message.node[:120]}, signed by node {opened.node}", opened.node)
            _take(Due(envelope, message, opened, _digest(message)), due)
        except ValueError as error:
            refuse(envelope, error)
    later = _later(list(due.values()), refuse)
    if later:
        _store_each(later)


def _take(taken: Due, due: dict[str, Due]) -> None:
    """Add a heartbeat to those that the database needs, if it does; raises Untrusted if it is not a later one."""
    message, opened = taken.message, taken.opened
    beat, before, now = _beats.get(opened.node), due.get(opened.node), time.monotonic()
    last = before.opened.number if before is not None else beat.number if beat is not None else None
    if last is not None and not _follows(opened.number, last):
        raise Untrusted(_NOT_LATER, opened.node)
    if before is not None:
        # What both have refused is counted with the later one.
        refused = [*before.message.refused, *message.refused]
        due[opened.node] = taken._replace(message=message.model_copy(update={"refused": refused}))
        return
    is_same = beat is not None and not message.refused and (beat.key_id, beat.digest) == (opened.key_id, taken.digest)
    if beat is not None and is_same and now - beat.stored_at < _every_s():
        _beats[opened.node] = beat._replace(number=opened.number)
    else:
        due[opened.node] = taken


def _later(due: Sequence[Due], refuse: Callable[[Any, ValueError], None]) -> list[Due]:
    """Return the heartbeats that follow the last stored ones of their nodes, which another worker may have taken."""
    nodes = Node.objects.filter(name__in=[each.opened.node for each in due])
    last = dict(nodes.values_list("name", "heartbeat_number"))
    later = []
    for each in due:
        if each.opened.node in last and not _follows(each.opened.number, last[each.opened.node]):
            refuse(each.envelope, Untrusted(_NOT_LATER, each.opened.node))
        else:
            later.append(each)
    return later


def _store_each(due: Sequence[Due]) -> None:
    """Store heartbeats together; if that fails, one by one, so that one that cannot be stored stops no other."""
    try:
        _store(due)
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        if len(due) == 1:
            logger.exception("the heartbeat of node %s was not stored", due[0].opened.node)
            return
        for each in due:
            _store_each([each])


def _store(due: Sequence[Due]) -> None:
    numbers = {each.opened.node: each.opened.number for each in due}
    services.heartbeats(messages=[each.message for each in due], numbers=numbers)
    for each in due:
        node, key_id = each.opened.node, each.opened.key_id
        beat = _beats.get(node)
        if beat is None or beat.key_id != key_id:
            key_used(node_name=node, key_id=key_id)
        _beats[node] = Beat(each.opened.number, key_id, each.digest, time.monotonic())
    for rotation in rotation_orders(numbers):
        orders.send(rotation)


def _follows(number: int, last: int) -> bool:
    """Return whether a heartbeat follows another one; numbers are microseconds of a clock that may be set back."""
    return number > last or last > (time.time() + LIFETIME_S) * 1e6


def _every_s() -> float:
    return min(STORE_EVERY_S, float(settings.LEASE_S) / 6)


def _digest(message: Heartbeat) -> bytes:
    # These two differ in each heartbeat; they are stored with the next one that is.
    content = message.model_copy(update={"sent_at": 0.0, "clock": None})
    return sha256(content.model_dump_json().encode()).digest()
