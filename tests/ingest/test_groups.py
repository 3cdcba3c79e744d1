"""Batches of many runs in one transaction, and the order in which waiting batches are taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from parlab.ingest import tasks
from parlab.ingest.batches import services
from parlab.ingest.batches.services import UNKNOWN, batches_apply
from parlab.ingest.batches.waiting import MAX_BYTES, is_idle, take_waiting
from parlab.ingest.tasks import apply_batch
from parlab.lab.models import Attempt
from parlab.refusals import PENDING
from parlab.series import log, store
from runners.wire.message_filter import message
from runners.wire.protocol import APPLY_BATCH_TASK, BACKLOG_QUEUE, INGEST_QUEUE, Batch
from tests.signed import content_of, sealed_batch

from .output import event, step, training
from .test_services import FINISHED, batch, stored

pytestmark = pytest.mark.database

MakeAttempt = Callable[..., Attempt]


def split(attempt: Attempt, stream: bytes, size: int, **fields: Any) -> list[Batch]:
    return [batch(attempt, at, stream[at : at + size], **fields) for at in range(0, len(stream), size)]


def content(attempt: Attempt) -> dict[str, Any]:
    """All that is stored of an attempt, without its number."""
    result = stored(attempt)
    return {**result, "series": {key[1:]: columns for key, columns in result["series"].items()}}


@pytest.mark.slow
def test_consecutive_batches_of_runs_are_stored_like_one_by_one(make_attempt: MakeAttempt) -> None:
    streams = [training(60), training(20) + b"text without end", b"only text\n" * 40]
    alone, together = ([make_attempt() for _ in streams] for _ in range(2))
    for attempt, stream in zip(alone, streams, strict=True):
        for each in split(attempt, stream, 1_500):
            services.batch_apply(batch=each)
    parts = [split(attempt, stream, 1_500) for attempt, stream in zip(together, streams, strict=True)]
    mixed = [each for number in range(max(map(len, parts))) for part in parts for each in part[number : number + 1]]
    for at in range(0, len(mixed), 17):
        # As they arrive, or the other way round: a batch before its turn is not lost, it is stored with its group.
        applied = batches_apply(batches=mixed[at : at + 17][:: -1 if at else 1])
        assert UNKNOWN not in applied.positions
    assert [content(attempt) for attempt in together] == [content(attempt) for attempt in alone]


def test_streams_of_ranks_are_joined_without_mixing_lines(make_attempt: MakeAttempt) -> None:
    pieces: list[tuple[bytes, list[tuple[int, int, bool]]]] = [
        (b"launcher\n", []),
        (event(rank=0, step=1, loss=1.0) + event(rank=1, step=1, loss=2.0), [(0, 0, False)]),
        (event(rank=1, step=2, loss=2.5), [(0, 1, False)]),
        (b"launcher again\n", []),
        (b"and again\n", []),
    ]
    alone, together = make_attempt(), make_attempt()
    groups: list[list[Batch]] = []
    for attempt in (alone, together):
        at, group = 0, []
        for output, streams in pieces:
            group.append(batch(attempt, at, output, streams=streams))
            at += len(output)
        groups.append(group)
    for each in groups[0]:
        services.batch_apply(batch=each)
    batches_apply(batches=groups[1])
    assert content(together) == content(alone)
    assert list(log.read_log(together.pk, rank=1)) == list(log.read_log(alone.pk, rank=1))


def test_the_number_of_queries_does_not_grow_with_the_number_of_runs(make_attempt: MakeAttempt) -> None:
    counts = []
    for number in (2, 12):
        attempts = [make_attempt() for _ in range(number)]
        for first in (1, 2):  # the second time the last chunks exist
            position = 0 if first == 1 else len(step(1))
            group = [batch(attempt, position, step(first)) for attempt in attempts]
            with CaptureQueriesContext(
                connection,
            ) as queries:
                batches_apply(batches=group)
        counts.append(len(queries))
    assert counts[1] <= counts[0] + 2  # a statement takes 90 chunks on SQLite


def test_answers_name_each_spool_once_and_unknown_senders(make_attempt: MakeAttempt) -> None:
    first, second = make_attempt(), make_attempt()
    group = [
        batch(first, 0, b"a\n"),
        batch(second, 0, b"b\n", node="n9"),
        batch(first, 2, b"c\n"),
        batch(first, 9, b"d\n"),
    ]
    assert batches_apply(batches=group).positions == [4, UNKNOWN, 4, 4]
    assert b"".join(log.read_log(first.pk)) == b"a\nc\n"


def test_a_run_that_ends_in_a_group_is_summarised_and_the_others_are_due(make_attempt: MakeAttempt) -> None:
    ended, active = make_attempt(), make_attempt()
    applied = batches_apply(batches=[batch(ended, 0, training(12), FINISHED), batch(active, 0, training(12))])
    assert [attempt.pk for attempt in applied.grown] == [active.pk]
    assert Attempt.objects.get(pk=ended.pk).summary["steps"]
    assert Attempt.objects.get(pk=active.pk).summary == {}


def test_a_run_that_cannot_be_stored_does_not_stop_the_others(
    make_attempt: MakeAttempt, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = make_attempt(), make_attempt()
    apply = services.batches_apply

    def failing(*, batches: list[Batch]) -> services.Applied:
        if any(each.run == bad.run_id for each in batches):
            raise ArithmeticError("cannot be stored")
        return apply(batches=batches)

    monkeypatch.setattr(services, "batches_apply", failing)
    client: Any = redis.Redis.from_url(broker)
    client.lpush(INGEST_QUEUE, *(_raw(batch(attempt, 0, b"hello\n")) for attempt in (bad, good)))
    envelopes = take_waiting(broker)
    tasks._apply(list(tasks._opened(envelopes)))
    assert [stored(attempt)["log"] for attempt in (bad, good)] == [b"", b"hello\n"]
    assert client.llen("node.n1") == 1


def _raw(each: Batch) -> bytes:
    return message(INGEST_QUEUE, APPLY_BATCH_TASK, sealed_batch(each, settings.NODE_KEY))


def test_live_batches_are_taken_first_and_the_backlog_gets_its_share(make_attempt: MakeAttempt, broker: str) -> None:
    attempt = make_attempt()
    client: Any = redis.Redis.from_url(broker)
    large = b"".join(b"%x\n" % (number * 7919**3) for number in range(90_000))
    for number in range(4):
        client.lpush(BACKLOG_QUEUE, _raw(batch(attempt, number, large)))
        client.lpush(INGEST_QUEUE, _raw(batch(attempt, 1_000 + number, b"live\n")))
    assert not is_idle(broker)
    taken = [Batch.from_wire(content_of(envelope)).sequence for envelope in take_waiting(broker)]
    assert taken[:4] == [1_000, 1_001, 1_002, 1_003]
    assert 1 <= len(taken[4:]) < 4
    assert taken[4:] == list(range(len(taken) - 4))
    for _ in range(4):
        client.lpush(INGEST_QUEUE, _raw(batch(attempt, 0, large)))
    assert sum(len(_raw(batch(attempt, 0, large))) for _ in range(4)) > MAX_BYTES
    last = [Batch.from_wire(content_of(envelope)).sequence for envelope in take_waiting(broker)][-1]
    assert last == len(taken) - 4  # of the backlog, although live batches alone exceed the limit


def test_what_is_no_batch_ends_a_group_and_stays_for_celery(make_attempt: MakeAttempt, broker: str) -> None:
    attempt = make_attempt()
    client: Any = redis.Redis.from_url(broker)
    alive = message(INGEST_QUEUE, "parlab.serve.alive", INGEST_QUEUE)
    for each in (_raw(batch(attempt, 1, b"one\n")), alive, _raw(batch(attempt, 2, b"two\n")), b"junk"):
        client.lpush(INGEST_QUEUE, each)
    PENDING.take()
    assert [content_of(envelope)["sequence"] for envelope in take_waiting(broker)] == [1]
    assert client.rpop(INGEST_QUEUE) == alive
    assert [content_of(envelope)["sequence"] for envelope in take_waiting(broker)] == [2]
    assert client.lrange(INGEST_QUEUE, 0, -1) == [b"junk"]
    assert not PENDING.take()


def test_of_many_waiting_batches_half_are_left_for_another_worker(
    make_attempt: MakeAttempt, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "parlab.ingest.batches.waiting._taken_at", {}
    )  # right after another group two are taken together
    attempts = [make_attempt() for _ in range(10)]
    client: Any = redis.Redis.from_url(broker)
    for number in range(100):
        client.lpush(INGEST_QUEUE, _raw(batch(attempts[number % 10], number, b"line\n")))
    taken = [content_of(envelope)["sequence"] for envelope in take_waiting(broker)]
    assert taken == list(range(50))
    while left := take_waiting(broker):
        taken += [content_of(envelope)["sequence"] for envelope in left]
    assert taken == list(range(100))


def test_a_batch_waits_for_another_worker_that_stores_what_comes_before_it(
    make_attempt: MakeAttempt, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, beside = make_attempt(), make_attempt()
    first, second, third = split(attempt, b"one\ntwo\nend\n", 4)
    client: Any = redis.Redis.from_url(broker)
    client.lpush(INGEST_QUEUE, _raw(batch(beside, 0, b"hello\n")))
    looks = []

    def other_worker(_: float) -> None:
        """Store what the other worker has taken, while the node sends more."""
        looks.append((stored(attempt)["log"], client.llen("node.n1")))
        services.batches_apply(batches=[first])
        client.lpush(INGEST_QUEUE, _raw(third))

    monkeypatch.setattr("parlab.ingest.tasks.time", SimpleNamespace(sleep=other_worker, monotonic=time.monotonic))
    grown = tasks._apply_waiting(sealed_batch(second, settings.NODE_KEY))
    assert looks[0] == (b"", 1)  # only the other run was stored and acknowledged
    assert stored(attempt)["log"] == b"one\ntwo\nend\n"
    assert client.llen("node.n1") == 2
    assert {each.pk for each in grown} == {attempt.pk, beside.pk}


def test_a_batch_whose_predecessor_does_not_come_is_answered(
    make_attempt: MakeAttempt, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = make_attempt()
    monkeypatch.setattr(tasks, "_AHEAD_S", 0.3)
    assert tasks._apply_waiting(sealed_batch(batch(attempt, 6, b"later\n"), settings.NODE_KEY)) == []
    client: Any = redis.Redis.from_url(broker)
    assert client.llen("node.n1") == 1
    assert stored(attempt)["log"] == b""


def test_a_task_called_directly_leaves_the_queue_alone(make_attempt: MakeAttempt, broker: str) -> None:
    attempt = make_attempt()
    client: Any = redis.Redis.from_url(broker)
    client.lpush(INGEST_QUEUE, _raw(batch(attempt, 6, b"later\n")))
    apply_batch(sealed_batch(batch(attempt, 0, b"hello\n"), settings.NODE_KEY))
    assert client.llen(INGEST_QUEUE) == 1
    assert not store.metrics(attempt.pk)
