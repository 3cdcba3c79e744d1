"""Hardware of a node, and the resources that the processes of a run use."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from runners.supervisor import processes
from runners.telemetry import gpus, nics, rapl
from runners.telemetry.conditions import conditions
from runners.telemetry.xid_events import Xid

PACKAGES = (
    "torch",
    "deepspeed",
    "transformers",
    "accelerate",
    "numpy",
    "celery",
    "kombu",
    "redis",
    "psutil",
    "pydantic",
)
_ROOT = Path(__file__).resolve().parents[2]
_CHILDREN = Path("/proc/thread-self/children")
"""Absent if the kernel was built without it."""


def hardware() -> dict[str, Any]:
    """Describe this machine: hostname, processor, memory, gpus (index, name, memory_bytes, uuid), driver."""
    devices, driver = gpus.described() or _by_nvidia_smi()
    return {
        "hostname": socket.gethostname(),
        "cpu_model": _cpu_model(),
        "cpu_cores": psutil.cpu_count(logical=True) or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": devices,
        "driver": driver,
    }


def environment(machine: dict[str, Any]) -> dict[str, Any]:
    """Describe the environment of a run: machine and its conditions now, system, package versions, git revision."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        **machine,
        **conditions(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": versions.get("torch", ""),
        "packages": versions,
        "git_revision": _output("git", "-C", str(_ROOT), "rev-parse", "HEAD").strip(),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "Hardware"):
                return value.strip()
    return platform.processor() or platform.machine()


def _by_nvidia_smi() -> tuple[list[dict[str, Any]], str]:
    """Read the GPUs from nvidia-smi (in MiB) if NVML is not available; none if nvidia-smi is missing or fails."""
    query = "--query-gpu=index,name,memory.total,driver_version,uuid"
    devices, driver = [], ""
    for line in _output("nvidia-smi", query, "--format=csv,noheader,nounits").splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 5 or not parts[0].isdecimal():
            continue
        # Devices that share the memory of the machine print [N/A].
        memory = int(parts[2]) << 20 if parts[2].isdecimal() else None
        devices.append({"index": int(parts[0]), "name": parts[1], "memory_bytes": memory, "uuid": parts[4]})
        driver = parts[3]
    return devices, driver


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


class Sampler:
    """Measures memory and CPU time of all descendants of the calling process."""

    def __init__(self) -> None:
        self._measured_at = time.monotonic()
        self._processes: dict[int, psutil.Process] = {}
        self._seconds: dict[int, float] = {}

    def sample(self) -> tuple[int, float]:
        """Return the sum of resident memory in bytes, and the CPU use since the last sample in per cent of one core.

        Memory that processes share is counted in each of them.
        """
        now = time.monotonic()
        memory, used = 0, 0.0
        current, seconds = dict[int, psutil.Process](), dict[int, float]()
        for pid in measured():
            with contextlib.suppress(psutil.Error):
                process = current[pid] = self._processes.get(pid) or psutil.Process(pid)
                with process.oneshot():
                    times = process.cpu_times()
                    memory += process.memory_info().rss
                seconds[pid] = times.user + times.system
                used += max(0.0, seconds[pid] - self._seconds.get(pid, 0.0))
        percent = 100 * used / max(now - self._measured_at, 1e-3)
        self._measured_at, self._processes, self._seconds = now, current, seconds
        return memory, round(percent, 1)


def measured() -> list[int]:
    """List the processes of the run of this process, without those of a container runtime."""
    pids = [pid for pid in descendants(os.getpid()) if not processes.is_helper(pid)]
    return pids + [process.pid for process in processes.apart() if process.pid not in pids]


def descendants(pid: int) -> list[int]:
    """List the descendants of a process.

    psutil looks at every process of the machine for that; the kernel's own lists of children cost a thirtieth of it,
    which counts once a second beside a training.
    """
    if not _CHILDREN.exists():
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    pids, waiting = list[int](), [pid]
    while waiting:
        # The children of a process that ends meanwhile are adopted by the supervisor.
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                pids += children
                waiting += children
    return pids


class Samples:
    """Samples taken during a run: its processes, the network of the node, the GPUs of the run."""

    def __init__(self, gpu_uuids: Sequence[str], *, node_rank: int = 0, first_rank: int = 0) -> None:
        """`first_rank` is the number of the rank that trains on the first GPU."""
        self._node_rank, self._first_rank = node_rank, first_rank
        self._processes = Sampler()
        self._nics = nics.nic_rates()
        self._rapl = rapl.Rapl()
        self._gpus = gpus.Watch(gpu_uuids, time.time)

    def start(self) -> None:
        """Start to read the GPUs, in a thread."""
        self._gpus.start()

    def stop(self) -> None:
        """Stop reading the GPUs."""
        self._gpus.stop()

    def xids(self) -> list[Xid]:
        """Return the XIDs of the GPUs of the run since the last call."""
        return [Xid(self._first_rank + position, number) for position, number in self._gpus.take_xids()]

    def lines(self) -> bytes:
        """Return the samples since the last call as event lines."""
        memory, percent = self._processes.sample()
        node = {"memory_bytes": memory, "cpu_pct": percent, **self._nics.rates()}
        if (watts := self._rapl.watts()) is not None:
            node["cpu_power_watts"] = watts
        samples = [(-1 - self._node_rank, time.time(), node)]
        samples += [
            (self._first_rank + reading.position, reading.time, reading.values)
            for reading in self._gpus.take()
            if reading.values
        ]
        return b"".join(event_line(*sample) for sample in samples)


def event_line(rank: int, at: float, numbers: Mapping[str, float]) -> bytes:
    """Return a sample as an event line; rank -1 is the first node, -2 the second, other ranks are those of a GPU."""
    event = {"parlab": 1, "t": round(at, 3), "rank": rank, "event": "telemetry", **numbers}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def free_bytes(path: Path) -> int:
    """Return the bytes that an unprivileged process can still write to the disk of a path."""
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize
