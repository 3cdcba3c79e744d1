"""Celery tasks that nodes call. Nodes resend a batch until it is acknowledged, so tasks are not retried here."""

import json
import logging
from functools import cache
from typing import Any

import redis
from celery import current_app, shared_task
from django.conf import settings
from django.db import InterfaceError, OperationalError
from kombu.exceptions import OperationalError as BrokerError
from pydantic import ValidationError

from parlab.ingest import services
from parlab.ingest.refused import store_refused
from parlab.lab import services as lab
from parlab.refusals import refuse
from runners.protocol import (
    ACKNOWLEDGE_TASK,
    ANSWER_LIFETIME_S,
    APPLY_BATCH_TASK,
    INGEST_QUEUE,
    Acknowledge,
    Batch,
    answer_key,
    node_queue,
    sign,
)
from runners.trust import Untrusted, open_envelope

logger = logging.getLogger(__name__)


@shared_task(name=APPLY_BATCH_TASK)
def apply_batch(data: dict[str, Any]) -> None:
    """Store a batch and acknowledge to its node the position up to which its spool is stored."""
    try:
        opened = open_envelope(data, "batch", lab.find_key)
        batch = Batch.from_wire(opened.content)
        if batch.node != opened.node:
            raise Untrusted(f"batch of node {batch.node[:120]}, signed by node {opened.node}", opened.node)
        position = services.batch_apply(batch=batch)
        lab.key_used(node_name=opened.node, key_id=opened.key_id)
        _answer(batch, position)
    except ValueError as error:
        refuse_invalid(INGEST_QUEUE, "batch", data, error)
    except (OperationalError, InterfaceError, BrokerError, redis.RedisError, OSError) as error:
        logger.warning("a batch was not stored or not acknowledged; its node will send it again: %s", error)
    store_refused()


def refuse_invalid(queue: str, what: str, data: Any, error: ValueError) -> None:
    """Count a message of a node that is not signed as it must be, or has invalid fields."""
    sender = data.get("node") if isinstance(data, dict) else None
    reason = f"invalid {what}; check that node and server run the same version: {_first_line(error)}"
    if isinstance(error, Untrusted):
        sender, reason = error.sender, f"{what} refused: {error}"
    sample = json.dumps(data, default=str).encode()
    refuse(queue, reason, sender=sender if isinstance(sender, str) else "", size=len(sample), sample=sample)


def _first_line(error: ValueError) -> str:
    # Without the values, which anyone may have written: they would make a reason of each message.
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])[:80]}: {first['msg'][:120]}"
    return str(error).splitlines()[0][:200]


def _answer(batch: Batch, position: int) -> None:
    """Tell the sender of a batch the position up to which its spool is stored."""
    key = lab.signing_key(batch.node)
    if key is None:
        raise Untrusted(f"the key of node {batch.node} was revoked", batch.node)
    names: dict[str, Any] = {"run": batch.run, "attempt": batch.attempt, "node": batch.node}
    envelope = sign(Acknowledge(**names, node_rank=batch.node_rank, position=position), key)
    if batch.is_polled:
        place = answer_key(batch.run, batch.attempt, batch.node_rank)
        _redis(settings.REDIS_URL).set(place, json.dumps(envelope), ex=ANSWER_LIFETIME_S)
        return
    current_app.send_task(ACKNOWLEDGE_TASK, args=[envelope], queue=node_queue(batch.node))


@cache
def _redis(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=2)
