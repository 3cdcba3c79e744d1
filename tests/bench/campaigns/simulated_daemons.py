"""Daemons of a thousand nodes in one process: heartbeats, orders and batches as real ones, but ranks that only print.

`python -m tests.bench.campaigns.simulated_daemons URL COUNT STEP_S`, with PARLAB_NODE_KEY in the environment. Each
rank prints a step with ten metrics every STEP_S seconds, `train.iterations` times, and ends. Spools are kept in
memory, and shipped by the rules of `runners.supervisor.shipping`: a busy server gets fewer and longer batches, and none
twice that still waits.
"""

from __future__ import annotations

import heapq
import json
import os
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import redis

from runners.supervisor.shipping import ANSWERED_S, GATHER_S, HINT_S, QUEUE_SLACK_S, RESEND_MAX_S, RESEND_S, WINDOW
from runners.wire.broker import CONTROL_QUEUE_LIMIT
from runners.wire.message_filter import message, read
from runners.wire.protocol import (
    ACKNOWLEDGE_TASK,
    APPLY_BATCH_TASK,
    CANCEL_TASK,
    CONTROL_QUEUE,
    GO_TASK,
    HEARTBEAT_S,
    HEARTBEAT_TASK,
    INGEST_QUEUE,
    START_TASK,
    Abilities,
    Acknowledge,
    Batch,
    Cancel,
    Go,
    Heartbeat,
    HeldRun,
    Order,
    Rendezvous,
    Report,
    RunSpec,
    node_queue,
    verify,
)
from runners.wire.trust import shared_key
from tests.signed import sealed_batch, sealed_heartbeat

POOL, METRICS, TURN_S = "bench-thousand", 10, 0.1
_ORDERS: dict[str, Any] = {START_TASK: RunSpec, GO_TASK: Go, CANCEL_TASK: Cancel, ACKNOWLEDGE_TASK: Acknowledge}
# All messages in the queues of these nodes, with one round trip.
_TAKE = """
local taken = {}
for place, queue in ipairs(KEYS) do
  local raw = redis.call('RPOP', queue)
  while raw do
    table.insert(taken, place)
    table.insert(taken, raw)
    raw = redis.call('RPOP', queue)
  end
end
return taken
"""


@dataclass
class Record:
    """What one write added to a spool, up to the position `end`: output or a report."""

    end: int
    output: bytes = b""
    report: Report | None = None


@dataclass
class Sent:
    """An unacknowledged batch."""

    next_sequence: int
    at: float


@dataclass
class Held:
    """The attempt that a node holds, and what of its spool is not acknowledged."""

    spec: RunSpec
    steps: int
    ranks: range
    step: int = 0
    is_started: bool = False
    tail: int = 0
    acknowledged: int = 0
    position: int = 0
    waiting_since: float | None = None
    unanswered: int = 0
    queued_at: float = 0.0
    records: deque[Record] = field(default_factory=deque)
    sent: deque[Sent] = field(default_factory=deque)

    def write(self, output: bytes = b"", report: Report | None = None) -> None:
        """Add output or a report to the spool."""
        self.tail += max(1, len(output))
        self.records.append(Record(self.tail, output, report))

    def next_batch(self, node: str, now: float, queue_age_s: float) -> Batch | None:
        """Return the batch to send now; None if there is nothing to send, or too much is unacknowledged."""
        self._expire(now, queue_age_s)
        unsent = [record for record in self.records if record.end > self.position]
        if not unsent or len(self.sent) >= (1 if self.unanswered else WINDOW):
            return None
        self.waiting_since = self.waiting_since or now
        reports = [record.report for record in unsent if record.report is not None]
        gathers_until = max(self.waiting_since + GATHER_S, self.sent[-1].at + ANSWERED_S if self.sent else 0.0)
        if not reports and now < gathers_until:
            return None
        batch = Batch(
            run=self.spec.run,
            attempt=self.spec.attempt,
            node=node,
            node_rank=self.spec.node_rank,
            sequence=self.position,
            next_sequence=self.tail,
            output=b"".join(record.output for record in unsent),
            reports=reports,
        )
        self.sent.append(Sent(self.tail, now))
        self.position, self.waiting_since = self.tail, None
        return batch

    def was_stored(self, position: int, now: float) -> None:
        """Forget what the server has stored."""
        if position <= self.acknowledged:
            if position == self.acknowledged and self.sent and now - self.sent[0].at > HINT_S:
                self._start_again()
            return
        self.acknowledged, self.unanswered, self.queued_at = position, 0, now
        while self.records and self.records[0].end <= position:
            self.records.popleft()
        while self.sent and self.sent[0].next_sequence <= position:
            self.sent.popleft()
        self.position = max(self.position, position)

    def _expire(self, now: float, queue_age_s: float) -> None:
        if not self.sent:
            return
        at = self.sent[0].at
        if now - max(at, self.queued_at) < min(RESEND_S * 2**self.unanswered, RESEND_MAX_S):
            return
        if queue_age_s > now - at - QUEUE_SLACK_S:
            self.queued_at = now
            return
        self.unanswered += 1
        self._start_again()

    def _start_again(self) -> None:
        self.sent.clear()
        self.position, self.waiting_since = self.acknowledged, None


class Daemon:
    """One node."""

    def __init__(self, number: int) -> None:
        self.name = f"node-{number:04}"
        self.held: Held | None = None


def heartbeat_of(name: str, pool: str, spec: RunSpec | None) -> Heartbeat:
    """Return what a daemon that may hold a run sends every two seconds."""
    held = [HeldRun(run=spec.run, attempt=spec.attempt, alive=True, node_rank=spec.node_rank)] if spec else []
    return Heartbeat(
        node=name,
        pool=pool,
        sent_at=time.time(),
        slots=1,
        version="bench",
        hardware={"hostname": name, "gpus": []},
        held=held,
        abilities=Abilities(engines=["command"], launchers=["plain"], commands=[["/bin/sleep"]]),
        state_id=name,
    )


class Fleet:
    """All nodes."""

    def __init__(self, url: str, key: bytes, nodes: int, step_s: int) -> None:
        self._key, self._step_s = key, step_s
        self._redis = redis.Redis.from_url(url)
        self._daemons = [Daemon(number) for number in range(nodes)]
        self._queues = [node_queue(daemon.name) for daemon in self._daemons]
        self._order = count()
        now = time.monotonic()
        # What is due: (time, tie-breaker, heartbeat or step, daemon).
        self._due = [(now + HEARTBEAT_S * n / nodes, next(self._order), True, d) for n, d in enumerate(self._daemons)]
        heapq.heapify(self._due)
        self._messages: list[tuple[str, bytes]] = []

    def turn(self) -> None:
        """Carry out orders, and send what is due."""
        taken: Any = self._redis.eval(_TAKE, len(self._queues), *self._queues)
        for place, raw in zip(taken[::2], taken[1::2], strict=True):
            self._carry_out(self._daemons[place - 1], raw)
        now = time.monotonic()
        may_beat = int(self._redis.llen(CONTROL_QUEUE)) < CONTROL_QUEUE_LIMIT
        while self._due[0][0] <= now:
            at, _, is_heartbeat, daemon = heapq.heappop(self._due)
            if is_heartbeat:
                self._later(at + HEARTBEAT_S, daemon, is_heartbeat=True)
                if may_beat:
                    heartbeat = heartbeat_of(daemon.name, POOL, daemon.held.spec if daemon.held else None)
                    self._send(CONTROL_QUEUE, HEARTBEAT_TASK, sealed_heartbeat(heartbeat, self._key))
            elif daemon.held is not None:
                self._step(daemon, daemon.held, at)
        self._ship(now)
        pipeline = self._redis.pipeline(transaction=False)
        for queue, raw in self._messages:
            pipeline.lpush(queue, raw)
        pipeline.execute()
        self._messages.clear()

    def _later(self, at: float, daemon: Daemon, *, is_heartbeat: bool) -> None:
        heapq.heappush(self._due, (at, next(self._order), is_heartbeat, daemon))

    def _send(self, queue: str, task: str, envelope: dict[str, Any]) -> None:
        self._messages.append((queue, message(queue, task, envelope)))

    def _carry_out(self, daemon: Daemon, raw: bytes) -> None:
        sound = read(raw, node_queue(daemon.name), lambda *_: "")
        order: Order | Acknowledge = verify(
            sound.arguments[0], lambda *_: _secret(self._key, daemon.name), _ORDERS[sound.task], node=daemon.name
        )
        held = daemon.held
        if isinstance(order, RunSpec) and held is None:
            per_node = order.config["cluster"].get("gpus_per_node") or 1
            ranks = range(order.node_rank * per_node, (order.node_rank + 1) * per_node)
            daemon.held = Held(order, steps=order.config["train"]["iterations"], ranks=ranks)
            meeting = Rendezvous(address="127.0.0.1", port=29_500)
            daemon.held.write(report=Report(state="prepared", at=time.time(), rendezvous=meeting))
        if held is None or (order.run, order.attempt) != (held.spec.run, held.spec.attempt):
            return
        if isinstance(order, Go) and not held.is_started:
            held.is_started = True
            held.write(report=Report(state="running", at=time.time(), command=["sleep"]))
            self._later(time.monotonic() + self._step_s, daemon, is_heartbeat=False)
        elif isinstance(order, Cancel):
            held.write(report=Report(state="cancelled", at=time.time(), reason=order.reason))
        elif isinstance(order, Acknowledge):
            held.was_stored(order.position, time.monotonic())
            if not held.records and held.step >= held.steps:
                daemon.held = None

    def _step(self, daemon: Daemon, held: Held, at: float) -> None:
        held.step += 1
        values = ",".join(f'"metric_{n}":{held.spec.run + held.step / (n + 7):.6f}' for n in range(1, METRICS))
        for rank in held.ranks:
            step = f'"rank":{rank},"event":"step","step":{held.step},"step_time_s":{self._step_s}.{rank % 10}'
            held.write(f'{{"parlab":1,"t":{time.time():.3f},{step},{values}}}\n'.encode())
        if held.step < held.steps:
            self._later(at + self._step_s, daemon, is_heartbeat=False)
        else:
            held.write(report=Report(state="finished", at=time.time(), exit_code=0))

    def _ship(self, now: float) -> None:
        queue_age_s = self._queue_age_s()
        for daemon in self._daemons:
            batch = daemon.held.next_batch(daemon.name, now, queue_age_s) if daemon.held is not None else None
            if batch is not None:
                self._send(INGEST_QUEUE, APPLY_BATCH_TASK, sealed_batch(batch, self._key))

    def _queue_age_s(self) -> float:
        """Return the age of the oldest batch that waits for the server (s), 0 without one."""
        oldest: Any = self._redis.lindex(INGEST_QUEUE, -1)
        if oldest is None:
            return 0.0
        try:
            envelope = read(oldest, INGEST_QUEUE, lambda *_: "").arguments[0]
            return time.time() - float(json.loads(envelope["payload"])["sent_at"])
        except (ValueError, TypeError, LookupError):
            return 0.0  # a task of the server itself


def _secret(key: bytes, node: str) -> bytes:
    return shared_key(key, node).secret


def main(url: str, nodes: str, step_s: str) -> None:
    """Run until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    fleet = Fleet(url, os.environ["PARLAB_NODE_KEY"].encode(), int(nodes), int(step_s))
    while True:
        began = time.monotonic()
        fleet.turn()
        time.sleep(max(0.0, began + TURN_S - time.monotonic()))


if __name__ == "__main__":
    main(*sys.argv[1:])
