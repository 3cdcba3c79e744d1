"""What `stop-all` and `drain` do with the runs of a state directory, beside its daemon."""

from __future__ import annotations

import argparse
import logging
import signal
import time

from runners.node.jobs.state import JobStateDir
from runners.node.rundir import RunDir, StateDir
from runners.node.slurm import keeper as slurm
from runners.node.slurm.cluster import Slurm
from runners.supervisor import processes

STOP_ALL_WITHIN_S = 15.0
"""Besides the grace of a run, and the time that it waits on a full disk for room for its last output."""
DRAIN_WITHIN_S = 15.0

log = logging.getLogger(__name__)


def stop_all(state: StateDir, options: argparse.Namespace) -> int:
    """End all runs of a state directory and wait for them; return the number of runs that are still alive."""
    if not isinstance(state, JobStateDir):
        return _stop_here(state)
    if options.kubernetes:
        # Its client is a package of an extra, and heavy.
        from runners.node.kubernetes.stopping import stop_all as stop_pods

        return stop_pods(state, options.namespace, options.context or None)
    return slurm.stop_all(state, Slurm())


def _stop_here(state: StateDir) -> int:
    began, is_told = time.monotonic(), False
    signalled: set[str] = set()
    while alive := [run for run in state.runs() if run.is_alive]:
        for run in alive:
            # A supervisor that is just starting has not recorded its process id yet.
            if run.path.name not in signalled and (process := run.supervisor()):
                processes.signal_all([process], signal.SIGTERM)
                signalled.add(run.path.name)
        if (waited_s := time.monotonic() - began) > STOP_ALL_WITHIN_S:
            grace_s = max(map(_grace_s, alive))
            if waited_s > STOP_ALL_WITHIN_S + grace_s:
                log.error("still alive: %s", ", ".join(map(str, alive)))
                return len(alive)
            if not is_told:
                log.warning("%d runs still write a checkpoint, or wait for room on a full disk", len(alive))
                is_told = True
        time.sleep(0.05)
    log.info("stopped %d runs", len(signalled))
    return 0


def _grace_s(run: RunDir) -> float:
    try:
        launch = run.read_launch()
        return float(launch["disk_grace_s"]) + float(launch.get("grace_s", 0))
    except (OSError, ValueError, KeyError):  # it has ended meanwhile
        return 0.0


def drain(state: StateDir, lease_s: float | None) -> int:
    """Make the node take no new runs until a daemon starts; return 1 if no daemon has told the server in time."""
    state.begin_drain(lease_s)
    deadline = time.monotonic() + DRAIN_WITHIN_S
    while not state.is_drain_confirmed:
        if time.monotonic() > deadline:
            log.error("no daemon has told the server within %.0f s; is it running?", DRAIN_WITHIN_S)
            return 1
        time.sleep(0.05)
    log.info("the node takes no new runs until a daemon starts; it holds %d runs", len(state.runs()))
    return 0
