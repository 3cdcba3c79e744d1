"""Enrolment of nodes over Redis: a node sends its part of the agreement on a key and reads the server's from a key."""

import json
import logging
from typing import Any
from urllib.parse import urlsplit

import redis
from django.conf import settings

from parlab.ingest.batches import orders
from parlab.lab.services.access.node_keys import find_code, node_enrol, rotation_order
from runners.wire.broker_address import PURPOSE, sealed_address
from runners.wire.protocol import ANSWER_LIFETIME_S, Enrol, enrolled_key
from runners.wire.trust import Key, Untrusted, open_envelope, seal

logger = logging.getLogger(__name__)


class NotReachable(Exception):
    """Nodes cannot reach the Redis of this server; the message has the remedy."""


def redis_address(envelope: Any, *, is_here: bool) -> str:
    """Return the URL of Redis, sealed for a node that has signed with its code or key. Raises Untrusted, NotReachable.

    `is_here`: the node is on this machine, where it reaches an embedded Redis, too.
    """
    try:
        opened = open_envelope(envelope, PURPOSE, find_code)
    except Untrusted as error:
        logger.warning("a node was not given the address of Redis: %s", error)
        raise
    host = urlsplit(settings.REDIS_URL).hostname
    if host in (None, "127.0.0.1", "localhost", "::1") and not is_here:
        raise NotReachable(
            "the Redis of this server listens on its own machine only; start the server with REDIS_URL of a Redis that"
            " nodes reach, like redis://:password@redis-host:6379/0"
        )
    return sealed_address(settings.REDIS_URL, opened.node, opened.number, find_code(opened.node, opened.key_id))


def enrol_receive(envelope: Any) -> None:
    """Agree on a key with a node that has a one-time code, or rotates; raises Untrusted or ValidationError."""
    opened = open_envelope(envelope, "enrol", find_code)
    enrol = Enrol.model_validate(opened.content)
    signer = Key(opened.key_id, find_code(opened.node, opened.key_id))
    try:
        public = node_enrol(node_name=opened.node, signed_with=opened.key_id, enrol=enrol)
    except Untrusted as error:
        _answer(opened.node, enrol, signer, {"refused": str(error)})
        raise
    _answer(opened.node, enrol, signer, {"public": public})
    rotation = rotation_order(opened.node)
    if rotation is not None:  # signed with the next key: the node uses it from now on
        orders.send(rotation)


def _answer(node: str, enrol: Enrol, signer: Key, content: dict[str, str]) -> None:
    envelope = seal("enrolled", node, {**content, "answers": enrol.public}, signer)
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5) as client:
        client.set(enrolled_key(enrol.key_id), json.dumps(envelope), ex=ANSWER_LIFETIME_S)
