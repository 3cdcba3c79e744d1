"""Batches that pods post over HTTP: the same as those in Redis, signed with the key of one attempt."""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Any

import redis
from django.conf import settings

from parlab.ingest.batches.services import batch_apply
from parlab.ingest.batches.waiting import client
from parlab.lab.services.access.node_keys import find_attempt_key, signing_key
from runners.wire.protocol import POSTED_LIFETIME_S, Acknowledge, Batch, Posted, answer_key, sign
from runners.wire.trust import Key, Untrusted, open_envelope

logger = logging.getLogger(__name__)


def posted_batch_apply(*, run: int, attempt: int, envelope: Any) -> dict[str, Any]:
    """Store a batch if it is the next one; return the signed answer.

    The controller of the pod finds the answer in Redis, with what the pod has noted. Raises Untrusted, ValueError.
    """
    opened = open_envelope(envelope, "posted", partial(find_attempt_key, run=run, attempt=attempt))
    posted = Posted.model_validate(opened.content)
    batch = Batch.from_wire(posted.batch)
    if (batch.run, batch.attempt, batch.node) != (run, attempt, opened.node):
        raise Untrusted(f"batch of run {batch.run} attempt {batch.attempt}, signed for another one", opened.node)
    position = batch_apply(batch=batch)
    names: dict[str, Any] = {"run": run, "attempt": attempt, "node": opened.node, "node_rank": batch.node_rank}
    answer = Acknowledge(**names, position=position, note=posted.note)
    _leave_for_controller(answer)
    own = Key(opened.key_id, find_attempt_key(opened.node, opened.key_id, run=run, attempt=attempt))
    return sign(answer, own)


def _leave_for_controller(answer: Acknowledge) -> None:
    key = signing_key(answer.node)
    if key is None:
        return
    envelope = json.dumps(sign(answer, key, lifetime_s=POSTED_LIFETIME_S))
    place = answer_key(answer.run, answer.attempt, answer.node_rank)
    try:
        client(settings.REDIS_URL).set(place, envelope, ex=POSTED_LIFETIME_S)
    except (redis.RedisError, OSError) as error:
        logger.warning("the controller of node %s does not see an answer; the next one follows: %s", answer.node, error)
