"""Signed heartbeats: their order, and which of them need the database.

Most heartbeats say what the one before said. They need the database only when something has changed, or when the last
stored one is STORE_EVERY_S old. Numbers of heartbeats rise; the last stored one is in the database, later ones are
known to the worker that took them, so that a replayed heartbeat can at most repeat what the node said in that time.
"""

import time
from hashlib import sha256
from typing import Any, NamedTuple

from django.conf import settings

from parlab.fleet import services
from parlab.ingest import orders
from parlab.ingest.clock import shared_now
from parlab.lab import services as lab
from parlab.lab.models import Node
from runners.protocol import Heartbeat
from runners.trust import LIFETIME_S, Opened, Untrusted, open_envelope

STORE_EVERY_S = 5.0


class Beat(NamedTuple):
    """The last heartbeat of a node that this worker has taken."""

    number: int
    key_id: str
    digest: bytes
    stored_at: float


_beats: dict[str, Beat] = {}


def heartbeat_receive(envelope: Any) -> None:
    """Take a signed heartbeat; raises Untrusted or ValidationError."""
    opened = open_envelope(envelope, "heartbeat", lab.find_key, now=shared_now().timestamp())
    message = Heartbeat.model_validate(opened.content)
    if message.node != opened.node:
        raise Untrusted(f"heartbeat of node {message.node[:120]}, signed by node {opened.node}", opened.node)
    beat, now = _beats.get(opened.node), time.monotonic()
    if beat is not None and not _is_later(opened.number, beat.number):
        raise Untrusted("heartbeat is older than the one before, or was sent twice", opened.node)
    digest = _digest(message)
    is_same = beat is not None and not message.refused and (beat.key_id, beat.digest) == (opened.key_id, digest)
    if beat is not None and is_same and now - beat.stored_at < _every_s():
        _beats[opened.node] = beat._replace(number=opened.number)
        return
    _store(message, opened)
    _beats[opened.node] = Beat(opened.number, opened.key_id, digest, now)


def _store(message: Heartbeat, opened: Opened) -> None:
    last = Node.objects.filter(name=opened.node).values_list("heartbeat_number", flat=True).first()
    if last is not None and not _is_later(opened.number, last):
        raise Untrusted("heartbeat is older than the one before, or was sent twice", opened.node)
    services.heartbeat(message=message)
    Node.objects.filter(name=opened.node).update(heartbeat_number=opened.number)
    lab.key_used(node_name=opened.node, key_id=opened.key_id)
    rotation = lab.rotation_order(opened.node)
    if rotation is not None:
        orders.send(rotation)


def _is_later(number: int, last: int) -> bool:
    """Return whether a heartbeat follows another one; numbers are microseconds of a clock that may be set back."""
    return number > last or last > (time.time() + LIFETIME_S) * 1e6


def _every_s() -> float:
    return min(STORE_EVERY_S, float(settings.LEASE_S) / 6)


def _digest(message: Heartbeat) -> bytes:
    # These two differ in each heartbeat; they are stored with the next one that is.
    content = message.model_copy(update={"sent_at": 0.0, "clock": None})
    return sha256(content.model_dump_json().encode()).digest()
