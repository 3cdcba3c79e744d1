"""How much memory a rank holds, the most it held during a step, and what to say when it did not suffice."""

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
"""Written to clear_refs, it sets VmHWM back to the memory in use; see proc(5)."""


class MemoryMeter(Protocol):
    """Measures one rank's memory in bytes."""

    source: str
    """What the figures are, for people."""

    def begin_step(self) -> None: ...
    def now(self) -> int: ...
    def peak(self) -> int: ...


class CudaMemory:
    """What torch's allocator has handed out on one GPU; not CUDA's context, NCCL's buffers or fragmentation."""

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
    """Resident memory of the process, Python and torch's libraries included (some 200 MB)."""

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
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts it in KiB; it never falls

    def _reset(self) -> bool:
        try:
            CLEAR_REFS.write_text(RESET_PEAK)
        except OSError:  # not Linux, or a container that mounts /proc read-only
            return False
        return True


def memory_meter(device: torch.device) -> MemoryMeter:
    """Return the meter for a device."""
    return CudaMemory(device) if device.type == "cuda" else ProcessMemory()


OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|std::bad_alloc|_ALLOC_FAILED|Storage size calculation overflowed", re.I
)
"""What torch, its CPU allocator, C++, cuBLAS and cuDNN say in plain RuntimeErrors; the last: more than 2^63 bytes."""
_SIZE = re.compile(r"tried to allocate ([\d.]+) (bytes|[KMG]iB)", re.I)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory did not suffice, on whatever device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None


class MemoryShortage(NamedTuple):
    """The sizes of an `oom` event, in bytes; None where nobody knows."""

    requested_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None


def memory_shortage(error: BaseException, device: torch.device | None) -> MemoryShortage:
    """Return what was asked for, what was free and what there is, on the device or (None, cpu) for the process."""
    found = _SIZE.search(str(error))
    requested = int(float(found[1]) * _UNITS[found[2].lower()]) if found else None
    try:
        if device is not None and device.type == "cuda":
            return MemoryShortage(requested, *torch.cuda.mem_get_info(device))
        memory = psutil.virtual_memory()
        free, total = memory.available, memory.total
        limit, _hard = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:  # a limit on the process counts addresses, not resident memory
            total = min(total, limit)
            free = min(free, max(limit - psutil.Process().memory_info().vms, 0))
        limit, _hard = resource.getrlimit(resource.RLIMIT_DATA)
        if limit != resource.RLIM_INFINITY:  # launcher.memory_limit_mib
            total = min(total, limit)
            free = min(free, max(limit - psutil.Process().memory_info().data, 0))
        return MemoryShortage(requested, free, total)
    except (RuntimeError, OSError, psutil.Error):  # a device in trouble may not answer; the event is worth more
        return MemoryShortage(requested, None, None)
