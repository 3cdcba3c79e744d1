"""Whole logs are read while nothing is locked, and only what is then still the newest is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import cache
from django.db import OperationalError, connection

from parlab.ingest import tasks
from parlab.ingest.batches import services
from parlab.ingest.batches.services import attempt_reingest, attempt_summarise_due, batch_apply
from parlab.ingest.summaries import printed
from parlab.ingest.summaries.attempt_summaries import attempt_summarise
from parlab.ingest.tasks import apply_batch
from parlab.lab.models import Attempt, Run
from parlab.series import log, store
from runners.config import RunConfig
from tests.signed import sealed_batch

from .output import step
from .test_services import FINISHED, batch
from .test_tasks import answers

pytestmark = pytest.mark.database

MakeAttempt = Callable[..., Attempt]
Read = Callable[..., Any]


def lines(*steps: int) -> bytes:
    """Lines of Megatron-LM."""
    text = " iteration %d/ 9 | elapsed time per iteration (ms): 100.0 | global batch size: 16 | lm loss: %d.0E+00 |\n"
    return b"".join(text.encode() % (each, each) for each in steps)


@pytest.fixture
def attempt(make_attempt: MakeAttempt) -> Attempt:
    """A running attempt of a command that has printed two steps, not yet summarised."""
    attempt = make_attempt(state="running")
    resolved = RunConfig.model_validate(
        {"parallel": {"engine": "command"}, "command": {"argv": ["/opt/train.py"]}}
    ).resolved()
    Run.objects.filter(pk=attempt.run_id).update(resolved=resolved)
    services.batches_apply(batches=[batch(attempt, 0, lines(1, 2))])
    return Attempt.objects.select_related("run").get(pk=attempt.pk)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Let something happen after the log was read the first time, before it is locked; returns the sizes of logs."""

    def set_up(happens: Callable[[], object]) -> list[int]:
        actual: Read = printed.read
        sizes: list[int] = []

        def read(pieces: Callable[[], Any], spool: Any, **named: Any) -> Any:
            reading = actual(pieces, spool, **named)
            sizes.append(sum(map(len, pieces())))
            if len(sizes) == 1:
                happens()
            return reading

        monkeypatch.setattr(printed, "read", read)
        return sizes

    return set_up


def send(attempt: Attempt, *steps: int, is_end: bool = False) -> services.Applied:
    """Store a batch with more steps, without summaries."""
    committed = attempt.members.get().committed
    reports = [FINISHED] if is_end else []
    return services.batches_apply(batches=[batch(attempt, committed, lines(*steps), *reports)])


def steps_of(attempt: Attempt) -> list[int]:
    return [int(each) for each in store.read(attempt.pk, "loss", rank=0).steps]


def summary_of(attempt: Attempt) -> dict[str, Any]:
    attempt.refresh_from_db()
    result: dict[str, Any] = attempt.summary
    return result


@pytest.mark.django_db
def test_a_log_that_has_grown_meanwhile_is_summarised_up_to_where_it_was_read(
    attempt: Attempt, meanwhile: Callable[..., list[int]]
) -> None:
    sizes = meanwhile(lambda: send(attempt, 3))
    attempt_summarise_due(attempt_id=attempt.pk)
    assert (len(sizes), steps_of(attempt), summary_of(attempt)["loss"]["last"]) == (1, [1, 2], 2.0)
    attempt_summarise_due(attempt_id=attempt.pk)
    assert (steps_of(attempt), summary_of(attempt)["loss"]["last"]) == ([1, 2, 3], 3.0)


@pytest.mark.django_db
def test_a_summary_is_dropped_if_another_worker_has_summarised_more(
    attempt: Attempt, meanwhile: Callable[..., list[int]]
) -> None:
    def other_worker() -> None:
        send(attempt, 3)
        attempt_summarise(attempt=attempt)

    sizes = meanwhile(other_worker)
    attempt_summarise_due(attempt_id=attempt.pk)
    assert len(sizes) == 2
    assert (steps_of(attempt), summary_of(attempt)["loss"]["last"]) == ([1, 2, 3], 3.0)


@pytest.mark.django_db
def test_a_summary_is_dropped_if_the_attempt_has_ended_meanwhile(
    attempt: Attempt, meanwhile: Callable[..., list[int]]
) -> None:
    ended: list[Attempt] = []
    sizes = meanwhile(lambda: ended.extend(send(attempt, 3, is_end=True).ended))
    attempt_summarise_due(attempt_id=attempt.pk)
    assert (len(sizes), steps_of(attempt), summary_of(attempt)) == (1, [], {})
    services.log_end(ended[0])
    assert (steps_of(attempt), summary_of(attempt)["loss"]["last"]) == ([1, 2, 3], 3.0)


@pytest.mark.django_db
def test_the_summary_of_an_end_is_made_again_if_another_worker_has_summarised_more(
    attempt: Attempt, meanwhile: Callable[..., list[int]]
) -> None:
    (ended,) = send(attempt, 3, is_end=True).ended

    def other_worker() -> None:
        # Output that arrives late, after the report of the end.
        send(attempt, 4)
        attempt_summarise(attempt=attempt)
        send(attempt, 5)

    sizes = meanwhile(other_worker)
    services.log_end(ended)
    assert len(sizes) == 3
    assert (steps_of(attempt), summary_of(attempt)["loss"]["last"]) == ([1, 2, 3, 4, 5], 5.0)


@pytest.mark.django_db
@pytest.mark.parametrize("is_end", [False, True])
def test_events_that_come_while_a_log_is_read_are_not_doubled_by_its_lines(
    attempt: Attempt, meanwhile: Callable[..., list[int]], is_end: bool
) -> None:
    def with_events() -> None:
        committed = attempt.members.get().committed
        services.batches_apply(batches=[batch(attempt, committed, step(7, loss=7.5, step_time_s=0.25))])

    if is_end:
        (ended,) = send(attempt, 3, is_end=True).ended
    meanwhile(with_events)
    if is_end:
        services.log_end(ended)
        assert summary_of(attempt)["loss"]["last"] == 7.5
    else:
        attempt_summarise_due(attempt_id=attempt.pk)
    assert steps_of(attempt) == [7]
    assert "read_by" not in summary_of(attempt)


@pytest.mark.django_db
def test_an_end_is_acknowledged_once_its_log_was_read_and_others_before(
    attempt: Attempt, make_attempt: MakeAttempt, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_attempt(point={"train.seed": 2}, state="running")
    committed = attempt.members.get().committed
    end = sealed_batch(batch(attempt, committed, lines(3), FINISHED), settings.NODE_KEY)
    beside = sealed_batch(batch(other, 0, step(1)), settings.NODE_KEY)
    before: list[list[int]] = []

    def unavailable(attempts: list[Attempt]) -> None:
        before.extend(answers(broker))
        raise OperationalError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(services, "attempts_end", unavailable)
        with pytest.raises(OperationalError):
            tasks._apply(list(tasks._opened([end, beside])))
    assert before == [[other.run_id, 1, len(step(1)), 0]]
    assert answers(broker) == []
    assert steps_of(attempt) == []
    # Its node sends it again, perhaps to another worker.
    cache.clear()
    apply_batch(end)
    assert len(answers(broker)) == 1
    assert (steps_of(attempt), summary_of(attempt)["loss"]["last"]) == ([1, 2, 3], 3.0)
    assert log.log_size(attempt.pk) == len(lines(1, 2, 3))


@pytest.mark.django_db
def test_the_log_of_an_end_that_is_sent_again_is_not_read_again(
    attempt: Attempt, broker: str, meanwhile: Callable[..., list[int]]
) -> None:
    end = sealed_batch(batch(attempt, attempt.members.get().committed, lines(3), FINISHED), settings.NODE_KEY)
    sizes = meanwhile(lambda: None)
    for _ in range(3):
        apply_batch(end)
    assert (len(answers(broker)), len(sizes)) == (3, 1)


@pytest.mark.django_db(transaction=True)
def test_no_log_is_read_in_a_transaction(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    actual, is_locked = printed.read, list[bool]()

    def read(*arguments: Any, **named: Any) -> Any:
        is_locked.append(connection.in_atomic_block)
        return actual(*arguments, **named)

    monkeypatch.setattr(printed, "read", read)
    attempt_summarise_due(attempt_id=attempt.pk)
    batch_apply(batch=batch(attempt, attempt.members.get().committed, lines(3), FINISHED))
    attempt_reingest(attempt=attempt)
    assert is_locked == [False] * 3
    assert (steps_of(attempt), summary_of(attempt)["loss"]["last"]) == ([1, 2, 3], 3.0)


@pytest.mark.django_db
def test_a_log_that_grows_while_it_is_read_has_no_gap(
    make_attempt: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CHUNK_BYTES", 100)
    monkeypatch.setattr(log, "_READ_CHUNKS", 2)
    attempt = make_attempt()
    log.append_log(attempt.pk, b"a" * 150)
    reading = log.read_log(attempt.pk)
    pieces = [next(reading)]
    log.append_log(attempt.pk, b"b" * 200)
    assert b"".join([*pieces, *reading]) == b"a" * 150
    assert b"".join(log.read_log(attempt.pk)) == b"a" * 150 + b"b" * 200
    assert log.log_size(attempt.pk) == 350
