"""Celery tasks that nodes call. Nodes resend a batch until it is acknowledged, so tasks are not retried here."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import redis
from celery import Task, shared_task
from django.conf import settings
from django.db import InterfaceError, OperationalError
from pydantic import ValidationError

from parlab.ingest.batches import services
from parlab.ingest.batches.orders import queues_of
from parlab.ingest.batches.refused import store_refused
from parlab.ingest.batches.retention import series_retain
from parlab.ingest.batches.run_files import traces_take
from parlab.ingest.batches.waiting import GATHER_S, client, is_idle, post, take_waiting
from parlab.lab.models import Attempt
from parlab.lab.services.access.node_keys import key_finder, key_used, signing_keys
from parlab.refusals import refuse
from parlab.series import partitions
from runners.wire.protocol import (
    ACKNOWLEDGE_TASK,
    ANSWER_LIFETIME_S,
    APPLY_BATCH_TASK,
    INGEST_QUEUE,
    Acknowledge,
    Batch,
    answer_key,
    sign,
)
from runners.wire.trust import Untrusted, open_envelope

logger = logging.getLogger(__name__)

_SUMMARY_REST = 3.0
"""While batches wait, a worker takes batches for this many times as long as it computed summaries."""

_AHEAD_S = 2.0
"""How long batches that do not continue what is stored are held, until what comes before them is stored."""

_RETAINED_AT_ONCE = 50
"""Attempts that one task archives: it shares a worker with notifications."""

_UNAVAILABLE = (OperationalError, InterfaceError, redis.RedisError, OSError)


class Received(NamedTuple):
    """A batch whose signature is genuine, with the envelope in which it came."""

    envelope: Any
    batch: Batch
    key_id: str


@shared_task(name=APPLY_BATCH_TASK, bind=True)
def apply_batch(self: "Task[..., None]", data: dict[str, Any]) -> None:
    """Store a batch, and all that wait behind it; acknowledge to their nodes how much of each spool is stored."""
    try:
        is_worker = not self.request.called_directly and not self.request.is_eager
        if is_worker:
            SUMMARIES.compute(_apply_waiting(data))
        else:
            _apply(list(_opened([data])))
    except _UNAVAILABLE as error:
        logger.warning("batches were not stored or not acknowledged; their nodes will send them again: %s", error)
    store_refused()


def _apply_waiting(first: Any) -> list[Attempt]:
    """Store a batch and all that wait, until none is ahead of its spool; return the attempts that have grown.

    Another worker has taken what comes before a batch that is ahead, and stores it in a moment. A batch that is
    refused instead would be missing until its node sends it again, seconds later.
    """
    deadline = time.monotonic() + _AHEAD_S
    grown: dict[int, Attempt] = {}
    ahead: list[Received] = []
    envelopes = [first]
    while True:
        received = [*ahead, *_opened([*envelopes, *take_waiting(settings.REDIS_URL)])]
        ahead, envelopes = [], []
        is_over = time.monotonic() > deadline
        grown |= {attempt.pk: attempt for attempt in _apply(received, None if is_over else ahead)}
        if not ahead:
            return list(grown.values())
        time.sleep(GATHER_S)


def _opened(envelopes: Sequence[Any]) -> Iterator[Received]:
    """Check signatures and fields; what is invalid is refused."""
    find_key = key_finder({node for envelope in envelopes if (node := sender_of(envelope))})
    for envelope in envelopes:
        try:
            opened = open_envelope(envelope, "batch", find_key)
            batch = Batch.from_wire(opened.content)
            if batch.node != opened.node:
                raise Untrusted(f"batch of node {batch.node[:120]}, signed by node {opened.node}", opened.node)
            services.check_positions(batch)
        except ValueError as error:
            refuse_invalid(INGEST_QUEUE, "batch", envelope, error)
        else:
            yield Received(envelope, batch, opened.key_id)


def _apply(received: Sequence[Received], ahead: list[Received] | None = None) -> list[Attempt]:
    """Store batches and acknowledge them; return the attempts that have grown.

    Batches that do not continue what is stored are added to `ahead`, or refused without such a list.
    """
    if not received:
        return []
    try:
        applied = services.batches_apply(batches=[each.batch for each in received])
    except _UNAVAILABLE:
        raise
    except Exception:
        # One stream that cannot be stored must not stop the others.
        if len(received) == 1:
            batch = received[0].batch
            logger.exception("the batch of run %d attempt %d at %d", batch.run, batch.attempt, batch.sequence)
            return []
        return [attempt for each in received for attempt in _apply([each], ahead)]
    for node, key_id in {(each.batch.node, each.key_id) for each in received}:
        key_used(node_name=node, key_id=key_id)
    answers, held = _divided(zip(received, applied.positions, strict=True), _is_ahead)
    if ahead is None:
        answers += held
    else:
        ahead += [each for each, _ in held]
    ends = {attempt.run_id for attempt in applied.ended}
    others, of_ended = _divided(answers, lambda answer: answer[0].batch.run in ends)
    _answer(others)
    for attempt in applied.ended:
        _read_end(attempt)
    _answer(of_ended)
    return applied.grown


Answer = tuple[Received, int]
"""A batch, and the position up to which the spool of its sender is stored, or UNKNOWN."""


def _divided(answers: Iterable[Answer], condition: Callable[[Answer], bool]) -> tuple[list[Answer], list[Answer]]:
    parts: tuple[list[Answer], list[Answer]] = [], []
    for answer in answers:
        parts[condition(answer)].append(answer)
    return parts


def _is_ahead(answer: Answer) -> bool:
    """Return whether a batch does not continue what is stored, because what comes before it is missing."""
    each, position = answer
    return 0 <= position < each.batch.sequence


def _read_end(attempt: Attempt) -> None:
    """Read the log of an attempt that has ended; nodes report the end again until this was done."""
    try:
        services.log_end(attempt)
    except _UNAVAILABLE:
        raise
    except Exception:
        # What cannot be summarised now cannot be summarised by a repetition either; the output is stored.
        logger.exception("the summary of attempt %d was not computed", attempt.pk)


def _answer(answers: Sequence[Answer]) -> None:
    """Tell the senders of batches the position up to which their spools are stored, once for each spool."""
    spools = {(each.batch.run, each.batch.attempt, each.batch.node_rank, each.batch.node): (each, position)
              for each, position in answers}  # fmt: skip
    nodes = {each.batch.node for each, _ in spools.values()}
    keys, queues = signing_keys(nodes), queues_of(nodes)
    messages = []
    for each, position in spools.values():
        batch = each.batch
        key = keys[batch.node]
        if key is None:
            reason = Untrusted(f"the key of node {batch.node} was revoked", batch.node)
            refuse_invalid(INGEST_QUEUE, "batch", each.envelope, reason)
            continue
        names: dict[str, Any] = {"run": batch.run, "attempt": batch.attempt, "node": batch.node}
        envelope = sign(Acknowledge(**names, node_rank=batch.node_rank, position=position), key)
        if batch.is_polled:
            place = answer_key(batch.run, batch.attempt, batch.node_rank)
            client(settings.REDIS_URL).set(place, json.dumps(envelope), ex=ANSWER_LIFETIME_S)
        else:
            messages.append((queues[batch.node], ACKNOWLEDGE_TASK, envelope))
    post(settings.REDIS_URL, messages)


class Summaries:
    """The summaries of active attempts that are due: computed when nothing waits, else in a part of the time."""

    def __init__(self) -> None:
        self._due: dict[int, None] = {}
        self._rest_until = 0.0

    def compute(self, grown: Sequence[Attempt]) -> None:
        """Compute summaries that are due, also of attempts that have just grown."""
        self._due |= dict.fromkeys(attempt.pk for attempt in grown if services.summary_claim(attempt))
        began = time.monotonic()
        if began < self._rest_until:
            return
        while self._due:
            attempt_id = next(iter(self._due))
            del self._due[attempt_id]
            try:
                services.attempt_summarise_due(attempt_id=attempt_id)
            except Exception:
                # The output is stored; the summary at the end of the attempt replaces this one.
                logger.exception("the summary of attempt %d was not computed", attempt_id)
            if not is_idle(settings.REDIS_URL):
                self._rest_until = time.monotonic() + _SUMMARY_REST * (time.monotonic() - began)
                return


SUMMARIES = Summaries()


@shared_task(name="parlab.ingest.take_traces")
def take_traces() -> None:
    """Analyse the traces that nodes have shipped."""
    traces_take()


@shared_task(name="parlab.ingest.retain")
def retain() -> None:
    """Archive or remove raw points whose time is over."""
    if settings.RAW_DAYS > 0:
        series_retain(days=settings.RAW_DAYS, url=settings.ARCHIVE_URL, limit=_RETAINED_AT_ONCE)


@shared_task(name="parlab.ingest.extend")
def extend() -> None:
    """Create the partitions of the attempts to come."""
    partitions.extend()


def refuse_invalid(queue: str, what: str, data: Any, error: ValueError) -> None:
    """Count a message of a node that is not signed as it must be, or has invalid fields."""
    sender = sender_of(data)
    reason = f"invalid {what}; check that node and server run the same version: {_first_line(error)}"
    if isinstance(error, Untrusted):
        sender, reason = error.sender, f"{what} refused: {error}"
    sample = json.dumps(data, default=str).encode()
    refuse(queue, reason, sender=sender, size=len(sample), sample=sample)


def sender_of(envelope: Any) -> str:
    """Return the node that an envelope names; empty if it names none."""
    node = envelope.get("node") if isinstance(envelope, dict) else None
    return node if isinstance(node, str) else ""


def _first_line(error: ValueError) -> str:
    # Without the values, which anyone may have written: they would make a reason of each message.
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])[:80]}: {first['msg'][:120]}"
    return str(error).splitlines()[0][:200]
