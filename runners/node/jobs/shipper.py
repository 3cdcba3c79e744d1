"""Ships the output of one run from the node that it is on, beside the supervisor and independent of it."""

from __future__ import annotations

import argparse
import logging
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from parlab.client.json_log import start_logging
from runners.node.jobs.reach import FLUSH_S
from runners.node.jobs.state import JobDir
from runners.supervisor.shipping import GATHER_S, POLL_S, BrokerAway, Outgoing, Shipment

GIVE_UP_S = 30.0
"""A node that does not reach Redis for this long leaves the shipping to the login node for good."""
ANSWER_S = 0.2
"""Seconds between two looks for answers."""

log = logging.getLogger(__name__)


class Road(Protocol):
    """The way to the server. All may raise BrokerAway."""

    def send_batches(self, batches: Sequence[Outgoing]) -> None:
        """Send batches in this order."""

    def answer(self, run: int, attempt: int, node_rank: int) -> str | None:
        """Return the last answer, which begins with a position; None if there is none."""

    def queue_age_s(self, *, is_backlog: bool = False) -> float:
        """Return the age of the oldest message that waits for the server (s)."""

    def backlog_room(self) -> int:
        """Return how many batches the backlog takes now."""


class NodeShipper:
    """Ships one run until it has ended, or the server is away."""

    def __init__(
        self, run: JobDir, road: Road, node: str, *, give_up_s: float = GIVE_UP_S, gather_s: float = GATHER_S
    ) -> None:
        self._run = run
        self._road = road
        self._give_up_s = give_up_s
        self._shipment = Shipment(run, node, is_polled=True, gather_s=gather_s)
        self._answer: str | None = None
        self._answered_at = 0.0
        self._away_since: float | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the server has stored everything that was written so far."""
        return self._shipment.is_stored

    @property
    def is_reached(self) -> bool:
        """Whether the server took the last batch."""
        return self._away_since is None

    def ship(self, supervisor: int) -> None:
        """Ship until the supervisor shuts its end of a connection and all is stored."""
        deadline = float("inf")
        while (now := time.monotonic()) < deadline:
            if deadline == float("inf") and select.select([supervisor], [], [], 0)[0]:
                deadline = now + FLUSH_S
            try:
                self.turn(now)
            except BrokerAway as error:
                if self._is_away_for_good(now, str(error)):
                    return
            if deadline < float("inf") and self._shipment.is_stored:
                return
            time.sleep(POLL_S)

    def turn(self, now: float) -> None:
        """Process the answer and send batches; raises BrokerAway."""
        try:
            self._turn(now)
        except BrokerAway:
            self._away_since = self._away_since or now
            raise

    def _turn(self, now: float) -> None:
        if now - self._answered_at >= ANSWER_S:
            self._take_answer(now)
            self._answered_at = now
        while not self._run.is_rejected and not (self._shipment.is_behind and not self._road.backlog_room()):
            batch = self._shipment.next_batch(now, queue_age_s=self._road.queue_age_s)
            if batch is None:
                break
            self._road.send_batches([Outgoing(batch.to_wire(), self._shipment.is_behind)])
            self._shipment.was_sent(batch, now)
        if self._away_since is not None:
            self._away_since = None
            self._shipment.start_again()

    def _take_answer(self, now: float) -> None:
        answer = self._road.answer(self._run.run, self._run.attempt, self._run.node_rank)
        if answer is None or answer == self._answer:
            return
        self._answer = answer
        position = int(answer.partition(" ")[0])
        if position < 0:
            self._run.reject()
        else:
            self._shipment.was_stored(position, now)

    def _is_away_for_good(self, now: float, reason: str) -> bool:
        if now - (self._away_since or now) < self._give_up_s:
            return False
        log.error("%s: Redis cannot be reached, the login node ships from now on: %s", self._run, reason)
        return True


def ship_beside_supervisor(
    arguments: Sequence[str] | None, module: str, described: str, shipper: Callable[[JobDir], NodeShipper | None]
) -> int:
    """Run a module that ships one run from the command line, until its standard input is closed."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=described)
    parser.add_argument("run_dir", type=Path, help="directory of the run; standard input leads to its supervisor")
    run = JobDir(parser.parse_args(arguments).run_dir)
    start_logging()
    # The system signals all processes of a job; this one ends with its supervisor.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        if (made := shipper(run)) is not None:
            run.take_over_shipping(socket.gethostname())
            made.ship(0)
    finally:
        run.give_back_shipping()
    return 0
