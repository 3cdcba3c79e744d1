"""In a pod: `python -m runners.node.kubernetes.member RUN_DIR` supervises this node's part of a run.

This process is the first one of the pod. It starts the supervisor and, where Redis is reached, the shipping, passes
signals on, collects what others leave, and ends what is left when the supervisor has ended.
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
from collections.abc import Mapping, Sequence
from pathlib import Path

from parlab.client.json_log import start_logging
from runners.node.jobs import member
from runners.node.jobs.member import Here, JobSupervisor
from runners.node.jobs.state import JobDir, JobStateDir
from runners.node.kubernetes.event_log import EventLog
from runners.node.kubernetes.words import NO_STATE_DIRECTORY, STARTED_BEFORE
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

    def __init__(self, run: RunDir, shipping: socket.socket | None = None) -> None:
        super().__init__(run, shipping)
        self._events = EventLog(run)
        self._events_at = float("-inf")

    def _turn(self) -> None:
        super()._turn()
        if time.monotonic() - self._events_at > EVENTS_S:
            self._insert_events()

    def _report_end(self) -> None:
        self._insert_events()
        super()._report_end()

    def _insert_events(self) -> None:
        self._events_at = time.monotonic()
        if self.order is None and not JobDir(self.run_dir.path).is_alive:
            self._on_signal()  # the controller has given up this node, which was away
        if not self.recorder.is_blocked and (lines := self._events.take()):
            self.recorder.insert(lines)


def here(environment: Mapping[str, str], state: JobStateDir) -> Here:
    """Describe this pod from its environment."""
    return described(environment, *member.shipped_by(state))


def described(environment: Mapping[str, str], why_not: str, shipped_by: str) -> Here:
    """Describe this pod: why it cannot ship, empty if it can, and who ships in words."""
    node = environment.get("NODE_NAME") or socket.gethostname()
    pod = {
        "pod": environment.get("POD_NAME", ""),
        "namespace": environment.get("POD_NAMESPACE", ""),
        "node": node,
        "image": environment.get("PARLAB_POD_IMAGE", ""),
        "shipped_by": shipped_by,
    }
    return Here("kubernetes", pod, environment.get("POD_IP") or LOOPBACK, node, why_not)


def node_rank() -> int:
    """Return which pod of its attempt this is."""
    return int(next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0"))


def parse(arguments: Sequence[str] | None, about: str) -> RunDir:
    """Read the command line, and begin to log; return the directory of node_rank 0 of the run."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("run_dir", type=Path, help="directory of node_rank 0 of the run")
    run = RunDir(parser.parse_args(arguments).run_dir)
    start_logging()
    return run


class FirstProcess:
    """The first process of a pod, which has one child of its own: the supervisor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._supervisor = 0
        self._is_told_to_stop = False

    def _supervise(self) -> int | None:
        """Supervise, in the child; return the exit code, or None if the run had a supervisor before."""
        return member.supervise_part(self._path, here, PodSupervisor)

    def _leave(self, status: int) -> int:
        """Do what is due when the supervisor and what it started have ended; return the exit code of the pod."""
        return status

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        processes.adopt_orphans()
        self._supervisor = os.fork()
        if not self._supervisor:
            os._exit(self._supervised())
        if self._is_told_to_stop:  # in the moment before the fork
            self._pass_on(signal.SIGTERM)
        status = self._wait_for_supervisor()
        processes.kill_all(processes.descendants, within_s=LEFT_S)
        return self._leave(status)

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

    def _supervised(self) -> int:
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: JobDir(self._path).stop())  # until the supervisor has its own
            code = self._supervise()
            return STARTED_BEFORE if code is None else code
        except Exception:
            log.exception("the supervisor failed")
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    first = parse(arguments, __doc__ or "")
    path = first.path.with_name(directory_name(first.run, first.attempt, node_rank()))
    if not member.is_visible(path / "launch.json", every_s=LOOK_S):
        log.error("pod %s does not see %s", os.environ.get("POD_NAME") or socket.gethostname(), path)
        return NO_STATE_DIRECTORY
    return FirstProcess(path).run()


if __name__ == "__main__":
    sys.exit(main())
