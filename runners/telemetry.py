"""What a node is made of, and what a run's processes take of it."""

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

from runners import gpus, nics

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
_ROOT = Path(__file__).resolve().parent.parent
_CHILDREN = Path("/proc/thread-self/children")
"""Absent where the kernel was built without it."""


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
    """Describe what a run starts in: the machine, the system, versions of what is installed, the git revision."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        **machine,
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
    """Ask nvidia-smi, whose figures are MiB, where the library is not found; no GPU where it is missing or fails."""
    query = "--query-gpu=index,name,memory.total,driver_version,uuid"
    devices, driver = [], ""
    for line in _output("nvidia-smi", query, "--format=csv,noheader,nounits").splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 5 or not parts[0].isdecimal():
            continue
        # Some devices share the machine's memory and print [N/A].
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
    """Measure memory and processor time of all processes below the calling one."""

    def __init__(self) -> None:
        self._measured_at = time.monotonic()
        self._known: dict[int, psutil.Process] = {}
        self._seconds: dict[int, float] = {}

    def sample(self) -> tuple[int, float]:
        """Return resident memory summed over the processes in bytes, and per cent of one core since the last sample.

        Memory that processes share is counted in each of them.
        """
        now = time.monotonic()
        memory, used = 0, 0.0
        known, seconds = dict[int, psutil.Process](), dict[int, float]()
        for pid in descendants(os.getpid()):
            with contextlib.suppress(psutil.Error):
                process = known[pid] = self._known.get(pid) or psutil.Process(pid)
                with process.oneshot():
                    times = process.cpu_times()
                    memory += process.memory_info().rss
                seconds[pid] = times.user + times.system
                used += max(0.0, seconds[pid] - self._seconds.get(pid, 0.0))
        percent = 100 * used / max(now - self._measured_at, 1e-3)
        self._measured_at, self._known, self._seconds = now, known, seconds
        return memory, round(percent, 1)


def descendants(pid: int) -> list[int]:
    """List the processes below one.

    psutil looks at every process of the machine for that; the kernel's own lists of children cost a thirtieth of it,
    which counts once a second beside a training.
    """
    if not _CHILDREN.exists():
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    found, waiting = list[int](), [pid]
    while waiting:
        # A process that ends meanwhile has no children any more: they are the supervisor's.
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                found += children
                waiting += children
    return found


class Samples:
    """All that is sampled beside a run: its processes, the node's network, the GPUs that it uses."""

    def __init__(self, gpu_uuids: Sequence[str]) -> None:
        self._processes = Sampler()
        self._nics = nics.Nics()
        self._gpus = gpus.Watch(gpu_uuids, time.time)

    def start(self) -> None:
        """Begin to read the GPUs, in a thread."""
        self._gpus.start()

    def stop(self) -> None:
        """Read the GPUs no more."""
        self._gpus.stop()

    def lines(self) -> bytes:
        """Return what happened since the last call as event lines."""
        memory, percent = self._processes.sample()
        node = {"memory_bytes": memory, "cpu_pct": percent, **self._nics.rates()}
        samples = [(-1, time.time(), node), *(reading for reading in self._gpus.take() if reading.values)]
        return b"".join(event_line(*sample) for sample in samples)


def event_line(rank: int, at: float, numbers: Mapping[str, float]) -> bytes:
    """Write a sample as the event that engines would print; rank -1 is the node, another one the GPU of that rank."""
    event = {"parlab": 1, "t": round(at, 3), "rank": rank, "event": "telemetry", **numbers}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def free_bytes(path: Path) -> int:
    """Return how much an unprivileged process may still write to the disk of a path."""
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize
