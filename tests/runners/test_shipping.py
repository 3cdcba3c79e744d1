"""What is sent when: the window, answers that are late, early or strange, and a broker that is away."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from runners.node.rundir import RunDir, StateDir
from runners.supervisor import spool
from runners.supervisor.shipping import ANSWERED_S, GATHER_S, RESEND_S, WINDOW, BrokerAway, Outgoing, Shipment, Shipper
from runners.supervisor.spool import SpoolWriter
from runners.wire.broker import Broker
from runners.wire.keys import NodeKeys
from runners.wire.message_filter import message
from runners.wire.protocol import ACKNOWLEDGE_TASK, CANCEL_TASK, INGEST_QUEUE, Batch, Report, node_queue
from tests.patience import PATIENCE_S
from tests.runners.test_spool import mount_full, small_disk

__all__ = ["small_disk"]

FINISHED = Report(state="finished", at=2.0, exit_code=0)
BIG = b"x" * 200_000


class Network:
    """A broker in memory, a clock that the test turns, and a shipper that knows no other."""

    def __init__(self, path: Path) -> None:
        self.state = StateDir(path)
        self.sent: list[Batch] = []
        self.round_trips = 0
        self.is_away = False
        self.reached: int | None = None
        """How many batches of a round trip reach the broker before it fails; None: all."""
        self.oldest_at: float | None = None
        """When the oldest message in the server's queue was sent; None: the queue is empty."""
        self.now = 1000.0
        self.backlog: list[Batch] = []
        self.backlog_limit = 1_000
        self.shipper = Shipper(
            self.state,
            "n1",
            send=self._send,
            queue_age_s=lambda **_: 0.0 if self.oldest_at is None else self.now - self.oldest_at,
            backlog_room=lambda: max(0, self.backlog_limit - len(self.backlog)),
        )

    def _send(self, batches: Sequence[Outgoing]) -> None:
        self.round_trips += 1
        for number, batch in enumerate(batches):
            if self.is_away or number == self.reached:
                raise BrokerAway("connection refused")
            self.sent.append(Batch.from_wire(batch.wire))
            if batch.is_backlog:
                self.backlog.append(self.sent[-1])

    def make_run(self, run: int = 1) -> tuple[RunDir, SpoolWriter]:
        directory = self.state.put_in_place(self.state.prepare(run, 1))
        return directory, SpoolWriter(directory.spool)

    def turn(self, seconds: float = 0.0) -> list[tuple[int, int]]:
        """Let time pass and the shipper work; return the byte ranges that it sent."""
        self.now += seconds
        before = len(self.sent)
        self.shipper.turn(self.now)
        return [(batch.sequence, batch.next_sequence) for batch in self.sent[before:]]

    def answer(self, position: int, run: int = 1) -> None:
        self.shipper.acknowledge(run, 1, position)


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path / "state")


def fill(writer: SpoolWriter, records: int) -> list[int]:
    """Append big records; four of them make more than half a batch. Returns where each ends."""
    ends = []
    for _ in range(records):
        writer.append_output(BIG)
        ends.append(writer.position)
    return ends


def test_a_quiet_run_gathers_for_a_moment_and_a_report_goes_at_once(network: Network) -> None:
    _, writer = network.make_run()
    writer.append_output(b"a line\n")
    assert network.turn() == []
    assert network.turn(GATHER_S / 2) == []
    assert len(network.turn(GATHER_S)) == 1
    writer.append_report(FINISHED)
    assert len(network.turn()) == 1
    assert [report for batch in network.sent for report in batch.reports] == [FINISHED]


def test_a_short_batch_waits_for_the_answer_to_the_one_before_it_but_not_for_long(network: Network) -> None:
    _, writer = network.make_run()
    ends = []
    for _ in range(4):
        writer.append_output(b"line\n")
        ends.append(writer.position)
        if len(ends) == 1:
            network.turn()
            assert network.turn(GATHER_S) == [(0, ends[0])]
    assert network.turn(GATHER_S) == network.turn(GATHER_S) == []
    network.answer(ends[0])
    assert network.turn() == [(ends[0], ends[3])]
    writer.append_output(b"line\n")
    assert network.turn(ANSWERED_S / 2) == []
    assert network.turn(ANSWERED_S) == [(ends[3], writer.position)]
    fill(writer, 4)
    assert network.turn() != []  # half full
    writer.append_report(FINISHED)
    assert network.turn() != []


def test_no_more_than_a_window_is_on_its_way_and_answers_make_room(network: Network) -> None:
    _, writer = network.make_run()
    fill(writer, 40)
    ranges = network.turn()
    assert len(ranges) == WINDOW
    assert network.turn(0.1) == []
    network.answer(ranges[1][1])
    more = network.turn(0.1)
    assert len(more) == 2
    assert more[0][0] == ranges[-1][1]


def test_without_an_answer_one_batch_is_tried_again_with_growing_patience(network: Network) -> None:
    _, writer = network.make_run()
    fill(writer, 40)
    first = network.turn()
    pauses = []
    for _ in range(4):
        waited = 0.0
        while not (ranges := network.turn(0.5)):
            waited += 0.5
        assert ranges == first[:1]
        pauses.append(waited)
    assert pauses == sorted(pauses)
    assert pauses[0] <= RESEND_S
    assert pauses[3] > 4 * pauses[0]
    network.answer(first[0][1])
    assert len(network.turn()) == WINDOW


def test_nothing_is_sent_again_while_the_first_copy_waits_in_the_servers_queue(network: Network) -> None:
    _, writer = network.make_run()
    fill(writer, 1)
    network.turn()
    assert len(network.turn(1)) == 1
    network.oldest_at = network.now - 30
    for _ in range(200):
        assert network.turn(RESEND_S) == []


def test_a_batch_that_left_the_queue_unanswered_is_sent_again_however_many_others_wait(network: Network) -> None:
    """Redis lost it, or the worker that took it was killed, while hundreds of nodes fill the queue."""
    _, writer = network.make_run()
    fill(writer, 1)
    network.turn()
    first = network.turn(1)
    sent_at, network.oldest_at = network.now, network.now - 30
    assert network.turn(RESEND_S * 3) == []
    network.oldest_at = sent_at + 10  # all that is left was sent after it
    again: list[tuple[int, int]] = []
    waited = 0.0
    while not again and waited < 2 * RESEND_S:
        again = network.turn(0.5)
        waited += 0.5
    assert again == first
    assert waited > RESEND_S / 2  # the worker that has just taken it gets time to answer


def test_an_answer_beyond_what_was_sent_is_where_it_goes_on(network: Network) -> None:
    _, writer = network.make_run()
    ends = fill(writer, 30)
    network.turn()
    network.answer(ends[-2])
    assert network.turn(0.1) == []
    assert network.turn(1)[0][0] == ends[-2]


def test_an_answer_between_two_batches_is_where_it_goes_on(network: Network) -> None:
    _, writer = network.make_run()
    ends = fill(writer, 40)
    network.turn()
    network.answer(ends[1])
    assert network.turn()[0][0] == ends[1]


def test_an_answer_that_asks_for_a_batch_sent_long_ago_brings_it_at_once_but_only_once(network: Network) -> None:
    """Two ingest workers took batches in the wrong order: the server has the first and threw the second away."""
    _, writer = network.make_run()
    fill(writer, 40)
    first = network.turn()
    network.answer(first[0][1])
    network.turn(0.2)
    for _ in range(3):
        network.answer(first[0][1])
    assert network.turn(0.2) == []
    network.answer(first[0][1])
    network.answer(first[0][1])
    assert network.turn(1.5)[0][0] == first[1][0]
    network.answer(first[0][1])
    assert network.turn(0.2) == []


def test_an_answer_that_was_overtaken_changes_nothing(network: Network) -> None:
    _, writer = network.make_run()
    fill(writer, 40)
    first = network.turn()
    network.answer(first[2][1])
    network.turn()
    network.answer(first[0][1])
    sent = network.turn()
    assert all(sequence >= first[2][1] for sequence, _ in sent)


def test_a_server_that_was_set_back_gets_everything_that_the_node_still_has(network: Network) -> None:
    _, writer = network.make_run()
    fill(writer, 4)
    first = network.turn(1) + network.turn(1)
    network.answer(first[-1][1])
    network.turn()
    writer.append_output(b"new\n")
    network.turn(1)
    count = len(network.sent)
    for _ in range(6):
        # The batch stays unanswered long enough to know that the answer is not just a late one.
        network.turn(30)
        network.answer(0)
    network.turn(1)
    assert 0 in [batch.sequence for batch in network.sent[count:]]


def test_the_acknowledged_position_survives_a_restart_and_acknowledged_segments_go(network: Network) -> None:
    run, writer = network.make_run()
    writer.segment_bytes = 100
    for _ in range(5):
        writer.append_output(b"x" * 90)
    ranges = network.turn() + network.turn(1)
    network.answer(ranges[-1][1])
    network.turn()
    assert spool.segments(run.spool) == [writer.position - 101]
    writer.append_output(b"more\n")
    again = Network(network.state.root)
    again.turn()
    assert again.turn(1) == [(ranges[-1][1], writer.position)]


def test_an_answer_makes_room_on_a_disk_that_is_full_of_output(small_disk: Path) -> None:
    network = Network(small_disk / "state")
    run, writer = network.make_run()
    writer.segment_bytes = 100_000
    while True:
        try:
            writer.append_output(b"x" * 10_000)
        except OSError:
            break
    mount_full(small_disk)
    stored = (network.turn() + network.turn(1))[-1][1]
    network.answer(stored)
    network.turn()
    assert spool.segments(run.spool)[0] > 0
    writer.append_output(b"x" * 10_000)


def test_a_disk_that_refuses_an_answer_does_not_hold_up_other_runs(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        network.make_run(number)[1].append_output(b"a\n")
    ends = {batch.run: batch.next_sequence for _ in range(2) if network.turn(1) for batch in network.sent}
    real = spool.forget

    def refuse(directory: Path, position: int) -> None:
        if "1-1" in directory.parts:
            raise OSError(errno.EROFS, "Read-only file system")
        real(directory, position)

    monkeypatch.setattr(spool, "forget", refuse)
    network.answer(ends[1], run=1)
    network.answer(ends[2], run=2)
    network.turn()
    assert network.state.find(2, 1).acknowledged() == ends[2]


def test_a_run_goes_when_its_final_report_is_stored_and_not_before(network: Network) -> None:
    run, writer = network.make_run()
    writer.append_output(b"a\n")
    network.turn()
    first = network.turn(1)
    writer.append_report(FINISHED)
    network.turn()
    network.answer(first[0][1])
    network.turn()
    assert run.path.is_dir()
    network.answer(writer.position)
    network.turn()
    assert not run.path.is_dir()
    assert network.state.is_known(1, 1)
    network.answer(writer.position)
    assert network.turn() == []


def test_after_a_power_cut_the_end_is_told_behind_what_the_server_has(network: Network) -> None:
    """The server stored more than the disk kept: the spool cannot fill the hole, but it can say how the run ended."""
    run, writer = network.make_run()
    writer.append_output(b"kept\n")
    writer.append_report(FINISHED)
    first = network.turn() + network.turn(1)
    beyond = first[-1][1] + 5000
    network.answer(beyond)
    assert network.turn() == [(beyond, network.sent[-1].next_sequence)]
    assert network.sent[-1].reports == [FINISHED]
    network.answer(network.sent[-1].next_sequence)
    network.turn()
    assert not run.path.is_dir()


def test_a_position_inside_a_record_is_left_behind_with_a_note(network: Network) -> None:
    run, writer = network.make_run()
    writer.append_output(b"a line\n")
    writer.append_report(FINISHED)
    network.turn()
    network.answer(5)
    network.turn()
    ranges = network.turn(1) + network.turn(1)
    assert ranges[0][0] == 5
    assert b"bytes of the spool are missing" in network.sent[-2].output
    assert network.sent[-1].reports == [FINISHED]
    network.answer(ranges[-1][1])
    network.turn()
    assert not run.path.is_dir()


def test_a_broker_that_comes_back_gets_what_it_may_have_lost(network: Network) -> None:
    _, writer = network.make_run()
    fill(writer, 40)
    first = network.turn()
    network.answer(first[0][1])
    network.is_away = True
    assert network.turn() == []
    assert network.turn(1) == []
    network.is_away = False
    back = network.turn(1) + network.turn(0.1)
    assert back[0][0] >= first[0][1]
    assert (first[1][0], first[1][1]) in back


def test_batches_of_many_runs_go_in_one_round_trip(network: Network) -> None:
    for run in range(1, 51):
        _, writer = network.make_run(run)
        writer.append_report(FINISHED)
    assert len(network.turn()) == 50
    assert network.round_trips == 1


def test_long_output_goes_in_several_round_trips(network: Network) -> None:
    for run in range(1, 5):
        fill(network.make_run(run)[1], 20)
    network.turn()
    assert network.round_trips >= len(network.sent) / 2 > 4


def test_what_did_not_reach_the_broker_together_is_sent_again(network: Network) -> None:
    for run in (1, 2, 3):
        network.make_run(run)[1].append_report(FINISHED)
    network.reached = 1  # of the first round trip
    network.turn()
    assert len(network.sent) == 1
    network.reached = None
    network.turn(5)
    assert {batch.run for batch in network.sent[1:]} == {1, 2, 3}


def test_a_run_that_cannot_be_read_does_not_hold_up_the_others(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bad = network.make_run(1)
    _, good = network.make_run(2)
    bad.append_report(FINISHED)
    good.append_report(FINISHED)
    original: Callable[..., Any] = Shipment.next_batch

    def next_batch(self: Shipment, *arguments: Any, **options: Any) -> Any:
        if self.run.run == 1:
            raise OSError(5, "Input/output error")
        return original(self, *arguments, **options)

    monkeypatch.setattr(Shipment, "next_batch", next_batch)
    network.turn()
    assert [batch.run for batch in network.sent] == [2]


def test_an_attempt_that_the_server_does_not_know_is_put_aside(network: Network) -> None:
    run, writer = network.make_run()
    writer.append_report(FINISHED)
    network.turn()
    network.answer(-1)
    network.turn()
    assert not run.path.is_dir()
    assert (network.state.rejected_path / "1-1" / "spool").is_dir()
    assert network.state.is_known(1, 1)


def test_an_answer_for_a_run_that_is_not_here_is_ignored(network: Network) -> None:
    network.answer(5, run=99)
    assert network.turn() == []


def test_the_shipper_stops_when_told(network: Network) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=network.shipper.run, args=[stop])
    thread.start()
    stop.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_what_the_backlog_has_no_room_for_stays_in_the_spool_and_live_output_goes_on(network: Network) -> None:
    _, old = network.make_run(1)
    fill(old, 40)
    _, live = network.make_run(2)
    network.backlog_limit = 2
    network.turn()
    assert [batch.run for batch in network.backlog] == [1, 1]
    live.append_output(b"now\n")
    for _ in range(3):
        network.turn(GATHER_S)
    assert [batch.run for batch in network.sent] == [1, 1, 2]
    del network.backlog[0]
    network.turn()
    assert [batch.run for batch in network.sent] == [1, 1, 2, 1]


def test_the_last_batch_of_a_backlog_waits_behind_the_others(network: Network) -> None:
    _, writer = network.make_run()
    ends = fill(writer, 9)
    network.turn()
    # The second batch leaves nothing in the spool, but the one before it is in the backlog.
    assert [batch.next_sequence for batch in network.backlog] == [ends[4], ends[8]]
    network.answer(ends[8])
    writer.append_output(b"now\n")
    network.turn()
    network.turn(2 * GATHER_S)
    assert (len(network.sent), len(network.backlog)) == (3, 2)


def test_every_run_of_a_crowded_node_gets_its_share_of_the_backlog(network: Network) -> None:
    for run in range(1, 5):
        fill(network.make_run(run)[1], 12)
    network.backlog_limit = 1
    for _ in range(4):
        network.turn()
        network.backlog.clear()
    assert {batch.run for batch in network.sent} == {1, 2, 3, 4}


def test_the_age_of_a_queue_is_that_of_the_message_that_is_read_next(tmp_path: Path, redis_url: str) -> None:
    first, second = (Broker(redis_url, name, NodeKeys(tmp_path / name, name, b"shared")) for name in ("gpu1", "gpu2"))
    wire = Batch(run=1, attempt=1, node="gpu1", sequence=0, next_sequence=1).to_wire()
    assert second.queue_age_s() == 0.0
    began = first.server_time()
    first.send_batches([Outgoing(wire)])
    between = first.server_time()
    second.send_batches([Outgoing(wire), Outgoing(wire, is_backlog=True)])
    low, age, high = first.server_time() - between, second.queue_age_s(), first.server_time() - began
    assert low <= age <= high
    with redis.Redis.from_url(redis_url) as client:
        client.rpop(INGEST_QUEUE)  # the server has read the first one
        assert second.queue_age_s() <= first.server_time() - between
        assert second.queue_age_s(is_backlog=True) > 0
        for nonsense in (b"", b"not JSON", b"[]", b'{"body": 5}'):
            client.rpush(INGEST_QUEUE, nonsense)
            assert second.queue_age_s() == 0.0


def test_acknowledgements_that_wait_are_taken_together_up_to_the_next_order(tmp_path: Path, redis_url: str) -> None:
    broker = Broker(redis_url, "gpu1", NodeKeys(tmp_path, "gpu1", b"shared"), state_id="s1")
    queue, taken = node_queue("gpu1", "s1"), list[Any]()
    with redis.Redis.from_url(redis_url) as client:
        for task, content in ((ACKNOWLEDGE_TASK, 2), (ACKNOWLEDGE_TASK, 3), (CANCEL_TASK, 4), (ACKNOWLEDGE_TASK, 5)):
            client.lpush(queue, message(queue, task, content))
        client.rpush(queue, json.dumps({"headers": {"task": ACKNOWLEDGE_TASK}}))
        orders: Any = SimpleNamespace(acknowledge=taken.append)
        broker._acknowledge(orders, 1)
        assert taken == [1, 2, 3]
        assert client.llen(queue) == 2  # what Celery takes
    assert [refused.queue for refused in broker.take_refused()] == [queue]
