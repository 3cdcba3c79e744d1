"""In a pod: `python -m runners.node.kubernetes.member RUN_DIR` supervises this node's part of a run.

This process is the first one of the pod. It starts the supervisor and, where Redis is reached, the shipping, passes
signals on, collects what others leave, and ends what is left when the supervisor has ended. Without a shared volume it
then holds the pod until the server has stored everything, for a limited time.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from parlab.client.json_log import start_logging
from runners.node.jobs import member
from runners.node.jobs.member import Here, JobSupervisor
from runners.node.jobs.state import JobDir, JobStateDir
from runners.node.keeper import Keeper, Limits
from runners.node.kubernetes import posting
from runners.node.kubernetes.event_log import EventLog
from runners.node.kubernetes.order_secret import FILE, PLACE, WORD_FILE, WORD_PLACE, PodOrder, read_order, write_run
from runners.node.kubernetes.pod_end import write_end
from runners.node.kubernetes.pod_word import Listener
from runners.node.kubernetes.posting import post_rest
from runners.node.kubernetes.words import NO_STATE_DIRECTORY, STARTED_BEFORE
from runners.node.launch import launch
from runners.node.launch.share import LOOPBACK
from runners.node.rundir import RunDir, directory_name
from runners.supervisor import processes

LOOK_S = 0.2
"""Seconds between two looks for a new directory."""
RANK_VARIABLES = ("PARLAB_POD_RANK", "JOB_COMPLETION_INDEX")
EVENTS_S = 1.0
"""Seconds between two looks at the events of the pod."""
LEFT_S = 5.0
"""Time for what a supervisor leaves to end after SIGKILL."""
KILLED = 137

log = logging.getLogger(__name__)


class PodSupervisor(JobSupervisor):
    """A supervisor in a pod, which inserts the events of its pod into the output."""

    def __init__(self, run: RunDir, shipping: int | None = None) -> None:
        super().__init__(run, shipping)
        self._events = EventLog(run)
        self._events_at = float("-inf")
        self._listener: Listener | None = None

    def _turn(self) -> None:
        super()._turn()
        if time.monotonic() - self._events_at > EVENTS_S:
            self._insert_events()

    def _look_for_orders(self) -> None:
        if self._listener is not None:
            self._listener.look()
        super()._look_for_orders()

    def _report_end(self) -> None:
        self._insert_events()
        super()._report_end()

    def _insert_events(self) -> None:
        self._events_at = time.monotonic()
        if self.order is None and not JobDir(self.run_dir.path).is_alive:
            self._on_signal()  # the controller has given up this node, which was away
        if not self.recorder.is_blocked and (lines := self._events.take()):
            self.recorder.insert(lines)


class ApartSupervisor(PodSupervisor):
    """A supervisor in a pod that shares no volume with its controller."""

    def __init__(self, run: RunDir, shipping: int | None = None) -> None:
        super().__init__(run, shipping)
        state = JobStateDir(run.path.parent.parent)
        keeper = Keeper(state, hardware={}, limits=Limits(), command=launch.command)
        self._listener = Listener(JobDir(run.path), WORD_PLACE / WORD_FILE, keeper.go)


def here(environment: Mapping[str, str], state: JobStateDir) -> Here:
    """Describe this pod from its environment."""
    return _described(environment, *member.shipped_by(state))


def apart(environment: Mapping[str, str], _: JobStateDir) -> Here:
    """Describe a pod that shares no volume with its controller."""
    return _described(environment, "", "pod, over HTTP")


def _described(environment: Mapping[str, str], why_not: str, shipped_by: str) -> Here:
    node = environment.get("NODE_NAME") or socket.gethostname()
    pod = {
        "pod": environment.get("POD_NAME", ""),
        "namespace": environment.get("POD_NAMESPACE", ""),
        "node": node,
        "image": environment.get("PARLAB_POD_IMAGE", ""),
        "shipped_by": shipped_by,
    }
    return Here("kubernetes", pod, environment.get("POD_IP") or LOOPBACK, node, why_not)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m runners.node.kubernetes.member", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="directory of node_rank 0 of the run, which the controller prepared")
    first = RunDir(parser.parse_args(arguments).run_dir)
    start_logging()
    node_rank = int(next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0"))
    if (PLACE / FILE).exists():
        order = read_order()
        return _Init(write_run(order, first, node_rank).path, order).run()
    path = first.path.with_name(directory_name(first.run, first.attempt, node_rank))
    if not member.is_visible(path / "launch.json", every_s=LOOK_S):
        log.error("pod %s does not see %s", os.environ.get("POD_NAME") or socket.gethostname(), path)
        return NO_STATE_DIRECTORY
    return _Init(path).run()


class _Init:
    """The first process of a pod, which has one child of its own: the supervisor."""

    def __init__(self, path: Path, order: PodOrder | None = None) -> None:
        """Without a shared volume there is an order."""
        self._path, self._order = path, order
        self._supervisor = 0
        self._is_told_to_stop = False

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        processes.adopt_orphans()
        self._supervisor = os.fork()
        if not self._supervisor:
            os._exit(_supervised(self._path, is_apart=self._order is not None))
        if self._is_told_to_stop:  # in the moment before the fork
            self._pass_on(signal.SIGTERM)
        status = self._wait_for_supervisor()
        processes.kill_all(processes.descendants, within_s=LEFT_S)
        if self._order is not None:
            run = JobDir(self._path)
            left = post_rest(run, self._order.server_of(run), self._order.rest_s)
            write_end(run, left)
        return status

    def _on_signal(self, number: int, *_: object) -> None:
        self._is_told_to_stop = True
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        if self._supervisor:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._supervisor, number)

    def _wait_for_supervisor(self) -> int:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self._supervisor:
                code = os.waitstatus_to_exitcode(status)
                return KILLED if code < 0 else code


def _supervised(path: Path, *, is_apart: bool) -> int:
    """Supervise, in the child; return its exit code."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: JobDir(path).stop())  # until the supervisor has its own
        if is_apart:
            code = member.supervise_part(path, apart, ApartSupervisor, posting.MODULE)
        else:
            code = member.supervise_part(path, here, PodSupervisor)
        return STARTED_BEFORE if code is None else code
    except Exception:
        log.exception("the supervisor failed")
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
