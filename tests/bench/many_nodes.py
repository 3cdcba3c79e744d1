"""One run over 128 nodes with 8 ranks each: the server's own code, and the protocol of all nodes in this process.

128 daemons need 15 GB. Here one process answers for all nodes, as their daemons and supervisors would; the 1,024 ranks
are processes that sleep and print.
"""

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from kombu import Connection, Consumer, Queue

from parlab.fleet import services
from parlab.lab import services as lab
from parlab.lab.models import Attempt, Node
from runners.broker import Broker
from runners.protocol import (
    GO_TASK,
    HEARTBEAT_S,
    START_TASK,
    Abilities,
    Batch,
    Go,
    Heartbeat,
    HeldRun,
    Rendezvous,
    Report,
    RunSpec,
    RunState,
    node_queue,
    verify,
)
from tests.bench.nodes import broker, page_s
from tests.bench.result import Result, Scale
from tests.fleet.workers import Workers
from tests.patience import TRAINING_S

POOL, RANKS, STEPS = "bench-many", 8, 10
SLEEP_S = 5
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
        self.sent = 0

    def heartbeat(self) -> Heartbeat:
        """Return what a daemon sends every two seconds."""
        spec = self.spec
        held = [HeldRun(run=spec.run, attempt=spec.attempt, alive=True, node_rank=spec.node_rank)] if spec else []
        facts: dict[str, Any] = {
            "node": self.name,
            "pool": POOL,
            "sent_at": time.time(),
            "slots": 1,
            "version": "bench",
        }
        able = Abilities(engines=["command"], launchers=["plain"], commands=[["/bin/sleep"]])
        facts["hardware"] = {"hostname": self.name, "gpus": []}
        return Heartbeat(**facts, held=held, abilities=able)

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
        self.sent, self.output = self.sent + size, b""
        return batch


class Fleet:
    """All nodes."""

    def __init__(self, url: str, count: int, steps: int, sleep_s: float) -> None:
        self.members = {f"many-{number:03}": Member(number) for number in range(count)}
        self._broker = Broker(url, "bench")
        self._connection = Connection(url)
        self._pipes = selectors.DefaultSelector()
        self._script = RANK.replace("STEPS", str(steps)).replace("SLEEP", f"{sleep_s:g}")
        self._beaten_at = 0.0

    def turn(self) -> None:
        """Send heartbeats when they are due, carry out orders, and ship what the ranks have printed."""
        if time.monotonic() - self._beaten_at > HEARTBEAT_S:
            self._beaten_at = time.monotonic()
            for member in self.members.values():
                self._broker.send_heartbeat(member.heartbeat())
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
        queues = [Queue(node_queue(name)) for name in self.members]
        with Consumer(self._connection, queues, callbacks=[self._carry_out], accept=["json"]):
            try:
                while True:
                    self._connection.drain_events(timeout=0.02)
            except TimeoutError:
                return

    def _carry_out(self, body: Any, message: Any) -> None:
        message.ack()
        kinds: dict[str, Any] = {START_TASK: RunSpec, GO_TASK: Go}
        kind = kinds.get(message.headers["task"])
        if kind is None:
            return  # a position that was stored
        name = message.delivery_info["routing_key"].removeprefix("node.")
        order, member = verify(body[0][0], settings.NODE_KEY, kind, node=name), self.members[name]
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
        for key, _ in self._pipes.select(0):
            member: Member = key.data
            data = os.read(key.fd, 1 << 16)
            member.output += data
            if not data:
                self._pipes.unregister(key.fileobj)
                self._send(member, Report(state="finished", at=time.time(), exit_code=0))
            elif member.output.endswith(b"\n"):
                self._send(member)

    def _send(self, member: Member, *reports: Report) -> None:
        self._broker.send_batch(member.batch(*reports).to_wire())


def thousand_ranks_page_s(scale: Scale) -> Result:
    """Measure the page of a run with 1,024 ranks while it runs, and what the server does for its nodes meanwhile."""
    count, steps = (4, 2) if scale.is_quick else (128, STEPS)
    with tempfile.TemporaryDirectory(prefix="parlab-many-") as name, broker(Path(name)) as (url, _):
        fleet, workers = Fleet(url, count, steps, 1 if scale.is_quick else SLEEP_S), TimedWorkers(url)
        try:
            return _measured(fleet, workers, count, scale)
        finally:
            fleet.close()
            workers.connection.release()


class TimedWorkers(Workers):
    """Workers that measure how long messages take."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.heartbeats_s: list[float] = []
        self.batches_s: list[float] = []

    def _take(self, body: Any, message: Any) -> None:
        began = time.perf_counter()
        super()._take(body, message)
        kept = self.heartbeats_s if "heartbeat" in message.headers["task"] else self.batches_s
        kept.append(time.perf_counter() - began)


def _measured(fleet: Fleet, workers: TimedWorkers, count: int, scale: Scale) -> Result:
    def until(condition: Callable[[], bool], what: str) -> None:
        def turned() -> bool:
            fleet.turn()
            return condition()

        workers.until(turned, what, TRAINING_S)

    until(lambda: Node.objects.online().filter(pool=POOL).count() == count, "all nodes are online")
    attempt = _launched(count)
    began = time.perf_counter()
    services.dispatch()
    dispatch_s = time.perf_counter() - began
    until(lambda: _state(attempt) is RunState.RUNNING, "all nodes run")
    start_s = time.perf_counter() - began
    until(lambda: Attempt.objects.filter(pk=attempt.pk, last_step__gte=1).exists(), "a step is stored")
    pages = [page_s(attempt) for _ in range(scale.repeats(3))]
    until(lambda: _state(attempt).is_final, "the run ends")
    if attempt.state != RunState.FINISHED:
        raise RuntimeError(f"the run over {count} nodes has ended as {attempt.state}: {attempt.reason}")
    pages.append(page_s(attempt))
    against = (
        f"{count * RANKS} ranks on {count} nodes: dispatch {dispatch_s:.2f} s, all running after {start_s:.1f} s,"
        f" heartbeat {1e3 * median(workers.heartbeats_s):.1f} ms, batch {1e3 * median(workers.batches_s):.1f} ms"
    )
    return Result(max(pages), "s", against, 1 / max(pages), len(pages))


def _launched(count: int) -> Attempt:
    """Queue the run; the caller dispatches it."""
    user, _ = User.objects.get_or_create(username="bench", defaults={"is_superuser": True})
    experiment = lab.experiment_create(name="A thousand ranks", owner=user)
    ranks = count * RANKS
    data = {
        "train": {"global_batch_size": ranks, "iterations": STEPS},
        "parallel": {"engine": "command", "data_parallel_size": ranks},
        "command": {"argv": ["/bin/sleep", "60"]},
        "launcher": {"kind": "plain"},
        "cluster": {"pool": POOL, "nodes": count, "gpus_per_node": RANKS, "device": "cpu"},
    }
    config = lab.config_save(experiment=experiment, data=data, sweep={}, user=user)
    (run,) = lab.config_launch(config=config, user=user).created
    return run.current_attempt()


def _state(attempt: Attempt) -> RunState:
    attempt.refresh_from_db()
    return RunState(attempt.state)


BENCHMARKS: dict[str, Callable[[Scale], Result]] = {"thousand_ranks_page_s": thousand_ranks_page_s}
