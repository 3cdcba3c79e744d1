"""Batches that pods post over HTTP: the same as those in Redis, signed with the key of one attempt."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis
from django.conf import settings

from parlab.ingest.batches import services
from parlab.ingest.batches.waiting import client
from parlab.lab.services.access.node_keys import find_attempt_key, signing_keys
from runners.wire.protocol import POSTED_LIFETIME_S, Acknowledge, Batch, PodNote, Posted, answer_key, sign
from runners.wire.trust import Key, Untrusted, open_envelope

logger = logging.getLogger(__name__)


class PostedBatch(NamedTuple):
    """A batch whose signature is genuine."""

    batch: Batch
    note: PodNote
    key: Key
    """The key of the attempt, which signs the answer too."""


def posted_batch_open(*, run: int, attempt: int, envelope: Any) -> PostedBatch:
    """Check the signature and the fields of a batch. Raises Untrusted, ValueError."""
    secrets: list[bytes] = []

    def find(node: str, key_id: str) -> bytes:
        secrets.append(find_attempt_key(node, key_id, run=run, attempt=attempt))
        return secrets[0]

    opened = open_envelope(envelope, "posted", find)
    posted = Posted.model_validate(opened.content)
    batch = Batch.from_wire(posted.batch)
    if (batch.run, batch.attempt, batch.node) != (run, attempt, opened.node):
        raise Untrusted(f"batch of run {batch.run} attempt {batch.attempt}, signed for another one", opened.node)
    services.check_positions(batch)
    return PostedBatch(batch, posted.note, Key(opened.key_id, secrets[0]))


def posted_batches_apply(*, posted: Sequence[PostedBatch]) -> list[dict[str, Any]]:
    """Store batches, each if it is the next one of its spool, in one transaction; return the signed answers.

    The controllers of the pods find the answers in Redis, with what the pods have noted.
    """
    positions = services.batches_apply_and_summarise(batches=[each.batch for each in posted])
    answers = [_answer(each, position) for each, position in zip(posted, positions, strict=True)]
    _leave_for_controllers(answers)
    return [sign(answer, each.key) for answer, each in zip(answers, posted, strict=True)]


def _answer(posted: PostedBatch, position: int) -> Acknowledge:
    batch = posted.batch
    names: dict[str, Any] = {"run": batch.run, "attempt": batch.attempt, "node": batch.node}
    return Acknowledge(**names, node_rank=batch.node_rank, position=position, note=posted.note)


def _leave_for_controllers(answers: Sequence[Acknowledge]) -> None:
    keys = signing_keys({answer.node for answer in answers})
    try:
        with client(settings.REDIS_URL).pipeline(transaction=False) as pipeline:
            for answer in answers:
                if (key := keys[answer.node]) is not None:
                    envelope = json.dumps(sign(answer, key, lifetime_s=POSTED_LIFETIME_S))
                    place = answer_key(answer.run, answer.attempt, answer.node_rank)
                    pipeline.set(place, envelope, ex=POSTED_LIFETIME_S)
            pipeline.execute()
    except (redis.RedisError, OSError) as error:
        logger.warning("%d answers do not reach their controllers; the next ones follow: %s", len(answers), error)
