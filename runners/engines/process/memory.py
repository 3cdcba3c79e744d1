"""Memory of a rank: current use, peak during a step, and the sizes to report when it runs out."""

from __future__ import annotations

import errno
import re
import resource
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil
import torch

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
RESET_PEAK = "5"
"""Writing this to clear_refs resets VmHWM to the memory in use; see proc(5)."""


class MemoryMeter(Protocol):
    """Measures one rank's memory in bytes."""

    source: str
    """Human-readable name of what is measured."""

    def begin_step(self) -> None: ...
    def now(self) -> int: ...
    def peak(self) -> int: ...


class CudaMemory:
    """Memory allocated by torch on one GPU; excludes the CUDA context, NCCL's buffers and fragmentation."""

    source = "cuda allocator"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin_step(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def now(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)


class ProcessMemory:
    """Resident memory of the process, including Python and torch's libraries (about 200 MB)."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._resettable = self._reset()
        self.source = "process resident" if self._resettable else "process resident, peak since start"

    def begin_step(self) -> None:
        if self._resettable:
            self._reset()

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    def peak(self) -> int:
        if self._resettable:
            for line in STATUS.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux; it never decreases

    def _reset(self) -> bool:
        try:
            CLEAR_REFS.write_text(RESET_PEAK)
        except OSError:  # not Linux, or a container that mounts /proc read-only
            return False
        return True


def memory_meter(device: torch.device) -> MemoryMeter:
    return CudaMemory(device) if device.type == "cuda" else ProcessMemory()


OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|std::bad_alloc|_ALLOC_FAILED|Storage size calculation overflowed", re.I
)
"""Messages of torch, its CPU allocator, C++, cuBLAS and cuDNN in plain RuntimeErrors; the last for over 2^63 bytes."""
_SIZE = re.compile(r"tried to allocate ([\d.]+) (bytes|[KMG]iB)", re.I)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception reports an out-of-memory condition, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None


class MemoryShortage(NamedTuple):
    """Sizes of an `oom` event in bytes; None if unknown."""

    requested_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None


def memory_shortage(error: BaseException, device: torch.device | None) -> MemoryShortage:
    """Return requested, free and total memory of the device, or of the process if `device` is None or a CPU."""
    match = _SIZE.search(str(error))
    requested = int(float(match[1]) * _UNITS[match[2].lower()]) if match else None
    try:
        if device is not None and device.type == "cuda":
            return MemoryShortage(requested, *torch.cuda.mem_get_info(device))
        memory = psutil.virtual_memory()
        free, total = memory.available, memory.total
        limit, _hard = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:  # RLIMIT_AS counts the address space, not resident memory
            total = min(total, limit)
            free = min(free, max(limit - psutil.Process().memory_info().vms, 0))
        limit, _hard = resource.getrlimit(resource.RLIMIT_DATA)
        if limit != resource.RLIM_INFINITY:  # launcher.memory_limit_mib
            total = min(total, limit)
            free = min(free, max(limit - psutil.Process().memory_info().data, 0))
        return MemoryShortage(requested, free, total)
    except (RuntimeError, OSError, psutil.Error):  # a failing device may not answer; the event is needed anyway
        return MemoryShortage(requested, None, None)
