"""On a node that Slurm gave: `srun python -m runners.node.slurm.member RUN_DIR` supervises this node's part of a run.

Beside what differs in any job, it stops if another supervisor of the job has failed, without waiting for Slurm, whose
message may take a minute.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from parlab.client.json_log import start_logging
from runners.node.addresses import address_towards
from runners.node.jobs import member
from runners.node.jobs.member import Here, JobSupervisor
from runners.node.jobs.state import JobStateDir
from runners.node.launch import containers
from runners.node.rundir import RunDir, directory_name
from runners.node.slurm.queue import NO_STATE_DIRECTORY, STARTED_BEFORE
from runners.node.slurm.submit import AHEAD_VARIABLE, UNUSED_JOB
from runners.supervisor.supervise import marker_of
from runners.wire.protocol import RunState

log = logging.getLogger(__name__)


class SlurmSupervisor(JobSupervisor):
    """A supervisor of a job of Slurm, which sends a signal ahead of its limit, and whose next job may wait already."""

    def __init__(self, run: RunDir, shipping: socket.socket | None = None) -> None:
        super().__init__(run, shipping)
        state = JobStateDir(run.path.parent.parent)
        self._job, self._next = state.job(run.run, run.attempt), state.job(run.run, run.attempt + 1)

    def _look_for_orders(self) -> None:
        if self.order is None and self.exit_code is None and self._job.broken.exists():
            self._on_signal()
        super()._look_for_orders()

    def _near_limit(self, before_s: float, now: float) -> str:
        if self._job.was_warned:
            return "the time limit of its Slurm job"
        return super()._near_limit(before_s, now)

    def _report_end(self) -> None:
        has_ended = self._verdict(self.last_exit_code).state in (RunState.FINISHED, RunState.CANCELLED)
        if has_ended and not self.is_told_to_stop:
            self._next.is_not_needed()
        super()._report_end()


def here(environment: Mapping[str, str], state: JobStateDir) -> Here:
    """Describe this node and its job from the environment of a step."""
    why_not, shipped_by = member.shipped_by(state)
    job = {
        "job": environment.get("SLURM_JOB_ID", ""),
        "partition": environment.get("SLURM_JOB_PARTITION", ""),
        "nodes": environment.get("SLURM_JOB_NODELIST", ""),
        "node": environment.get("SLURMD_NODENAME", ""),
        "shipped_by": shipped_by,
    }
    # srun runs on the first node: the address with which this node reaches it is one that the others can reach.
    own = address_towards(f"tcp://{environment.get('SLURM_LAUNCH_NODE_IPADDR', '')}")
    return Here("slurm", job, own, environment.get("SLURMD_NODENAME") or socket.gethostname(), why_not)


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
    # The job of a next attempt may start before the server has sent the attempt.
    within_s = float(os.environ.get(AHEAD_VARIABLE, member.VISIBLE_WITHIN_S))
    if not member.is_visible(path / "launch.json", within_s):
        log.error("%s does not see %s", os.environ.get("SLURMD_NODENAME") or socket.gethostname(), path)
        return NO_STATE_DIRECTORY
    if str(RunDir(path).read_launch().get(UNUSED_JOB)) == os.environ.get("SLURM_JOB_ID"):
        log.info("%s: another job runs it, because this one has a node that is left out", path.name)
        return 0
    # A launcher within the job, such as srun, must share the resources of this step instead of waiting for them.
    os.environ["SLURM_OVERLAP"] = "1"
    code = member.supervise_part(path, here, SlurmSupervisor)
    return STARTED_BEFORE if code is None else code


if __name__ == "__main__":
    sys.exit(main())
