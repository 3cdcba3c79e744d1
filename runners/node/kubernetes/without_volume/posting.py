"""In a pod without a volume: `python -m runners.node.kubernetes.without_volume.posting RUN_DIR` posts its spool.

Batches are those of every node, signed with a key that is good for this attempt alone, in requests of HTTP in place of
Redis. The server answers each with the position that is stored.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from parlab.client.http import Connection, Refused, Unreachable
from runners.node.jobs.reach import Shipping
from runners.node.jobs.shipper import NodeShipper, ship_beside_supervisor
from runners.node.jobs.state import JobDir
from runners.node.kubernetes.without_volume.order import Server, read_order
from runners.supervisor import spool
from runners.supervisor.shipping import BrokerAway, Outgoing
from runners.wire.protocol import Acknowledge, Batch, PodNote, Posted, Report, verify
from runners.wire.trust import Untrusted, seal

HTTP = Shipping("runners.node.kubernetes.without_volume.posting", is_at_once=True)
REQUEST_S = 20.0
"""Time for one request: an end of a run with a long log takes the server some seconds."""
GATHER_S = 1.0
"""Time for which output is gathered: each request costs the server more than a message in Redis."""
AGAIN_S = (0.5, 1.0, 2.0, 4.0)
"""Pauses before the next try while the server is away: thousands of pods may wait for it."""
SAY_S = 10.0
"""Seconds between two lines that say for what a pod waits."""

log = logging.getLogger(__name__)


class HttpServer:
    """The server behind HTTP, with the methods of a broker that a shipper needs."""

    def __init__(self, run: JobDir, server: Server) -> None:
        self._run, self._server = run, server
        self._connection = Connection(server.url, "", timeout_s=REQUEST_S)
        self._path = f"/api/spools/{run.run}/{run.attempt}/"
        self._position: int | None = None
        self._answers = self._failures = 0
        self._rest_until = 0.0

    def send_batches(self, batches: Sequence[Outgoing]) -> None:
        """Post batches; raises BrokerAway."""
        for batch in batches:
            is_last = any(Report.model_validate(report).is_final for report in batch.wire["reports"])
            self._post(batch.wire, batch.wire["next_sequence"] if is_last else None)

    def note(self, end: int | None) -> None:
        """Post what the controller must know, without a batch. Raises BrokerAway."""
        names: dict[str, Any] = {"run": self._run.run, "attempt": self._run.attempt, "node_rank": self._run.node_rank}
        at = self._run.acknowledged()
        batch = Batch(**names, node=self._server.node, sequence=at, next_sequence=at, is_polled=True)
        self._post(batch.to_wire(), end)

    def _post(self, wire: dict[str, Any], end: int | None) -> None:
        """Post a batch with what the controller must know, and keep the answer."""
        if time.monotonic() < self._rest_until:
            raise BrokerAway(f"{self._server.url} did not answer a moment ago")
        content = Posted(batch=wire, note=note_of(self._run, end)).model_dump(mode="json")
        # They may wait for the server for hours; their position in the spool is their order.
        envelope = seal("posted", self._server.node, content, self._server.key, lifetime_s=None)
        try:
            answer = self._connection.json("POST", self._path, envelope)
            stored = verify(answer, lambda *_: self._server.key.secret, Acknowledge, node=self._server.node)
        except (Unreachable, Refused, Untrusted) as error:
            self._rest_until = time.monotonic() + AGAIN_S[min(self._failures, len(AGAIN_S) - 1)]
            self._failures += 1
            raise BrokerAway(str(error)) from error
        self._failures = 0
        if (stored.run, stored.attempt, stored.node_rank) == (wire["run"], wire["attempt"], wire["node_rank"]):
            self._position, self._answers = stored.position, self._answers + 1

    def answer(self, *_: int) -> str | None:
        return None if self._position is None else f"{self._position} {self._answers}"

    def queue_age_s(self, *, is_backlog: bool = False) -> float:
        """Return 0: nothing waits between pod and server."""
        return 0.0

    def backlog_room(self) -> int:
        """Return that the server takes the next batch: it has answered the last one."""
        return 1


def note_of(run: JobDir, end: int | None) -> PodNote:
    """Return what a controller must know that does not see the directory of the run."""
    return PodNote(started_at=run.started_at(), was_stopped=run.was_stopped, has_checkpoint=run.has_checkpoint, end=end)


def end_of(run: JobDir) -> int | None:
    """Return the position after the final report of a run whose supervisor has ended; None if it has left none."""
    return None if spool.final_report(run.spool) is None else spool.tail(run.spool)


def post_rest(run: JobDir, server: Server, within_s: float) -> int:
    """Post what the server has not stored yet, and wait for it; return the bytes that it did not take in time."""
    http = HttpServer(run, server)
    shipper = _shipper_on(http, run, server)
    deadline, said_at = time.monotonic() + within_s, time.monotonic()
    while (now := time.monotonic()) < deadline and not run.is_rejected:
        try:
            shipper.turn(now)
            if shipper.is_stored:
                http.note(end_of(run))
                return 0
        except BrokerAway as error:
            if now - said_at > SAY_S:
                said_at = now
                log.warning("%s: waiting %.0f s more for the server: %s", run, deadline - now, error)
        time.sleep(0.05 if shipper.is_reached else 0.5)
    return max(0, spool.tail(run.spool) - run.acknowledged())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    return ship_beside_supervisor(arguments, HTTP.module, __doc__ or "", _shipper)


def _shipper(run: JobDir) -> NodeShipper:
    server = read_order().server_of(run)
    return _shipper_on(HttpServer(run, server), run, server)


def _shipper_on(http: HttpServer, run: JobDir, server: Server) -> NodeShipper:
    return NodeShipper(run, http, server.node, give_up_s=float("inf"), gather_s=GATHER_S)


if __name__ == "__main__":
    sys.exit(main())
