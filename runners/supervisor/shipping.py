"""Spool -> broker -> acknowledged: send the records of each run to the server until it acknowledges them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from runners.node.rundir import RunDir, StateDir, directory_name
from runners.supervisor import spool
from runners.wire.protocol import BACKLOG_QUEUE, INGEST_QUEUE, MAX_BATCH_BYTES, Batch

WINDOW = 4
"""Maximum number of unacknowledged batches; after a batch without an answer only one, until the server answers."""
GATHER_S = 0.3
"""Seconds that a batch that is not full waits for more output."""
ANSWERED_S = 2.0
"""Seconds for which it waits for the answer to the batch before it."""
HINT_S = 1.0
"""If the server asks for a batch that was sent longer ago than this, the batch did not arrive."""
RESEND_S = 4.0
RESEND_MAX_S = 60.0
QUEUE_SLACK_S = 1.0
"""Uncertainty of the age of messages in the server's queue: how far the clocks of nodes and of Redis drift apart."""
BROKER_RETRY_S = 0.5
BROKER_RETRY_MAX_S = 5.0
POLL_S = 0.1
MANY_RUNS = 100
REST_S = 5.0
SENT_TOGETHER_BYTES = MAX_BATCH_BYTES
"""Output of batches that are sent in one round trip: a node may have many runs with a few lines each."""
BEHIND_BYTES = MAX_BATCH_BYTES // 4
"""A batch after which more than this remains in the spool belongs to the backlog: live batches go before it."""

log = logging.getLogger(__name__)


class BrokerAway(Exception):
    """Raised if the broker did not accept a message; the caller retries."""


class Outgoing(NamedTuple):
    """A batch as it is sent."""

    wire: dict[str, Any]
    is_backlog: bool = False

    @property
    def queue(self) -> str:
        return BACKLOG_QUEUE if self.is_backlog else INGEST_QUEUE


class Sent(NamedTuple):
    """An unacknowledged batch."""

    sequence: int
    next_sequence: int
    at: float
    is_backlog: bool


class Shipment:
    """Progress of one run's spool: the batch to send next, and what is acknowledged. Independent of the broker."""

    def __init__(self, run: RunDir, node: str, *, is_polled: bool = False, gather_s: float = GATHER_S) -> None:
        self.run = run
        self._node = node
        self._is_polled = is_polled
        self._gather_s = gather_s
        self._acknowledged = run.acknowledged()
        self._position = self._acknowledged
        self._sent: deque[Sent] = deque()
        self._unanswered = 0
        self._progress_at = self._queued_at = 0.0
        self._waiting_since: float | None = None
        self._seen_tail = self._searched_tail = -1
        self._end: int | None = None
        self.is_behind = False
        """Whether the next batch belongs to the backlog, as far as is known without reading the spool."""
        self.rest_until = 0.0
        spool.forget(run.spool, self._acknowledged)

    def is_complete(self) -> bool:
        """Return whether the run has ended and the server has stored all of it, including the final report."""
        return self._find_end() == self._acknowledged

    @property
    def is_stored(self) -> bool:
        """Whether the server has stored everything that was written so far."""
        return spool.tail(self.run.spool) == self._acknowledged

    @property
    def is_idle(self) -> bool:
        """Whether all that was written is stored, or has been seen to be incomplete."""
        return not self._sent and self._waiting_since is None

    def next_batch(self, now: float, *, queue_age_s: Callable[..., float]) -> Batch | None:
        """Return the batch to send now; None if there is nothing to send, or too much is unacknowledged.

        `queue_age_s(is_backlog=)` returns the age of the oldest unread message of the server's queue (s).
        """
        self._expire(now, queue_age_s)
        if len(self._sent) >= (1 if self._unanswered else WINDOW):
            return None
        tail = spool.tail(self.run.spool)
        if tail == self._seen_tail and self._waiting_since is None:
            return None
        piece = spool.read_batch(self.run.spool, self._position)
        if piece.next_position == self._position:
            self._seen_tail, self._waiting_since = tail, None
            return None
        self._waiting_since = self._waiting_since or now
        # A live batch must not overtake those of its run in the backlog: the server would refuse it.
        self.is_behind = tail - piece.next_position > BEHIND_BYTES or any(sent.is_backlog for sent in self._sent)
        is_full = len(piece.output) >= MAX_BATCH_BYTES // 2 or bool(piece.files)
        if not is_full and not piece.reports and now < self._gathers_until(self._waiting_since):
            return None
        return Batch(
            run=self.run.run,
            attempt=self.run.attempt,
            node=self._node,
            sequence=self._position,
            next_sequence=piece.next_position,
            output=piece.output,
            reports=piece.reports,
            node_rank=self.run.node_rank,
            stamps=list(piece.stamps),
            streams=list(piece.streams),
            files=list(piece.files),
            is_polled=self._is_polled,
        )

    def _gathers_until(self, since: float) -> float:
        """Return when a batch that is not full is sent: soon after it began, but not before the last one is answered.

        A busy server then gets fewer and longer batches instead of a queue that grows (Nagle, RFC 896).
        """
        return max(since + self._gather_s, self._sent[-1].at + ANSWERED_S if self._sent else 0.0)

    def was_sent(self, batch: Batch, now: float) -> None:
        """Record that a batch was sent, or is about to be; `start_again` takes that back."""
        self._sent.append(Sent(batch.sequence, batch.next_sequence, now, self.is_behind))
        self._position = batch.next_sequence
        self._waiting_since = now

    def was_stored(self, position: int, now: float) -> None:
        """Record the position up to which the server has stored the spool, and continue from there."""
        if position < self._acknowledged and self._unanswered < 2:
            # An outdated answer. A server that was restored from a backup repeats it.
            return
        if position == self._acknowledged:
            if self._sent and self._sent[0].sequence == position and now - self._sent[0].at > HINT_S:
                self._go_to(position)
            return
        self._acknowledged, self._unanswered, self._progress_at = position, 0, now
        while self._sent and self._sent[0].next_sequence <= position:
            self._sent.popleft()
        expected = self._sent[0].sequence if self._sent else self._position
        if expected != position:
            log.info("%s: the server has %d bytes of the spool, not %d; continuing there", self.run, position, expected)
            self._go_to(position)
        # In this order, because the disk may be full.
        spool.forget(self.run.spool, position)
        self.run.acknowledge(position)

    def start_again(self) -> None:
        """Resend from the acknowledged position at once: the broker is or was unavailable and may lack messages."""
        self._unanswered = 0
        self._go_to(self._acknowledged)

    def mend(self) -> None:
        """Make an ended run's last report readable from the server's position.

        After a power cut the server may have more than this disk; then, or where the position is inside a damaged
        record, only the end of the run can still be reported: it is written again after both.
        """
        if self._sent or self._find_end() in (None, self._acknowledged):
            return
        if spool.read_batch(self.run.spool, self._position).next_position != self._position:
            return
        report = spool.final_report(self.run.spool)
        if report is None:
            return
        log.error("%s: the spool cannot be read at %d; only its end is sent", self.run, self._position)
        with spool.SpoolWriter(self.run.spool, at_least=self._position) as writer:
            writer.start_segment()
            writer.append_report(report)
            self._end = writer.position

    def _find_end(self) -> int | None:
        """Return the position after the final report, once the run has ended with one."""
        if self._end is None and not self.run.is_alive:
            tail = spool.tail(self.run.spool)
            # Reading the last segment takes a while; without new bytes there is no new report.
            if tail != self._searched_tail and spool.final_report(self.run.spool) is not None:
                self._end = tail
            self._searched_tail = tail
        return self._end

    def _expire(self, now: float, queue_age_s: Callable[..., float]) -> None:
        if not self._sent:
            return
        oldest = self._sent[0]
        waited = now - max(oldest.at, self._progress_at, self._queued_at)
        if waited < min(RESEND_S * 2**self._unanswered, RESEND_MAX_S):
            return
        # Queues are read in order: the first copy still waits if something as old does. Once it is read, the server
        # gets the usual time to answer.
        if queue_age_s(is_backlog=oldest.is_backlog) > now - oldest.at - QUEUE_SLACK_S:
            self._queued_at = now
            return
        self._unanswered += 1
        log.warning("%s: no answer to the batch at %d for %.0f s; sending again", self.run, oldest.sequence, waited)
        self._go_to(self._acknowledged)

    def _go_to(self, position: int) -> None:
        self._sent.clear()
        self._position = position
        self._waiting_since = None
        self._seen_tail = -1


class Shipper:
    """Ships the spools of all runs of a state directory, in its own thread."""

    def __init__(
        self,
        state: StateDir,
        node: str,
        *,
        send: Callable[[Sequence[Outgoing]], None],
        queue_age_s: Callable[..., float],
        backlog_room: Callable[[], int],
    ) -> None:
        """The functions may raise BrokerAway.

        `send(batches)` sends batches in this order, `queue_age_s(is_backlog=)` returns the age of the oldest unread
        message of the server's queue (s), 0 if it is empty, and `backlog_room()` how many batches may be added to the
        backlog.
        """
        self._state = state
        self._node = node
        self._send = send
        self._queue_age_s = queue_age_s
        self._backlog_room = backlog_room
        self._room: int | None = None
        self._turns = 0
        self._follow_at = float("-inf")
        self._shipments: dict[str, Shipment] = {}
        self._outgoing: list[tuple[Shipment, Outgoing]] = []
        self._outgoing_bytes = 0
        self._answers: queue.SimpleQueue[tuple[int, int, int, int]] = queue.SimpleQueue()
        self._broker_failures = 0

    def acknowledge(self, run: int, attempt: int, position: int, node_rank: int = 0) -> None:
        """Record the server's answer to a batch; may be called from any thread."""
        self._answers.put((run, attempt, position, node_rank))

    def run(self, stop: threading.Event) -> None:
        """Ship until stopped; errors of one run or of the broker do not end it."""
        while not stop.is_set():
            try:
                self.turn(time.monotonic())
                pause = POLL_S
            except Exception:
                log.exception("shipping failed; retrying")
                pause = REST_S
            if self._broker_failures:
                pause = min(BROKER_RETRY_S * 2**self._broker_failures, BROKER_RETRY_MAX_S)
            stop.wait(pause)

    def turn(self, now: float) -> None:
        """Process the answers, send batches, and delete runs that are stored."""
        if now >= self._follow_at:
            self._follow_runs(now)
        self._take_answers(now)
        self._room = None
        self._turns += 1
        try:
            for shipment in rotated(list(self._shipments.values()), self._turns):
                if now >= shipment.rest_until:
                    self._serve(shipment, now)
            self._send_outgoing()
        except BrokerAway as error:
            if not self._broker_failures:
                log.warning("the broker cannot be reached, trying again: %s", error)
            self._broker_failures += 1
        finally:
            for shipment, _ in self._outgoing:  # not sent
                shipment.start_again()
            self._outgoing, self._outgoing_bytes = [], 0

    def _follow_runs(self, now: float) -> None:
        # A run that comes back from a compute node gets a new shipment, which reads what was acknowledged there.
        held = self._state.runs()
        self._follow_at = now + _rest_s(len(held)) / 2
        runs = {run.path.name: run for run in held if not run.is_shipped_elsewhere}
        self._shipments = {name: shipment for name, shipment in self._shipments.items() if name in runs}
        for name in runs.keys() - self._shipments.keys():
            self._shipments[name] = Shipment(runs[name], self._node)

    def _take_answers(self, now: float) -> None:
        while not self._answers.empty():
            run, attempt, position, node_rank = self._answers.get()
            shipment = self._shipments.get(directory_name(run, attempt, node_rank))
            if shipment is None:
                continue
            try:
                if position < 0:
                    shipment.run.reject()
                else:
                    shipment.was_stored(position, now)
            except OSError:
                log.exception("%s: the answer of the server cannot be recorded", shipment.run)
                shipment.rest_until = now + REST_S

    def _serve(self, shipment: Shipment, now: float) -> None:
        """Ship one run; damaged files of one must not delay the others."""
        try:
            self._ship(shipment, now)
        except BrokerAway:
            raise
        except Exception:
            log.exception("%s: cannot be shipped; retrying", shipment.run)
            shipment.rest_until = now + REST_S

    def _ship(self, shipment: Shipment, now: float) -> None:
        if shipment.run.is_rejected:
            self._set_aside(shipment)
            return
        if shipment.is_complete():
            log.info("%s: stored by the server", shipment.run)
            self._state.finish(shipment.run)
            return
        shipment.mend()
        while not shipment.is_behind or self._has_room():
            batch = shipment.next_batch(now, queue_age_s=self._queue_age_s)
            if batch is None or (shipment.is_behind and not self._has_room()):
                if shipment.is_idle:
                    shipment.rest_until = now + _rest_s(len(self._shipments))
                return
            self._outgoing.append((shipment, Outgoing(batch.to_wire(), shipment.is_behind)))
            self._outgoing_bytes += len(batch.output) + sum(len(piece.data) for piece in batch.files)
            shipment.was_sent(batch, now)
            if self._room is not None and shipment.is_behind:
                self._room -= 1
            if self._outgoing_bytes >= SENT_TOGETHER_BYTES:
                self._send_outgoing()

    def _send_outgoing(self) -> None:
        if self._outgoing:
            self._send([outgoing for _, outgoing in self._outgoing])
            self._outgoing, self._outgoing_bytes = [], 0
            if self._broker_failures:
                self._start_again()

    def _has_room(self) -> bool:
        """Return whether the backlog takes another batch; Redis is asked once in a turn."""
        if self._room is None:
            self._room = self._backlog_room()
        return self._room > 0

    def _start_again(self) -> None:
        log.info("the broker can be reached again")
        self._broker_failures = 0
        for shipment in self._shipments.values():
            shipment.start_again()

    def _set_aside(self, shipment: Shipment) -> None:
        if shipment.run.is_alive:
            return
        target = self._state.set_aside(shipment.run)
        log.error("%s: unknown to the server; its output stays in %s until it is deleted by hand", shipment.run, target)


def _rest_s(runs: int) -> float:
    """Return how long to leave alone what has nothing new: of many runs, looking for output would take all the time."""
    return 0.001 * runs if runs > MANY_RUNS else 0.0


def rotated(shipments: list[Shipment], turn: int) -> list[Shipment]:
    """Return the shipments, beginning with another one each turn, so that each gets room in the backlog."""
    first = turn % len(shipments) if shipments else 0
    return shipments[first:] + shipments[:first]
