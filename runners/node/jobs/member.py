"""On a node that a batch system gave: the supervisor of this node's part of a run.

It is the same supervisor as that of a daemon. Two things differ: it describes this node, not that of the daemon; and if
the system stops it, it leaves the final report to the daemon, which asks the system for the reason.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from runners.node.addresses import AddressError, Place, choose
from runners.node.jobs import reach
from runners.node.jobs.state import JobDir, JobStateDir
from runners.node.launch.share import Share
from runners.node.rundir import RunDir, lock
from runners.supervisor.spool import SpoolWriter
from runners.supervisor.supervise import Supervisor, supervise
from runners.telemetry import faults as health
from runners.telemetry import gpus, telemetry
from runners.wire.protocol import Report

VISIBLE_WITHIN_S = 20.0
"""Time after which a new directory must be visible on all nodes; network file systems cache for a while."""
LOOK_S = 0.5
"""Seconds between two looks for a checkpoint of ranks that were told to end."""

log = logging.getLogger(__name__)


class JobSupervisor(Supervisor):
    """A supervisor that the system may stop; its output may be shipped from its node."""

    def __init__(self, run: RunDir, shipping: socket.socket | None = None) -> None:
        """`shipping` is the connection to what ships from here."""
        super().__init__(run)
        self._shipping = shipping
        self._looked_at = 0.0
        self.is_told_to_stop = JobDir(run.path).was_stopped

    def _on_signal(self, *arguments: object) -> None:
        # At once: the system kills a supervisor that takes too long, and this tells it from the first one that died.
        JobDir(self.run_dir.path).stop()
        super()._on_signal(*arguments)

    def _end_processes(self) -> None:
        super()._end_processes()
        now = time.monotonic()
        # Not only at the end: the system kills this process with its ranks when its own grace is over.
        if self.is_told_to_stop and now - self._looked_at > LOOK_S:
            self._looked_at = now
            if self._has_saved():
                JobDir(self.run_dir.path).note_checkpoint()

    def _report_end(self) -> None:
        """Write the final report, unless the system ends the job: why, only the daemon can ask."""
        run = JobDir(self.run_dir.path)
        if self.is_told_to_stop:
            if self.recorder.evidence.has_checkpointed(self.last_exit_code) or self._has_saved():
                run.note_checkpoint()
            self.samples.stop()
            self._remove_container()
            self.recorder.spool.close()
            self._finish_shipping()
        else:
            super()._report_end()
            self._finish_shipping()
            run.end()

    @property
    def last_exit_code(self) -> int:
        """The exit code of the launcher; that of a killed one if it has none."""
        return -signal.SIGKILL if self.exit_code is None else self.exit_code

    def _finish_shipping(self) -> None:
        """Let the last batches be shipped from here, so that the daemon need not send them again."""
        if self._shipping is None:
            return
        self._shipping.shutdown(socket.SHUT_WR)
        select.select([self._shipping], [], [], reach.ENDED_S + reach.FLUSH_S)


class Here(NamedTuple):
    """What a supervisor must know about its node."""

    key: str
    """Name of the system in the environment of the attempt."""
    job: dict[str, Any]
    """What it has there: the job, and the node."""
    address: str
    """An address that the other nodes can reach."""
    node: str
    """Name of the node for the system."""
    why_not: str
    """Why it cannot ship by itself; empty if it can."""


def is_visible(path: Path, within_s: float = VISIBLE_WITHIN_S, every_s: float = 0.5) -> bool:
    """Wait until this node sees a file of the daemon; return whether it does."""
    deadline = time.monotonic() + within_s
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(OSError):
            os.listdir(path.parent.parent)  # makes a network file system look again
        time.sleep(every_s)
    return True


def supervise_part(
    path: Path,
    here: Callable[[Mapping[str, str], JobStateDir], Here],
    supervisor: type[JobSupervisor],
    shipping: reach.Shipping = reach.REDIS,
) -> int | None:
    """Supervise this node's part of a run; return the exit code, or None if it had a supervisor before."""
    run = take(RunDir(path))
    if run is None:
        return None
    node = here(os.environ, JobStateDir(path.parent.parent))
    try:
        describe(run, node)
    except AddressError as error:
        return refuse(run, "failed", str(error))
    if reason := failed_check(run, node.node):
        return refuse(run, "lost", reason, run.read_launch()["hardware"])
    supervise(run, partial(supervisor, shipping=start_shipping(run, node.why_not, shipping)))
    return 0


def take(path: RunDir) -> JobDir | None:
    """Become the supervisor of a run; None if it had one before."""
    run = JobDir(path.path)
    descriptor = lock(run.lock)
    if descriptor is None or run.started_at() or not run.is_alive:
        log.error("%s was started before", run.path)
        return None
    os.set_inheritable(descriptor, False)
    run.write_supervisor()
    return run


def describe(run: JobDir, here: Here) -> None:
    """Complete the launch file with hardware and address of this node, and the job; raises AddressError."""
    run.write_launch(described(run.read_launch(), json.loads(run.config.read_text()), os.environ, here))


def described(
    launch: Mapping[str, Any], config: Mapping[str, Any], environment: Mapping[str, str], here: Here
) -> dict[str, Any]:
    """Return the launch file with hardware and address of this node, and the job; raises AddressError."""
    hardware, share = telemetry.hardware(), Share(**launch["share"])
    wanted = config.get("cluster", {}).get("interface")
    place = choose(wanted, here.address) if share.nodes > 1 else Place(share.address, share.interface)
    return {
        **launch,
        "hardware": {**hardware, here.key: {**here.job, "script": launch.get("script", "")}},
        "gpus": _gpus_used(config, hardware["gpus"], environment, share.nodes),
        "share": share._replace(address=place.address, interface=place.interface)._asdict(),
        "is_on_node": True,
    }


def _gpus_used(
    config: Mapping[str, Any], present: list[dict[str, Any]], environment: Mapping[str, str], nodes: int
) -> list[dict[str, Any]]:
    if not present and "CUDA_VISIBLE_DEVICES" not in environment:
        return []
    from runners.config import RunConfig  # takes longer to load than all else; nodes without GPUs do without

    return gpus.used_by(RunConfig.model_validate(config), present, environment, nodes=nodes)


def refuse(run: JobDir, state: str, reason: str, environment: Mapping[str, Any] | None = None) -> int:
    """Write the final report of a run that cannot start here; return the exit code."""
    report = Report(state=state, at=time.time(), reason=reason, environment=dict(environment or {}))
    with SpoolWriter(run.spool) as spool:
        spool.append_report(report)
    run.end()
    return 1


def failed_check(run: JobDir, node: str) -> str:
    """Return why the hardware of this node cannot run it; empty if it can."""
    reason = health.failed_check(health.state_file(run.path.parent.parent))
    return f"node {node} {reason}; later jobs leave it out" if reason else ""


def shipped_by(state: JobStateDir) -> tuple[str, str]:
    """Return why this node cannot ship, empty if it can, and who ships in words."""
    why_not = reach.why_not(state)
    return why_not, f"login node, because {why_not}" if why_not else "compute node"


def start_shipping(run: JobDir, why_not: str, shipping: reach.Shipping) -> socket.socket | None:
    """Start to ship from here, unless something speaks against it; return the connection that ends it."""
    return None if why_not else reach.start(run, shipping)
