"""Which rank of which launch this process is, from the variables that launchers set."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# Variables of rank, number of ranks and rank on the node; an mpirun within an allocation of Slurm sets both kinds.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


class Launch(NamedTuple):
    """The place of this process in its launch."""

    rank: int
    world_size: int
    local_rank: int
    run_id: str
    """The same on all ranks of a launch."""
    is_shared: bool
    """Whether the ID is known to be the same on all ranks; otherwise each rank has a run of its own."""


def launch(environ: Mapping[str, str], *, rank: int | None = None, run_id: str | None = None) -> Launch:
    """Read the environment; `rank` and `run_id` replace what it states."""
    stated, size, local_rank, local_size = _ranks(environ)
    shared = run_id or environ.get("PARLAB_RUN_ID") or ""
    if not shared and size > 1:
        shared = _launch_id(environ, is_one_node=local_size == size)
    return Launch(
        stated if rank is None else rank, size, local_rank, shared or uuid.uuid4().hex, bool(shared) or size == 1
    )


def node_rank(environ: Mapping[str, str]) -> int:
    """Return the rank of this node among those that run a wrapper each."""
    for name in ("SLURM_NODEID", "GROUP_RANK", "NODE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return 0


def job_id(environ: Mapping[str, str]) -> str | None:
    """Return an ID that all nodes of a Slurm job derive alike, or None outside of Slurm."""
    job = environ.get("SLURM_JOB_ID")
    return _digest("slurm", job, environ.get("SLURM_RESTART_COUNT", "0")) if job else None


def _ranks(environ: Mapping[str, str]) -> tuple[int, int, int, int]:
    for rank, size, local_rank, local_size in _LAUNCHERS:
        if environ.get(rank, "").isdecimal() and environ.get(size, "").isdecimal():
            # Slurm writes 2(x1) for two tasks on each of one node.
            on_node = environ.get(local_size, "").partition("(")[0]
            local = environ.get(local_rank, "")
            world_size = max(int(environ[size]), 1)
            return (
                int(environ[rank]),
                world_size,
                int(local) if local.isdecimal() else int(environ[rank]),
                int(on_node) if on_node.isdecimal() else world_size if world_size == 1 else 0,
            )
    return 0, 1, 0, 1


def _launch_id(environ: Mapping[str, str], *, is_one_node: bool) -> str:
    """Return what identifies a launch of several ranks, empty if nothing does."""
    if "SLURM_JOB_ID" in environ and "SLURM_PROCID" in environ and "TORCHELASTIC_RUN_ID" not in environ:
        restarts = environ.get("SLURM_RESTART_COUNT", "0")
        return _digest("step", environ["SLURM_JOB_ID"], environ.get("SLURM_STEP_ID", ""), restarts)
    if is_one_node:
        # The launcher is the parent of all ranks; with its start time its process ID is unique.
        return _digest("parent", socket.gethostname(), _boot_id(), str(os.getppid()), _start_time(os.getppid()))
    rendezvous = environ.get("TORCHELASTIC_RUN_ID", "none")
    if rendezvous not in ("", "none"):
        return _digest("torchrun", rendezvous, environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", ""))
    return job_id(environ) or ""


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    try:
        # The name of a command may contain spaces and parentheses; the fields follow its last parenthesis.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
