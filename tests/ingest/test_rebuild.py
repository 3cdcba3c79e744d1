"""Rebuilds of series from a log that goes on growing, and what an interrupted one leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection

from parlab.ingest.batches import rebuild, services
from parlab.ingest.batches.services import attempt_reingest, batch_apply
from parlab.lab.models import Attempt, Run
from parlab.series import archive, replacing, store
from parlab.series.models import LogChunk, OperationChunk, SeriesArchive, SeriesChunk, SeriesLevel
from runners.config import RunConfig
from runners.wire.protocol import Report

from .output import event, step, training
from .test_services import FINISHED, batch, stored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

Meanwhile = Callable[[Callable[[], object]], list[int]]


class Killed(BaseException):
    """What ends a process at any point."""


@pytest.fixture
def attempt(make_attempt: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Make an attempt of which each transaction replaces a single series."""
    monkeypatch.setattr(rebuild, "_SERIES", 1)
    attempt = make_attempt()
    send(attempt, training(20))
    return attempt


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Call something each time that a rebuild has packed a series: meanwhile(function) -> the places of the calls."""

    def set_up(happens: Callable[[], object]) -> list[int]:
        places: list[int] = []
        is_inside = False

        def packed(*arguments: Any) -> replacing.Packed:
            nonlocal is_inside
            result = replacing.packed(*arguments)
            if not is_inside and not connection.in_atomic_block:
                is_inside = True
                places.append(len(places))
                happens()
                is_inside = False
            return result

        monkeypatch.setattr(rebuild, "packed", packed)
        return places

    return set_up


def send(attempt: Attempt, output: bytes, *reports: Report) -> None:
    """Store a batch, without a summary."""
    services.batches_apply(batches=[batch(attempt, attempt.members.get().committed, output, *reports)])


def damage(attempt: Attempt) -> None:
    """Remove and change rows of all kinds."""
    SeriesChunk.objects.filter(attempt=attempt, metric="loss").update(count=1, first_step=9)
    SeriesChunk.objects.filter(attempt=attempt, metric="warmup").delete()
    OperationChunk.objects.filter(attempt=attempt, step=2).delete()


def expected(make_attempt: Callable[..., Attempt], *outputs: bytes) -> dict[str, Any]:
    """Return what is stored of an attempt that was never rebuilt."""
    other = make_attempt(point={"train.seed": 99})
    for output in outputs:
        send(other, output)
    return comparable(other)


def comparable(attempt: Attempt) -> dict[str, Any]:
    content = stored(attempt)
    del content["committed"]
    return content | {"series": {key[1:]: columns for key, columns in content["series"].items()}}


def test_output_that_comes_while_a_log_is_rebuilt_is_stored_once(
    attempt: Attempt, meanwhile: Meanwhile, make_attempt: Callable[..., Attempt]
) -> None:
    # Lines that end with later output, and series that were not there before.
    lines = b"".join(step(number, loss=0.5, metrics={f"metric_{number}": 1.0}) for number in range(21, 29))
    pieces = iter([lines[at : at + 150] for at in range(0, len(lines), 150)])
    sent = [training(20)]

    def grows() -> None:
        sent.append(next(pieces, b""))
        send(attempt, sent[-1])

    damage(attempt)
    places = meanwhile(grows)
    attempt_reingest(attempt=attempt)
    assert len(places) > 5
    assert comparable(attempt) == expected(make_attempt, b"".join(sent))


@pytest.mark.slow
@pytest.mark.parametrize("at", range(0, 12, 3))
def test_an_interrupted_rebuild_loses_nothing_and_the_next_one_completes(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, make_attempt: Callable[..., Attempt], at: int
) -> None:
    calls: list[int] = []

    def replace(*arguments: Any) -> None:
        replacing.replace(*arguments)
        calls.append(len(calls))
        if len(calls) > at:
            raise Killed

    damage(attempt)
    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "replace", replace)
        with pytest.raises(Killed):
            attempt_reingest(attempt=attempt)
    send(attempt, step(21, loss=0.5))
    assert stored(attempt)["last_step"] == 21
    attempt_reingest(attempt=attempt)
    assert comparable(attempt) == expected(make_attempt, training(20), step(21, loss=0.5))


@pytest.mark.slow
def test_two_rebuilds_at_once_do_not_disturb_each_other(
    attempt: Attempt, meanwhile: Meanwhile, make_attempt: Callable[..., Attempt]
) -> None:
    numbers = iter(range(21, 99))
    outputs = [training(20)]

    def other_process() -> None:
        if len(outputs) > 4:
            return
        outputs.append(step(next(numbers), loss=0.5))
        send(attempt, outputs[-1])
        attempt_reingest(attempt=attempt)

    damage(attempt)
    meanwhile(other_process)
    attempt_reingest(attempt=attempt)
    assert comparable(attempt) == expected(make_attempt, *outputs)


def test_each_series_is_whole_at_any_time(attempt: Attempt, meanwhile: Meanwhile) -> None:
    before = stored(attempt)["series"]
    seen: list[dict[str, Any]] = []
    meanwhile(lambda: seen.append(stored(attempt)["series"]))
    attempt_reingest(attempt=attempt)
    assert len(seen) > 5
    assert all(each == before for each in seen)


def test_the_rebuild_of_an_attempt_that_is_deleted_ends(attempt: Attempt, meanwhile: Meanwhile) -> None:
    meanwhile(lambda: Run.objects.filter(pk=attempt.run_id).delete())
    with pytest.raises(Attempt.DoesNotExist):
        attempt_reingest(attempt=attempt)
    assert [model.objects.count() for model in (SeriesChunk, SeriesLevel, LogChunk)] == [0, 0, 0]


def test_removed_points_come_back_from_the_log(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    count = store.CHUNK_POINTS + 100
    send(attempt, b"".join(step(number, loss=number / 8) for number in range(count)), FINISHED)
    before = stored(attempt)
    archive.archive(attempt.pk, "")
    assert stored(attempt) != before
    attempt_reingest(attempt=attempt)
    assert stored(attempt) == before
    assert not SeriesArchive.objects.exists()


@pytest.fixture
def command(make_attempt: Callable[..., Attempt]) -> Attempt:
    """Make an attempt of a command, whose lines a reader has read."""
    data: dict[str, Any] = {"parallel": {"engine": "command"}, "command": {"argv": ["/opt/train.py"]}}
    attempt = make_attempt()
    Run.objects.filter(pk=attempt.run_id).update(resolved=RunConfig.model_validate(data).resolved())
    batch_apply(batch=batch(attempt, 0, LINKS + LINES))
    assert Attempt.objects.get(pk=attempt.pk).summary["read_by"] == "megatron"
    return attempt


LINKS = event("link", rank=0, source=0, target=0, round_trip_s=0.5)
LINES = b"".join(
    b" iteration %d/ 9 | elapsed time per iteration (ms): 100.0 | lm loss: 2.0 |\n" % number for number in (1, 2, 3)
)
STEPS = [step(number, loss=number / 8) for number in range(1, 9)]


def series_of(attempt: Attempt) -> dict[str, list[int]]:
    return {key[1]: columns.steps.tolist() for key, columns in store.read_many([attempt.pk]).items()}


def test_events_after_lines_wait_in_the_log_until_they_replace_what_a_reader_has_made(command: Attempt) -> None:
    before = series_of(command)
    send(command, STEPS[0])
    send(command, STEPS[1])
    assert series_of(command) == before
    cache.clear()
    services.attempt_summarise_due(attempt_id=command.pk)
    command.refresh_from_db()
    assert series_of(command)["loss"] == [1, 2]
    assert set(series_of(command)) == {"step_time_s", "loss", "warmup", "link/0/round_trip_s"}
    assert "read_by" not in command.summary
    assert command.last_step == 2
    send(command, STEPS[2])
    assert series_of(command)["loss"] == [1, 2, 3]


def test_events_that_come_while_they_replace_lines_are_stored_once(
    command: Attempt, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "_SERIES", 1)
    sent = [STEPS[0]]
    send(command, STEPS[0])

    def grows() -> None:
        sent.append(STEPS[len(sent)])
        send(command, sent[-1])

    places = meanwhile(grows)
    services.attempt_summarise_due(attempt_id=command.pk)
    assert len(places) > 2
    numbers = list(range(1, len(sent) + 1))
    assert series_of(command)["loss"] == series_of(command)["step_time_s"] == numbers


def test_a_worker_that_dies_while_events_replace_lines_leaves_that_to_the_next_one(
    command: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(rebuild, "_SERIES", 1)
    send(command, STEPS[0])
    with monkeypatch.context() as patch:
        patch.setattr(rebuild._Rebuild, "_finish", killed)
        with pytest.raises(Killed):
            services.attempt_summarise_due(attempt_id=command.pk)
    batch_apply(batch=batch(command, command.members.get().committed, STEPS[1], FINISHED))
    command.refresh_from_db()
    assert series_of(command)["loss"] == series_of(command)["step_time_s"] == [1, 2]
    assert "read_by" not in command.summary
    assert command.summary["loss"]["last"] == 0.25
