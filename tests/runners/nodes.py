"""Several nodes and a server that speaks the protocol of runs over several nodes, without the real server."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from runners.wire.broker import Broker
from runners.wire.protocol import (
    ACKNOWLEDGE_TASK,
    CANCEL_TASK,
    GO_TASK,
    START_TASK,
    Batch,
    Cancel,
    Go,
    Heartbeat,
    Peer,
    Report,
    RunSpec,
    node_queue,
    sign,
)
from tests.inbox import Inbox
from tests.patience import PATIENCE_S, wait_for
from tests.runners.conftest import KEY, NodeMachine, acknowledgement, answer_in_redis
from tests.runners.namespaces import DEVICE, Network
from tests.signed import content_of

CAUSE_WAIT_S = 4.0
"""As in parlab/ingest/batches/orders.py, which this module does without."""


def node_name(node_rank: int) -> str:
    """Name of the node that has this node_rank in the runs of these tests."""
    return f"n{node_rank}"


class Nodes(Inbox):
    """Nodes that each have a daemon, and what the server does with them: prepare, go, store, acknowledge, cancel."""

    def __init__(self, root: Path, url: str, count: int, network: Network | None = None) -> None:
        """Without a network each node has an address of loopback."""
        super().__init__(url)
        self.url = url
        self.broker = Broker(url, "server")
        self.machines = []
        for node_rank in range(count):
            directory = root / node_name(node_rank)
            directory.mkdir()
            # All addresses of 127.0.0.0/8 are local: each node has one of its own.
            address = "" if network else f"127.0.0.{node_rank + 2}"
            machine = NodeMachine(directory, url, name=node_name(node_rank), address=address)
            machine.prefix = network.prefix(node_rank) if network else []
            machine.options = ("--shape", DEVICE) if network else ()
            machine.environment["TEST_ENGINES"] = "1"
            self.machines.append(machine)
        self.committed: dict[int, int] = defaultdict(int)
        self.output: dict[int, bytes] = defaultdict(bytes)
        self.stamps: dict[int, list[float]] = defaultdict(list)
        self.reports: dict[int, list[Report]] = defaultdict(list)
        self.heartbeats: dict[str, Heartbeat] = {}
        self.run = 1
        self.is_cancelled = False
        self.cancels_peers = True
        self._first_end: tuple[float, str] | None = None

    @property
    def count(self) -> int:
        return len(self.machines)

    def prepare(self, config: dict[str, Any], run: int | None = None) -> None:
        """Send every node its RunSpec; of the same run as before unless another one is named."""
        self.run = run = run or self.run
        for node_rank in range(self.count):
            fields = {"run": run, "attempt": 1, "node": node_name(node_rank), "config": config}
            spec = RunSpec.model_validate({**fields, "node_rank": node_rank, "nodes": self.count})
            self._order(START_TASK, spec)

    def script(self, text: str) -> None:
        """Say what the run does on every node, instead of its engine."""
        for machine in self.machines:
            machine.script(self.run, text)

    def peers(self) -> list[Peer]:
        """Return the members as the nodes have reported them; empty until all are prepared."""
        peers = []
        for node_rank in range(self.count):
            meeting = next((report.rendezvous for report in self.reports[node_rank] if report.rendezvous), None)
            if meeting is None:
                return []
            fields = {"node": node_name(node_rank), "node_rank": node_rank}
            peers.append(Peer(**fields, address=meeting.address, port=meeting.port))
        return peers

    def go(self, peers: list[Peer]) -> None:
        """Tell every node to start."""
        for peer in peers:
            order = Go(run=self.run, attempt=1, node=peer.node, node_rank=peer.node_rank, members=peers)
            self._order(GO_TASK, order)

    def start(self, config: dict[str, Any], run: int | None = None) -> None:
        """Prepare a run on all nodes, and start it."""
        self.prepare(config, run)
        self.go(self.until(self.peers, "all nodes are prepared"))

    def cancel(self, reason: str, *, is_consequence: bool = False) -> None:
        """Cancel the run on all nodes, with is_consequence because one of them has ended."""
        self.is_cancelled = True
        for node_rank in range(self.count):
            fields = {"run": self.run, "attempt": 1, "node": node_name(node_rank), "node_rank": node_rank}
            self._order(CANCEL_TASK, Cancel(**fields, reason=reason, is_consequence=is_consequence))

    def serve(self, seconds: float = 0.05) -> None:
        """Take what the nodes have sent for a while, and end the other members of a run that one has left."""
        super().serve(seconds)
        self._cancel_peers()

    def ends(self, within_s: float = PATIENCE_S) -> list[Report]:
        """Serve until every member has ended; return their final reports by node_rank."""
        self.until(lambda: all(self.end_of(node_rank) for node_rank in range(self.count)), "all members end", within_s)
        return [report for node_rank in range(self.count) if (report := self.end_of(node_rank))]

    def forget(self) -> None:
        """Make room for the next run."""
        for memory in (self.committed, self.output, self.stamps, self.reports):
            memory.clear()
        self.is_cancelled = False
        self._first_end = None

    def end_of(self, node_rank: int) -> Report | None:
        """Return the final report of a member, if it has come."""
        return next((report for report in self.reports[node_rank] if report.is_final), None)

    def says(self, node_rank: int, text: bytes) -> None:
        """Serve until a member has printed a text."""
        self.until(lambda: text in self.output[node_rank], f"node {node_rank} prints {text!r}")

    def ranks(self, node_rank: int, run: int | None = None) -> list[Any]:
        """Return the processes of a run on a node that have a rank."""
        with_rank = []
        for process in self.machines[node_rank].processes(run or self.run):
            with contextlib.suppress(Exception):
                if process.environ().get("LOCAL_RANK"):
                    with_rank.append(process)
        return with_rank

    def close(self) -> list[str]:
        """End everything; return what was left running."""
        self.connection.release()
        return [name for machine in self.machines for name in machine.close()]

    def _order(self, task: str, message: RunSpec | Go | Cancel) -> None:
        self.broker.app.send_task(task, args=[sign(message, KEY)], queue=node_queue(message.node))

    def take_heartbeat(self, content: Any) -> None:
        """Keep the last heartbeat of each node."""
        heartbeat = Heartbeat.model_validate(content_of(content))
        self.heartbeats[heartbeat.node] = heartbeat

    def take_batch(self, content: Any) -> None:
        """Store a batch, and answer with the position."""
        batch = Batch.from_wire(content_of(content))
        if batch.run == self.run and batch.sequence == self.committed[batch.node_rank]:
            self.committed[batch.node_rank] = batch.next_sequence
            self.output[batch.node_rank] += batch.output
            self.stamps[batch.node_rank] += [at for _, at in batch.stamps]
            self.reports[batch.node_rank] += batch.reports
        position = self.committed[batch.node_rank] if batch.run == self.run else batch.next_sequence
        if batch.is_polled:
            answer_in_redis(self.url, batch, position)
        else:
            arguments = [sign(acknowledgement(batch, position), KEY)]
            self.broker.app.send_task(ACKNOWLEDGE_TASK, args=arguments, queue=node_queue(batch.node))

    def _cancel_peers(self) -> None:
        """End the other members once one has ended badly; like the server, wait for the cause of a consequence."""
        if self.is_cancelled or not self.cancels_peers:
            return
        ends = [report for node_rank in range(self.count) if (report := self.end_of(node_rank))]
        bad = [report for report in ends if report.state != "finished"]
        if not bad:
            return
        self._first_end = self._first_end or (time.monotonic(), bad[0].reason)
        since, reason = self._first_end
        cause = next((report.reason for report in bad if not report.is_consequence), None)
        if cause is not None or time.monotonic() - since > CAUSE_WAIT_S:
            self.cancel((cause or reason)[:300], is_consequence=True)


@pytest.fixture(scope="module")
def running_nodes(tmp_path_factory: pytest.TempPathFactory, redis_server: str) -> Iterator[Nodes]:
    """Three nodes with daemons for all tests of a module."""
    redis.Redis.from_url(redis_server).flushall()
    yield from started(Nodes(tmp_path_factory.mktemp("nodes"), redis_server, 3))


@pytest.fixture
def three_nodes(running_nodes: Nodes) -> Iterator[Nodes]:
    """Three nodes with daemons and a new run; what it leaves running fails the test."""
    nodes = running_nodes
    nodes.forget()
    nodes.heartbeats.clear()
    nodes.run += 1
    for machine in nodes.machines:
        if machine.daemons[-1].poll() is not None:  # a test that failed has left it so
            machine.start_daemon()
    yield nodes
    if any(machine.processes(nodes.run) for machine in nodes.machines):
        nodes.cancel("the test has ended")
    left = "no process of the run is left"
    wait_for(lambda: not any(machine.processes(nodes.run) for machine in nodes.machines), left)


@pytest.fixture
def three_networked_nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Three nodes, each in a network namespace of its own."""
    network = Network(tmp_path, 3)
    try:
        try:
            network.open()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces need root and the program ip: {error}")
        yield from started(Nodes(tmp_path, network.url, 3, network))
    finally:
        network.close()


def started(nodes: Nodes) -> Iterator[Nodes]:
    """Start the daemons of nodes; end everything afterwards."""
    for machine in nodes.machines:
        machine.start_daemon()
    yield nodes
    left = nodes.close()
    for machine in nodes.machines:
        print(machine.log.read_text()[-4000:])  # shown when the test fails
    assert not left, f"left running: {left}"
