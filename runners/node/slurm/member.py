"""On a node that Slurm gave: `srun python -m runners.node.slurm.member RUN_DIR` supervises this node's part of a run.

It is the same supervisor as that of a daemon. Three things differ: it describes this node, not the login node; if
Slurm stops it, it leaves the final report to the daemon, which asks Slurm for the reason; and it stops in the same way
if another supervisor of the job has failed, without waiting for Slurm, whose message may take a minute.
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
from functools import partial
from pathlib import Path
from typing import Any

from parlab.client.json_log import start_logging
from runners.config import RunConfig
from runners.node.addresses import AddressError, Place, address_towards, choose
from runners.node.launch import containers
from runners.node.launch.share import Share
from runners.node.rundir import RunDir, directory_name, lock
from runners.node.slurm import reach
from runners.node.slurm.queue import NO_STATE_DIRECTORY, STARTED_BEFORE
from runners.node.slurm.state import JobDir, JobStateDir
from runners.node.slurm.submit import AHEAD_VARIABLE
from runners.supervisor.spool import SpoolWriter
from runners.supervisor.supervise import Supervisor, marker_of, supervise
from runners.telemetry import faults as health
from runners.telemetry import gpus, telemetry
from runners.wire.protocol import Report, RunState

LOOK_S = 0.5
"""Seconds between two looks for a checkpoint of ranks that were told to end."""
VISIBLE_WITHIN_S = 20.0
"""Time after which a new directory must be visible on all nodes; network file systems cache for a while."""

log = logging.getLogger(__name__)


class JobSupervisor(Supervisor):
    """A supervisor that Slurm may stop; its output may be shipped from its node."""

    def __init__(self, run: RunDir, shipping: int | None = None) -> None:
        """`shipping` is the pipe that ends the shipping when it is closed."""
        super().__init__(run)
        self._shipping = shipping
        self._looked_at = 0.0
        state = JobStateDir(run.path.parent.parent)
        self._job, self._next = state.job(run.run, run.attempt), state.job(run.run, run.attempt + 1)

    def _look_for_orders(self) -> None:
        if self.order is None and self.exit_code is None and self._job.broken.exists():
            self._on_signal()
        super()._look_for_orders()

    def _on_signal(self, *arguments: object) -> None:
        # At once: Slurm kills a supervisor that takes too long, and then this tells it from the first one that died.
        JobDir(self.run_dir.path).stop()
        super()._on_signal(*arguments)

    def _near_limit(self, before_s: float, now: float) -> str:
        if self._job.was_warned:
            return "the time limit of its Slurm job"
        return super()._near_limit(before_s, now)

    def _end_processes(self) -> None:
        super()._end_processes()
        now = time.monotonic()
        # Not only at the end: Slurm kills this process with its ranks when its own grace is over.
        if self.is_told_to_stop and now - self._looked_at > LOOK_S:
            self._looked_at = now
            if self._has_saved():
                JobDir(self.run_dir.path).note_checkpoint()

    def _report_end(self) -> None:
        """Write the final report, unless Slurm ends the job: why, only the daemon can ask."""
        run = JobDir(self.run_dir.path)
        exit_code = -signal.SIGKILL if self.exit_code is None else self.exit_code
        if self._verdict(exit_code).state in (RunState.FINISHED, RunState.CANCELLED) and not self.is_told_to_stop:
            self._next.is_not_needed()
        if self.is_told_to_stop:
            if self.recorder.evidence.has_checkpointed(exit_code) or self._has_saved():
                run.note_checkpoint()
            self.samples.stop()
            self._remove_container()
            self.recorder.spool.close()
            self._finish_shipping(run)
        else:
            super()._report_end()
            self._finish_shipping(run)
            run.end()

    def _finish_shipping(self, run: JobDir) -> None:
        """Let the last batches be shipped from here, so that the login node need not send them again."""
        if self._shipping is None:
            return
        os.close(self._shipping)
        deadline = time.monotonic() + reach.FLUSH_S
        while run.is_shipped_elsewhere and time.monotonic() < deadline:
            time.sleep(0.05)


def described(
    launch: Mapping[str, Any], config: RunConfig, environment: Mapping[str, str], shipped_by: str
) -> dict[str, Any]:
    """Return the launch file with hardware and address of this node, and the job; raises AddressError."""
    hardware = telemetry.hardware()
    job = {
        "job": environment.get("SLURM_JOB_ID", ""),
        "partition": environment.get("SLURM_JOB_PARTITION", ""),
        "nodes": environment.get("SLURM_JOB_NODELIST", ""),
        "node": environment.get("SLURMD_NODENAME", ""),
        "shipped_by": shipped_by,
        "script": launch.get("script", ""),
    }
    share = Share(**launch["share"])
    # srun runs on the first node: the address with which this node reaches it is one that the others can reach.
    own = address_towards(f"tcp://{environment.get('SLURM_LAUNCH_NODE_IPADDR', '')}")
    place = choose(config.cluster.interface, own) if share.nodes > 1 else Place(share.address, share.interface)
    return {
        **launch,
        "hardware": {**hardware, "slurm": job},
        "gpus": gpus.used_by(config, hardware["gpus"], environment, nodes=share.nodes),
        "share": share._replace(address=place.address, interface=place.interface)._asdict(),
        "is_on_node": True,
    }


def clean(run: RunDir) -> int:
    """Remove the container of a run from this node; Slurm itself may know only some of its processes."""
    launch = run.read_launch()
    runtime = launch.get("container")
    if runtime and (why_not := containers.remove(runtime, marker_of(launch))):
        log.error("the container cannot be removed: %s", why_not)
        return 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m runners.node.slurm.member", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="directory of node_rank 0 of the run, which the daemon has prepared")
    parser.add_argument("--clean", action="store_true", help="remove the container of a supervisor that was killed")
    options = parser.parse_args(arguments)
    first = RunDir(options.run_dir)
    start_logging()
    node_rank = int(os.environ.get("SLURM_PROCID", "0"))
    path = first.path.with_name(directory_name(first.run, first.attempt, node_rank))
    if options.clean:
        return clean(RunDir(path))
    if not _is_visible(path / "launch.json"):
        log.error("%s does not see %s", os.environ.get("SLURMD_NODENAME") or socket.gethostname(), path)
        return NO_STATE_DIRECTORY
    run = JobDir(path)
    descriptor = lock(run.lock)
    if descriptor is None or run.started_at():
        log.error("%s was started before", run.path)
        return STARTED_BEFORE
    os.set_inheritable(descriptor, False)
    run.write_supervisor()
    # A launcher within the job, such as srun, must share the resources of this step instead of waiting for them.
    os.environ["SLURM_OVERLAP"] = "1"
    config = RunConfig.model_validate_json(run.config.read_text())
    why_not = reach.why_not(JobStateDir(path.parent.parent))
    shipped_by = f"login node, because {why_not}" if why_not else "compute node"
    try:
        run.write_launch(described(run.read_launch(), config, os.environ, shipped_by))
    except AddressError as error:
        with SpoolWriter(run.spool) as spool:
            spool.append_report(Report(state="failed", at=time.time(), reason=str(error)))
        run.end()
        return 1
    if reason := health.failed_check(path.parent.parent / f"links-{socket.gethostname()}.json"):
        name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        with SpoolWriter(run.spool) as spool:
            report = Report(
                state="lost",
                at=time.time(),
                reason=f"node {name} {reason}; later jobs leave it out",
                environment=run.read_launch()["hardware"],
            )
            spool.append_report(report)
        run.end()
        return 1
    shipping = None
    if not why_not:
        run.take_over_shipping(socket.gethostname())
        shipping = reach.start(run)
    supervise(run, partial(JobSupervisor, shipping=shipping))
    return 0


def _is_visible(path: Path) -> bool:
    # The job of a next attempt may start before the server has sent the attempt.
    deadline = time.monotonic() + float(os.environ.get(AHEAD_VARIABLE, VISIBLE_WITHIN_S))
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(OSError):
            os.listdir(path.parent.parent)  # makes a network file system look again
        time.sleep(0.5)
    return True


if __name__ == "__main__":
    sys.exit(main())
