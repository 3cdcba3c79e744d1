"""Which rank of which launch this process is, from the variables that launchers set."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import pods

# Variables of rank, number of ranks and rank on the node; an mpirun within an allocation of Slurm sets both kinds.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
# What is the same on all nodes of a job: Slurm, PBS, LSF, Flux, SkyPilot, Ray, Cray's PALS, Kubernetes' JobSet.
_JOBS = (
    *("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"),
    *("SKYPILOT_TASK_ID", "RAY_JOB_ID", "PALS_APID", "JOBSET_NAME"),
)
_NODES = (
    *("SLURM_NODEID", "GROUP_RANK", "NODE_RANK", "PET_NODE_RANK", "SKYPILOT_NODE_RANK", "JOB_COMPLETION_INDEX"),
    *("CROSS_RANK", "PBS_NODENUM", "PALS_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
)
_LOOPBACK = ("localhost", "ip6-localhost", "::1", "0.0.0.0")
STARTED_AT = time.time()
"""When this process imported the client, where the system does not state when it started."""


class Launch(NamedTuple):
    """The place of this process in its launch."""

    rank: int
    world_size: int
    local_rank: int
    run_id: str
    """The same on all ranks of a launch, unless there is a `key`."""
    is_shared: bool
    """Whether all ranks get into one run; otherwise each rank has a run of its own."""
    key: str = ""
    """What all ranks of the launch state, and the next launch at the same address too: the server tells them apart."""


def launch(environ: Mapping[str, str], *, rank: int | None = None, run_id: str | None = None) -> Launch:
    """Read the environment; `rank` and `run_id` replace what it states."""
    stated, size, local_rank, local_size = _ranks(environ)
    shared, key = run_id or environ.get("PARLAB_RUN_ID") or "", ""
    if not shared and size > 1:
        shared = _launch_id(environ, is_one_node=local_size == size)
        key = "" if shared else _launch_key(environ, size)
    return Launch(
        stated if rank is None else rank,
        size,
        local_rank,
        shared or uuid.uuid4().hex,
        bool(shared or key) or size == 1,
        key,
    )


def node_rank(environ: Mapping[str, str]) -> int:
    """Return the rank of this node among those that run a wrapper each."""
    for name in _NODES:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return 0


def job_id(environ: Mapping[str, str]) -> str | None:
    """Return an ID that all nodes of a Slurm job derive alike, or None outside of Slurm."""
    job = environ.get("SLURM_JOB_ID")
    return _digest("slurm", job, environ.get("SLURM_RESTART_COUNT", "0")) if job else None


def facts(place: Launch) -> dict[str, Any]:
    """Return what lets the server find the run of a launch whose nodes have no ID in common; empty for others."""
    if not place.key:
        return {}
    return {"launch": {"key": place.key, "parent": _parent(), "started_at": _started_at()}}


def ranks_line(place: Launch, environ: Mapping[str, str]) -> bytes:
    """Return an event with the number of ranks of a launch that torchrun may start again; empty for others.

    Where ranks left and came back within a run, their numbers and times follow from these events.
    """
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "")
    if place.rank or not restarts.isdecimal():
        return b""
    return _ranks_event(time.time(), place.world_size, elastic_restart=int(restarts))


class RankCount:
    """The number of ranks of a launch, where they start again within their processes: NVRx then sets it anew."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ, self._at = environ, time.time()
        self._count = self._stated()

    def change(self) -> bytes:
        """Return events with the number before and now, if it has changed since the last call; of the first rank."""
        before, count = self._count, self._stated()
        if not before or not count or count == before:
            return b""
        began, self._count, self._at = self._at, count, time.time()
        if self._environ.get("RANK") != "0":
            return b""
        return _ranks_event(began, before) + _ranks_event(self._at, count)

    def _stated(self) -> int:
        text = self._environ.get("WORLD_SIZE", "")
        return int(text) if text.isdecimal() else 0


def _ranks_event(at: float, ranks: int, **more: int) -> bytes:
    numbers = {"elastic_ranks": ranks, **more}
    event = {"parlab": 1, "t": round(at, 3), "rank": 0, "event": "telemetry", **numbers}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


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
    """Return what identifies this launch of several ranks, and no other, empty if nothing does."""
    if "SLURM_JOB_ID" in environ and "SLURM_PROCID" in environ and "TORCHELASTIC_RUN_ID" not in environ:
        restarts = environ.get("SLURM_RESTART_COUNT", "0")
        return _digest("step", environ["SLURM_JOB_ID"], environ.get("SLURM_STEP_ID", ""), restarts)
    if is_one_node and "RAY_JOB_ID" not in environ:  # the parent of Ray's workers lives longer than a training
        # The launcher is the parent of all ranks; with its start time its process ID is unique.
        return _digest("parent", socket.gethostname(), _boot_id(), str(os.getppid()), _start_time(os.getppid()))
    rendezvous = environ.get("TORCHELASTIC_RUN_ID", "none")
    if rendezvous not in ("", "none"):
        return _digest("torchrun", rendezvous, environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", ""))
    if "OMPI_COMM_WORLD_RANK" in environ and environ.get("PMIX_NAMESPACE"):
        return _digest("mpirun", environ["PMIX_NAMESPACE"])
    return ""


def _launch_key(environ: Mapping[str, str], world_size: int) -> str:
    """Return a key of the address at which the ranks of a launch meet, and of its job; empty without either."""
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    jobs = [f"{name}={environ[name]}" for name in _JOBS if environ.get(name)]
    if not (address and port) and not jobs:
        return ""
    # The address in a pod is the name of a service, which each namespace may have.
    jobs += [f"namespace={name}" for name in (pods.namespace(environ),) if name]
    # A loopback address means another machine on each machine.
    host = socket.gethostname() if address in _LOOPBACK or address.startswith("127.") else ""
    return _digest("key", address.lower(), port, str(world_size), host, *jobs)


def _parent() -> str:
    """Return what the ranks of one launcher on one node have in common; empty for a process without a launcher."""
    # Process 1 adopts what has lost its launcher, but in a pod it is the launcher.
    if os.getppid() < 1 or (os.getppid() == 1 and not pods.is_pod(os.environ)):
        return ""
    # torchrun starts all ranks of a node again if one fails.
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return _digest("node", socket.gethostname(), _boot_id(), str(os.getppid()), _start_time(os.getppid()), restarts)


def _started_at() -> float:
    """Return when this process started (Unix time, s)."""
    try:
        up_s = float(Path("/proc/uptime").read_text().split()[0])
        age_s = up_s - int(_start_time(os.getpid())) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return STARTED_AT
    # A container may have an uptime of its own.
    return time.time() - age_s if 0 <= age_s < 1e9 else STARTED_AT


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
