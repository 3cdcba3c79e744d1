"""Daemons of a thousand nodes in one process: heartbeats, orders and batches as real ones, but ranks that only print.

`python -m tests.bench.simulated_daemons URL COUNT STEP_S`, with PARLAB_NODE_KEY in the environment. Each run prints a
step with ten metrics every STEP_S seconds, `train.iterations` times, and ends.
"""

from __future__ import annotations

import heapq
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import redis

from runners.guard import message, read
from runners.protocol import (
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
from runners.shipping import RESEND_S
from runners.trust import shared_key
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
class Held:
    """The attempt that a node holds, and what of its spool is not acknowledged."""

    spec: RunSpec
    steps: int
    step: int = 0
    is_started: bool = False
    tail: int = 0
    sent: list[tuple[Batch, float]] = field(default_factory=list)


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

    def __init__(self, url: str, key: bytes, nodes: int, step_s: float) -> None:
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
        """Carry out orders, send what is due, and send again what was not acknowledged."""
        taken: Any = self._redis.eval(_TAKE, len(self._queues), *self._queues)
        for place, raw in zip(taken[::2], taken[1::2], strict=True):
            self._carry_out(self._daemons[place - 1], raw)
        now = time.monotonic()
        while self._due[0][0] <= now:
            at, _, is_heartbeat, daemon = heapq.heappop(self._due)
            if is_heartbeat:
                self._later(at + HEARTBEAT_S, daemon, is_heartbeat=True)
                heartbeat = heartbeat_of(daemon.name, POOL, daemon.held.spec if daemon.held else None)
                self._send(CONTROL_QUEUE, HEARTBEAT_TASK, sealed_heartbeat(heartbeat, self._key))
            elif daemon.held is not None:
                self._step(daemon, daemon.held, at)
        for daemon in self._daemons:
            self._resend(daemon, now)
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
            daemon.held = Held(order, steps=order.config["train"]["iterations"])
            meeting = Rendezvous(address="127.0.0.1", port=29_500)
            self._ship(daemon, daemon.held, b"", Report(state="prepared", at=time.time(), rendezvous=meeting))
        if held is None or (order.run, order.attempt) != (held.spec.run, held.spec.attempt):
            return
        if isinstance(order, Go) and not held.is_started:
            held.is_started = True
            self._ship(daemon, held, b"", Report(state="running", at=time.time(), command=["sleep"]))
            self._later(time.monotonic() + self._step_s, daemon, is_heartbeat=False)
        elif isinstance(order, Cancel):
            self._ship(daemon, held, b"", Report(state="cancelled", at=time.time(), reason=order.reason))
        elif isinstance(order, Acknowledge):
            held.sent = [(batch, at) for batch, at in held.sent if batch.next_sequence > order.position >= 0]
            if not held.sent and held.step >= held.steps:
                daemon.held = None

    def _step(self, daemon: Daemon, held: Held, at: float) -> None:
        held.step += 1
        values = ",".join(f'"metric_{n}":{held.spec.run + held.step / (n + 7):.6f}' for n in range(METRICS))
        line = f'{{"parlab":1,"t":{time.time():.3f},"rank":0,"event":"step","step":{held.step},{values}}}\n'
        if held.step < held.steps:
            self._ship(daemon, held, line.encode())
            self._later(at + self._step_s, daemon, is_heartbeat=False)
        else:
            self._ship(daemon, held, line.encode(), Report(state="finished", at=time.time(), exit_code=0))

    def _ship(self, daemon: Daemon, held: Held, output: bytes, *reports: Report) -> None:
        begin, held.tail = held.tail, held.tail + len(output) + len(reports)
        batch = Batch(
            run=held.spec.run,
            attempt=held.spec.attempt,
            node=daemon.name,
            node_rank=held.spec.node_rank,
            sequence=begin,
            next_sequence=held.tail,
            output=output,
            reports=list(reports),
        )
        held.sent.append((batch, time.monotonic()))
        self._send(INGEST_QUEUE, APPLY_BATCH_TASK, sealed_batch(batch, self._key))

    def _resend(self, daemon: Daemon, now: float) -> None:
        held = daemon.held
        if held is not None and held.sent and now - held.sent[0][1] > RESEND_S:
            batch = held.sent[0][0]
            held.sent[0] = batch, now
            self._send(INGEST_QUEUE, APPLY_BATCH_TASK, sealed_batch(batch, self._key))


def _secret(key: bytes, node: str) -> bytes:
    return shared_key(key, node).secret


def main(url: str, nodes: str, step_s: str) -> None:
    """Run until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    fleet = Fleet(url, os.environ["PARLAB_NODE_KEY"].encode(), int(nodes), float(step_s))
    while True:
        began = time.monotonic()
        fleet.turn()
        time.sleep(max(0.0, began + TURN_S - time.monotonic()))


if __name__ == "__main__":
    main(*sys.argv[1:])
