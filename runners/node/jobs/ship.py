"""On a compute node: `python -m runners.node.jobs.ship RUN_DIR` ships the output of one run from here.

It runs where the node reaches the Redis of its login node, beside the supervisor and independent of it, until its
standard input is closed. The login node takes over when it ends for any reason. If both ship for a moment, nothing is
doubled: the server stores a batch only if it continues what is stored.
"""

from __future__ import annotations

import argparse
import logging
import select
import signal
import sys
import time
from pathlib import Path

from parlab.client.json_log import start_logging
from runners.node.jobs.reach import FLUSH_S
from runners.node.jobs.state import BrokerKeys, JobDir, JobStateDir
from runners.supervisor.shipping import POLL_S, BrokerAway, Outgoing, Shipment
from runners.wire.broker import Broker

GIVE_UP_S = 30.0
"""A node that does not reach Redis for this long leaves the shipping to the login node for good."""
ANSWER_S = 0.2
"""Seconds between two looks for answers."""

log = logging.getLogger(__name__)


class NodeShipper:
    """Ships one run until it has ended, or Redis is away."""

    def __init__(self, run: JobDir, broker: Broker, node: str) -> None:
        self._run = run
        self._broker = broker
        self._shipment = Shipment(run, node, is_polled=True)
        self._answer: str | None = None
        self._answered_at = 0.0
        self._away_since: float | None = None

    def ship(self, supervisor: int) -> None:
        """Ship until the other end of a pipe is closed and all is stored."""
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
        if now - self._answered_at >= ANSWER_S:
            self._take_answer(now)
            self._answered_at = now
        while not self._run.is_rejected and not (self._shipment.is_behind and not self._broker.backlog_room()):
            batch = self._shipment.next_batch(now, queue_age_s=self._broker.queue_age_s)
            if batch is None:
                break
            self._broker.send_batches([Outgoing(batch.to_wire(), self._shipment.is_behind)])
            self._shipment.was_sent(batch, now)
        if self._away_since is not None:
            self._away_since = None
            self._shipment.start_again()

    def _take_answer(self, now: float) -> None:
        answer = self._broker.answer(self._run.run, self._run.attempt, self._run.node_rank)
        if answer is None or answer == self._answer:
            return
        self._answer = answer
        position = int(answer.partition(" ")[0])
        if position < 0:
            self._run.reject()
        else:
            self._shipment.was_stored(position, now)

    def _is_away_for_good(self, now: float, reason: str) -> bool:
        self._away_since = self._away_since or now
        if now - self._away_since < GIVE_UP_S:
            return False
        log.error("%s: Redis cannot be reached, the login node ships from now on: %s", self._run, reason)
        return True


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m runners.node.jobs.ship", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="directory of the run; standard input is a pipe of its supervisor")
    run = JobDir(parser.parse_args(arguments).run_dir)
    start_logging()
    # The system signals all processes of a job; this one ends with its supervisor.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    state = JobStateDir(run.path.parent.parent)
    settings = state.read_broker()
    try:
        if settings is not None:
            broker = Broker(settings["url"], settings["node"], BrokerKeys(state))
            NodeShipper(run, broker, settings["node"]).ship(sys.stdin.fileno())
    finally:
        run.give_back_shipping()
    return 0


if __name__ == "__main__":
    sys.exit(main())
