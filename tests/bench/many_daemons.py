"""Daemons and supervisors of many nodes in one process: they speak the protocol and start ranks that sleep and print.

`python -m tests.bench.many_daemons URL COUNT STEPS SLEEP_S`, with PARLAB_NODE_KEY in the environment.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

from kombu import Connection, Consumer, Queue

from runners.supervisor.shipping import GATHER_S
from runners.wire.broker import Broker
from runners.wire.protocol import (
    APPLY_BATCH_TASK,
    CONTROL_QUEUE,
    GO_TASK,
    HEARTBEAT_S,
    HEARTBEAT_TASK,
    INGEST_QUEUE,
    START_TASK,
    Batch,
    Go,
    Heartbeat,
    Rendezvous,
    Report,
    RunSpec,
    node_queue,
    verify,
)
from tests.bench.simulated_daemons import heartbeat_of
from tests.signed import sealed_batch, sealed_heartbeat

POOL, RANKS = "bench-many", 8
# Each rank of a node is a process of its own, which sleeps and prints its steps.
RANK = """
for local in 0 1 2 3 4 5 6 7; do (
  rank=$((NODE * 8 + local)); step=1
  while [ $step -le STEPS ]; do
    sleep SLEEP
    printf '{"parlab":1,"t":%d,"rank":%d,"event":"step","step":%d,"step_time_s":SLEEP.%d}\\n' \\
      $((BEGAN + step * SLEEP)) $rank $step $((rank % 10))
    echo "rank $rank has slept $step times"
    step=$((step + 1))
  done
) & done; wait
"""


class Member:
    """A node: what its daemon and supervisor know."""

    def __init__(self, number: int) -> None:
        self.name = f"many-{number:03}"
        self.spec: RunSpec | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.output = b""
        self.waiting_since: float | None = None
        self.sent = 0

    def heartbeat(self) -> Heartbeat:
        """Return what a daemon sends every two seconds."""
        return heartbeat_of(self.name, POOL, self.spec)

    def batch(self, *reports: Report) -> Batch:
        """Return what has been printed, with reports after it."""
        assert self.spec is not None
        size = len(self.output) + len(reports)
        fields = {"run": self.spec.run, "attempt": self.spec.attempt, "node": self.name}
        batch = Batch(
            **fields,
            node_rank=self.spec.node_rank,
            sequence=self.sent,
            next_sequence=self.sent + size,
            output=self.output,
            reports=list(reports),
        )
        self.sent, self.output, self.waiting_since = self.sent + size, b"", None
        return batch


class Fleet:
    """All nodes."""

    def __init__(self, url: str, key: bytes, count: int, steps: int, sleep_s: float) -> None:
        self._key = key
        self.members = {f"many-{number:03}": Member(number) for number in range(count)}
        self._broker = Broker(url, "bench")
        self._connection = Connection(url)
        self._pipes = selectors.DefaultSelector()
        self._script = RANK.replace("STEPS", str(steps)).replace("SLEEP", f"{sleep_s:g}")
        self._beaten_at = 0.0
        queues = [Queue(node_queue(name)) for name in self.members]
        self._orders = Consumer(self._connection, queues, callbacks=[self._carry_out], accept=["json"])
        self._orders.consume()

    def turn(self) -> None:
        """Send heartbeats when they are due, carry out orders, and ship what the ranks have printed."""
        if time.monotonic() - self._beaten_at > HEARTBEAT_S:
            self._beaten_at = time.monotonic()
            for member in self.members.values():
                envelope = sealed_heartbeat(member.heartbeat(), self._key)
                self._broker.app.send_task(HEARTBEAT_TASK, args=[envelope], queue=CONTROL_QUEUE)
        self._take_orders()
        self._ship()

    def close(self) -> None:
        """End all ranks."""
        for member in self.members.values():
            if member.process is not None and member.process.poll() is None:
                os.killpg(member.process.pid, 9)
                member.process.wait()
        self._pipes.close()
        self._connection.release()

    def _take_orders(self) -> None:
        with contextlib.suppress(TimeoutError):
            while True:
                self._connection.drain_events(timeout=0.02)

    def _carry_out(self, body: Any, message: Any) -> None:
        message.ack()
        kinds: dict[str, Any] = {START_TASK: RunSpec, GO_TASK: Go}
        kind = kinds.get(message.headers["task"])
        if kind is None:
            return  # a position that was stored
        name = message.delivery_info["routing_key"].removeprefix("node.")
        order, member = verify(body[0][0], self._key, kind, node=name), self.members[name]
        if isinstance(order, RunSpec) and member.spec is None:
            member.spec = order
            meeting = Rendezvous(address="127.0.0.1", port=0 if order.node_rank else 29_500)
            self._send(member, Report(state="prepared", at=time.time(), rendezvous=meeting))
        elif isinstance(order, Go) and member.process is None:
            self._start(member, order.node_rank)
            self._send(member, Report(state="running", at=time.time(), command=["sleep"]))

    def _start(self, member: Member, node_rank: int) -> None:
        member.process = subprocess.Popen(
            ["sh", "-c", self._script],
            stdout=subprocess.PIPE,
            env={**os.environ, "NODE": str(node_rank), "BEGAN": str(int(time.time()))},
            process_group=0,
        )
        assert member.process.stdout is not None
        os.set_blocking(member.process.stdout.fileno(), False)
        self._pipes.register(member.process.stdout, selectors.EVENT_READ, member)

    def _ship(self) -> None:
        now = time.monotonic()
        for key, _ in self._pipes.select(0):
            member: Member = key.data
            data = os.read(key.fd, 1 << 16)
            member.output += data
            member.waiting_since = member.waiting_since or now
            if not data:
                self._pipes.unregister(key.fileobj)
                self._send(member, Report(state="finished", at=time.time(), exit_code=0))
        for member in self.members.values():
            gathers_until = (member.waiting_since or now) + GATHER_S
            if gathers_until <= now and member.output.endswith(b"\n"):
                self._send(member)

    def _send(self, member: Member, *reports: Report) -> None:
        envelope = sealed_batch(member.batch(*reports), self._key)
        self._broker.app.send_task(APPLY_BATCH_TASK, args=[envelope], queue=INGEST_QUEUE)


def main(url: str, count: str, steps: str, sleep_s: str) -> None:
    """Run until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    fleet = Fleet(url, os.environ["PARLAB_NODE_KEY"].encode(), int(count), int(steps), float(sleep_s))
    try:
        while True:
            fleet.turn()
    finally:
        fleet.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
