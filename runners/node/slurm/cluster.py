"""Slurm's commands, each with a time limit: what they print, or why they failed."""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from runners.node.jobs.system import SystemAway, SystemRefused
from runners.node.run_as import without_secrets
from runners.node.slurm import queue
from runners.node.slurm.queue import End, Job, Partition

COMMAND_S = 20.0
"""Time limit of a command; Slurm's own timeouts are shorter unless the controller is overloaded."""

_AWAY = (
    "unable to contact slurm controller",
    "unable to connect",
    "connection refused",
    "socket timed out",
    "connection timed out",
    "zero bytes were transmitted",
    "failed to contact",
    "unexpected message received",
    "protocol authentication error",
    "munge",
    "configuration source",
)


class SlurmAway(SystemAway):
    """Raised if Slurm does not answer; the caller tries again."""


class SlurmRefused(SystemRefused):
    """Raised with Slurm's message if it refuses a command."""


class Shown(NamedTuple):
    """The queue at one moment."""

    jobs: list[Job]
    """Jobs of this user, also those that ended within Slurm's MinJobAge."""
    places: dict[int, tuple[int, int]]


class Slurm:
    """The cluster that the commands of this machine talk to."""

    def __init__(self, command_s: float = COMMAND_S) -> None:
        self._command_s = command_s

    def submit(self, script: Path) -> int:
        """Submit a batch script and return the job's id."""
        # The cluster's name may follow the id: 12;cluster
        text = self._run("sbatch", "--parsable", str(script)).strip().partition(";")[0]
        if not text.isdecimal():
            raise SlurmRefused(f"sbatch printed {text!r} instead of a job id")
        return int(text)

    def cancel(self, job: int) -> None:
        """Cancel a job; one that has ended is no error."""
        try:
            self._run("scancel", str(job))
        except SlurmRefused as error:
            if "invalid job id" not in str(error).lower():
                raise

    def shown(self) -> Shown:
        """Return the jobs of this user, and the places of those that wait."""
        jobs = queue.jobs_of(
            self._run(
                *("squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}"),
                f"--format={queue.SQUEUE_FORMAT}",
            )
        )
        if not any(job.is_pending for job in jobs):
            return Shown(jobs, {})
        everyone = self._run("squeue", "--noheader", "--states=PENDING", f"--format={queue.SQUEUE_FORMAT}")
        return Shown(jobs, queue.places(queue.jobs_of(everyone)))

    def end(self, job: int | None, name: str) -> End | None:
        """Return how a job ended, from the controller or from the accounting; None if neither knows it any more."""
        if job is not None:
            try:
                return queue.end_of(self._run("scontrol", "show", "job", "--oneliner", str(job)))
            except SlurmRefused:
                pass  # ended longer ago than MinJobAge
        try:
            fields = f"--format={queue.SACCT_FORMAT}"
            start = "--starttime=now-30days"
            text = self._run("sacct", "--noheader", "--parsable2", "--allocations", start, f"--name={name}", fields)
        except SlurmRefused:
            return None  # the cluster keeps no accounts
        return queue.accounted_end(text, name)

    def leave_out(self, job: int, names: str) -> bool:
        """Let a job that waits use none of some nodes (a list of sbatch --exclude); return whether it uses none.

        One that has its nodes keeps them.
        """
        try:
            self._run("scontrol", "update", f"JobId={job}", f"ExcNodeList={names}")
        except SlurmRefused:
            end = self.end(job, "")
            return end is None or not set(self._hosts(end.nodes)) & set(self._hosts(names))
        return True

    def _hosts(self, names: str) -> list[str]:
        """Return the nodes of a list like n[1-3],n7."""
        return self._run("scontrol", "show", "hostnames", names).split() if names else []

    def drained(self, nodes: str) -> str:
        """Return which of some nodes take no jobs, each with the reason; empty if all do."""
        text = self._run("sinfo", "--noheader", "--Node", f"--nodes={nodes}", f"--format={queue.SINFO_FORMAT}")
        return queue.drained_of(text)

    def partitions(self) -> dict[str, Partition]:
        return queue.partitions_of(self._run("scontrol", "show", "partition", "--oneliner"))

    def gpus(self, partitions: Sequence[str]) -> int:
        """Return the most GPUs that one node of the partitions offers."""
        names = ",".join(partitions)
        return queue.gpus_of(self._run("sinfo", "--noheader", f"--partition={names}", "--format=%G"))

    def _run(self, *argv: str) -> str:
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._command_s,
                env=_environment(),
                check=False,
            )
        except FileNotFoundError:
            raise SlurmAway(f"{argv[0]} is not installed; install Slurm's commands on this node") from None
        except subprocess.TimeoutExpired:
            message = f"{argv[0]} did not answer within {self._command_s:g} s; check slurmctld with scontrol ping"
            raise SlurmAway(message) from None
        if done.returncode == 0:
            return done.stdout
        message = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        if any(text in message.lower() for text in _AWAY):
            raise SlurmAway(f"{message[:300]}; start slurmctld and munged, and check them with scontrol ping")
        raise SlurmRefused(message[:300])


def _environment() -> dict[str, str]:
    """Return the environment of a command: sbatch passes it on to the job, and prefers SBATCH_* to its script."""
    base = without_secrets(os.environ)
    plain = {name: value for name, value in base.items() if not name.startswith(("SBATCH_", "SQUEUE_", "SACCT_"))}
    return {**plain, "SLURM_TIME_FORMAT": "%Y-%m-%d %H:%M"}
