from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlab.ingest.batches import output as parsing
from parlab.ingest.batches.events import Limits
from parlab.ingest.batches.services import UNKNOWN, attempt_reingest, batch_apply
from parlab.lab.models import Attempt, Member, Node, Run
from parlab.series import log, operations, store
from parlab.series.models import LogChunk, OperationChunk, SeriesChunk
from runners.wire.protocol import LEASE_S, Batch, Report
from tests.conftest import place
from tests.patience import PATIENCE_S

from .output import event, step, training

pytestmark = pytest.mark.database

MakeAttempt = Callable[..., Attempt]
FINISHED = Report(state="finished", at=1_700_000_100.0, exit_code=0)


@pytest.fixture
def attempt(make_attempt: MakeAttempt) -> Attempt:
    return make_attempt()


def batch(of: Attempt, sequence: int, output: bytes, *reports: Report, **fields: Any) -> Batch:
    return Batch(
        **{
            "run": of.run_id,
            "attempt": of.number,
            "node": "n1",
            "sequence": sequence,
            "next_sequence": sequence + len(output) + len(reports),
            "output": output,
            "reports": list(reports),
            **fields,
        }
    )


def stored(attempt: Attempt) -> dict[str, Any]:
    """All that ingest keeps of an attempt, comparable."""
    attempt.refresh_from_db()
    return {
        "series": {
            key: [column.tobytes() for column in (c.steps, c.times, c.values)]
            for key, c in store.read_many([attempt.pk]).items()
        },
        "log": b"".join(log.read_log(attempt.pk)),
        "operations": {number: operations.read(attempt.pk, number) for number in operations.steps(attempt.pk)},
        "last_step": attempt.last_step,
        "committed": attempt.committed,
    }


def reset(attempt: Attempt) -> None:
    SeriesChunk.objects.all().delete()
    LogChunk.objects.all().delete()
    OperationChunk.objects.all().delete()
    Attempt.objects.update(last_step=None)
    Member.objects.update(committed=0)


def test_a_batch_stores_points_log_position_and_lease(attempt: Attempt) -> None:
    output = training(5)
    before = timezone.now()
    assert batch_apply(batch=batch(attempt, 0, output)) == len(output)
    result = stored(attempt)
    assert result["log"] == output
    assert result["last_step"] == 5
    assert result["committed"] == len(output)
    assert store.read(attempt.pk, "step_time_s", rank=1).values.tolist() == [2.0, 0.75, 0.75, 0.75, 0.75]
    assert store.read(attempt.pk, "cpu_pct", rank=-1).steps.tolist() == [1, 2, 3, 4, 5]
    lease = attempt.members.get().lease_expires_at
    assert lease is not None
    assert lease >= before + timedelta(seconds=LEASE_S)


def test_a_duplicate_or_early_batch_changes_nothing(attempt: Attempt) -> None:
    output = training(3)
    first, second = batch(attempt, 0, output), batch(attempt, len(output), b"more\n")
    assert batch_apply(batch=second) == 0
    assert batch_apply(batch=first) == len(output)
    once = stored(attempt)
    assert batch_apply(batch=first) == len(output)
    assert stored(attempt) == once


def test_a_batch_of_an_unknown_attempt_is_answered_with_unknown(attempt: Attempt) -> None:
    assert batch_apply(batch=batch(attempt, 0, b"x\n", attempt=attempt.number + 1)) == UNKNOWN
    assert batch_apply(batch=batch(attempt, 0, b"x\n", run=attempt.run_id + 99)) == UNKNOWN
    assert batch_apply(batch=batch(attempt, 0, b"x\n", attempt=10**30)) == UNKNOWN
    assert batch_apply(batch=batch(attempt, 0, b"x\n", node_rank=1)) == UNKNOWN
    assert batch_apply(batch=batch(attempt, 0, b"x\n", node_rank=10**30)) == UNKNOWN
    place(attempt, Node.objects.create(name="n2"))
    assert batch_apply(batch=batch(attempt, 0, b"x\n")) == UNKNOWN
    assert not LogChunk.objects.exists()


def test_invalid_positions_are_refused(attempt: Attempt) -> None:
    with pytest.raises(ValueError, match="next_sequence 4 is before sequence 5"):
        batch_apply(batch=batch(attempt, 5, b"", next_sequence=4))
    with pytest.raises(ValueError, match="beyond"):
        batch_apply(batch=batch(attempt, 0, b"", next_sequence=2**63))


def test_reports_update_the_attempt_and_the_last_one_adds_the_summary(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(state="dispatched")
    running = Report(state="running", at=1_700_000_000.0, command=["torchrun"])
    batch_apply(batch=batch(attempt, 0, b"", running))
    attempt.refresh_from_db()
    assert attempt.state == "running"
    batch_apply(batch=batch(attempt, 1, training(4), FINISHED))
    attempt.refresh_from_db()
    run = Run.objects.get(pk=attempt.run_id)
    assert (attempt.state, run.state) == ("finished", "finished")
    assert attempt.summary["step_time_s"]["median"] == 0.75
    assert run.summary == attempt.summary
    assert run.step_time_s == 0.75


def test_the_last_report_updates_a_recent_summary(attempt: Attempt) -> None:
    output = training(2)
    batch_apply(batch=batch(attempt, 0, output))
    batch_apply(batch=batch(attempt, len(output), step(3) + step(3, rank=1) + step(4), FINISHED))
    attempt.refresh_from_db()
    assert attempt.summary["steps"]["last"] == 3


def test_output_of_an_attempt_that_was_given_up_is_stored(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(state="lost")
    batch_apply(batch=batch(attempt, 0, training(4), FINISHED))
    attempt.refresh_from_db()
    assert attempt.state == "lost"
    assert attempt.members.get().lease_expires_at is None
    assert attempt.summary["steps"]["count"] == 3


def test_the_summary_of_an_active_run_is_updated_at_intervals(attempt: Attempt) -> None:
    first, second = training(2), step(3) + step(3, rank=1)
    batch_apply(batch=batch(attempt, 0, first))
    batch_apply(batch=batch(attempt, len(first), second))
    attempt.refresh_from_db()
    assert attempt.summary["steps"]["last"] == 2
    cache.clear()  # as if five seconds had passed
    batch_apply(batch=batch(attempt, len(first + second), b"a line\n"))
    attempt.refresh_from_db()
    assert attempt.summary["steps"]["last"] == 3


def test_a_batch_takes_few_queries(
    attempt: Attempt, django_assert_max_num_queries: Callable[[int], CaptureQueriesContext]
) -> None:
    first, second = training(4_000, ranks=3), training(300, ranks=3)
    batch_apply(batch=batch(attempt, 0, first))
    # Two of them for the operations of steps that are printed again, two for the levels of chunks that become full.
    with django_assert_max_num_queries(16):
        batch_apply(batch=batch(attempt, len(first), second))


HOSTILE = [
    b"z" * 5_000 + b"\n",
    b"\x00\xff\xfe\x1b[2J\r\n",
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":1,"loss":NaN}\n',
    b'{"parlab":' + b"[" * 2_000 + b"\n",
    b"z" * 300_000 + b'{"parlab":1,"t":1,"rank":0,"event":"step","step":9,"loss":1}\n',
    b"a line without its end",
]


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_order_of_batches_stores_exactly_the_stream(attempt: Attempt, data: st.DataObject) -> None:
    """Batches cut at any byte, sent twice, too early, late and overlapping: the result is that of one batch."""
    parts = data.draw(
        st.lists(st.sampled_from([*HOSTILE, training(3), step(7, loss=float("nan")), step(8)]), max_size=6)
    )
    stream = b"".join(parts)
    reset(attempt)
    batch_apply(batch=batch(attempt, 0, stream))
    expected = stored(attempt)

    reset(attempt)
    positions = st.integers(0, len(stream))
    cuts = sorted({0, len(stream), *data.draw(st.lists(positions, max_size=6))})
    needed = [(a, b) for a, b in pairwise(cuts)]
    stray = data.draw(st.lists(st.tuples(positions, positions).map(lambda ends: (min(ends), max(ends))), max_size=5))
    deliveries = data.draw(st.permutations(needed + stray))
    # A daemon goes on from what was acknowledged until all is.
    for a, b in [*deliveries, *needed]:
        position = batch_apply(batch=batch(attempt, a, stream[a:b]))
        assert 0 <= position <= len(stream)
    while (position := stored(attempt)["committed"]) < len(stream):
        batch_apply(batch=batch(attempt, position, stream[position : position + 100_000]))
    assert stored(attempt) == expected
    assert expected["log"] == stream


def test_an_attempt_can_be_rebuilt_from_its_log(attempt: Attempt) -> None:
    stream = b"".join([*HOSTILE[:5], training(60), *HOSTILE])
    for a in range(0, len(stream), 70_001):
        batch_apply(batch=batch(attempt, a, stream[a : a + 70_001]))
    batch_apply(batch=batch(attempt, len(stream), b"", FINISHED))
    expected, summary = stored(attempt), Attempt.objects.get(pk=attempt.pk).summary
    points = sum(info.points for info in store.metrics(attempt.pk))

    SeriesChunk.objects.all().delete()
    OperationChunk.objects.all().delete()
    Attempt.objects.update(last_step=None, summary={})
    for _ in range(2):
        assert attempt_reingest(attempt=attempt) == points
        assert stored(attempt) == expected
        assert Attempt.objects.get(pk=attempt.pk).summary == summary


def test_a_line_of_ten_megabytes_is_stored_and_loses_no_event(attempt: Attempt) -> None:
    stream = training(2) + b'{"parlab":' + b"9" * (10 << 20) + b"\n" + training(4)
    for a in range(0, len(stream), 1 << 20):
        batch_apply(batch=batch(attempt, a, stream[a : a + (1 << 20)]))
    assert stored(attempt)["log"] == stream
    assert store.read(attempt.pk, "step_time_s", rank=0).steps.tolist() == [1, 2, 1, 2, 3, 4]


def test_hostile_output_creates_a_limited_number_of_series(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "Limits", partial(Limits, metrics=200))
    names: list[dict[str, Any]] = [{f"m{line}_{k}": k for k in range(50)} for line in range(40)]
    lines = [event(rank=rank, step=1, **fields) for fields in names for rank in range(9)]
    batch_apply(batch=batch(attempt, 0, b"".join(lines)))
    assert len(store.metrics(attempt.pk)) == 400  # 200 metrics of the 2 ranks that the run has


@pytest.mark.django_db(transaction=True)
def test_two_workers_with_the_same_batch_store_it_once(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt()
    output = training(200)
    barrier, answers = threading.Barrier(4), list[int]()

    def work() -> None:
        try:
            barrier.wait(PATIENCE_S)
            answers.append(batch_apply(batch=batch(attempt, 0, output)))
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [len(output)] * 4
    assert stored(attempt)["log"] == output
    assert len(store.read(attempt.pk, "step_time_s", rank=0)) == 200


@pytest.mark.django_db(transaction=True)
def test_a_failed_batch_stores_nothing(make_attempt: MakeAttempt, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = make_attempt()
    empty = stored(attempt)

    def full_disk(**_: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("parlab.ingest.batches.services.attempt_report", full_disk)
        with pytest.raises(OSError, match="disk full"):
            batch_apply(batch=batch(attempt, 0, training(3), FINISHED))
    assert stored(attempt) == empty
    batch_apply(batch=batch(attempt, 0, training(3), FINISHED))
    assert stored(attempt)["last_step"] == 3


def test_the_offset_of_a_nodes_clock_is_taken_out_of_its_log_and_series(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt()
    place(attempt, Node.objects.create(name="n2"), node_rank=1, clock_offset_s=3600.0)
    for node_rank, name in enumerate(["n1", "n2"]):
        for number in (1, 2):
            # What both nodes print at the same moment, by their own clocks.
            at = 1_700_000_000.0 + number + 0.1 * node_rank + 3600.0 * node_rank
            output = event(rank=node_rank, t=at, step=number, step_time_s=0.5) + b"%s line %d\n" % (
                name.encode(),
                number,
            )
            position = Member.objects.get(attempt=attempt, node_rank=node_rank).committed
            fields = {"node": name, "node_rank": node_rank, "stamps": [(0, at)]}
            batch_apply(batch=batch(attempt, position, output, **fields))
    assert log.log_tail(attempt.pk) == [
        "[node 0] n1 line 1",
        "[node 1] n2 line 1",
        "[node 0] n1 line 2",
        "[node 1] n2 line 2",
    ]

    def times() -> dict[int, list[float]]:
        return {rank: columns.times.tolist() for rank, columns in store.read_ranks(attempt.pk, "step_time_s").items()}

    expected = {0: [1_700_000_001.0, 1_700_000_002.0], 1: [1_700_000_001.1, 1_700_000_002.1]}
    assert times() == {rank: pytest.approx(at, abs=1e-3) for rank, at in expected.items()}
    attempt_reingest(attempt=attempt)
    assert times() == {rank: pytest.approx(at, abs=1e-3) for rank, at in expected.items()}


def test_a_batch_with_streams_keeps_the_rank_of_each_line_and_all_events(attempt: Attempt) -> None:
    pieces = [(-1, b"launching\n"), (1, step(1, rank=1) + b"hello\n"), (0, step(1, rank=0) + b"hello too\n")]
    output = b"".join(text for _, text in pieces)
    offsets = [sum(len(text) for _, text in pieces[:place]) for place in range(len(pieces))]
    streams = [(offset, rank, False) for offset, (rank, _) in zip(offsets, pieces, strict=True)]
    wire = batch(attempt, 0, output, streams=streams).to_wire()
    assert batch_apply(batch=Batch.from_wire(wire)) == len(output)
    assert log.log_tail(attempt.pk) == ["launching", "[rank 1] hello", "[rank 0] hello too"]
    assert b"".join(log.read_log(attempt.pk, rank=0)) == pieces[2][1]
    before = stored(attempt)["series"]
    assert {rank for _, _, rank in before} == {0, 1}
    attempt_reingest(attempt=attempt)
    assert stored(attempt)["series"] == before
