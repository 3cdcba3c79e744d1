"""Faults of a node's hardware: XID, ECC, row remapping and NVLink of its GPUs, and links of its RDMA ports.

`python -m runners.telemetry.faults` prints them, one a line, and exits with 1 if one of them makes the node unusable.
It needs neither parlab's daemon nor its server, so that Slurm can call it (deploy/slurm/health.sh).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

KERNEL_LOG, RDMA = Path("/dev/kmsg"), Path("/sys/class/infiniband")
ANSWER_S = 10.0
"""Time for drivers to answer; one that does not is a fault itself."""
RECENT_S = 24 * 3600.0
"""Age up to which an XID of the kernel's log counts."""
MAX_LINKS = 18
MAX_FAULTS = 16
BIT_ERRORS = 1_000
"""Symbol errors of a port above which its cable is bad: the specification allows one in hours."""

FATAL_XIDS: Mapping[int, str] = {
    48: "double-bit ECC error",
    61: "internal error of a microcontroller",
    62: "internal error of a microcontroller",
    64: "row remapping failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "unrecovered ECC error",
}
"""XIDs after which a GPU cannot be used before a reset or a repair (NVIDIA's XID catalogue)."""
NOTED_XIDS: Mapping[int, str] = {63: "row remapped", 92: "many corrected ECC errors", 94: "contained memory error"}
"""XIDs of hardware after which it works on; those of applications, like 13 and 31, are no faults of a node."""

_ABSENT = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission, pynvml.NVMLError_FunctionNotFound)
"""What a device or driver answers that does not have a counter."""
_ROOT = str(Path(__file__).resolve().parents[2])
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")


class Fault(NamedTuple):
    device: str
    """GPU 3, mlx5_0 port 1, driver."""
    kind: str
    """xid, ecc, remap, nvlink, rdma or driver."""
    text: str
    is_fatal: bool

    def __str__(self) -> str:
        return f"{self.device}: {self.text}"


Seen = dict[str, int]
"""What devices had when they were best: number of active links of a GPU, whether a port was active."""


def state_file(directory: Path) -> Path:
    """Return the file in a state directory with what the devices of this machine had; other machines may share it."""
    return directory / f"links-{socket.gethostname()}.json"


def read_faults(state: Path | None = None, *more: str) -> list[Fault]:
    """Return the faults of this machine, the fatal ones first; the file `state` keeps which links were active.

    A process of its own reads them: a driver that hangs must not hold the caller.
    """
    own = [
        sys.executable,
        "-m",
        "runners.telemetry.faults",
        "--here",
        *(["--state", str(state)] if state else []),
        *more,
    ]
    environment = {**os.environ, "PYTHONPATH": ":".join([_ROOT, os.environ.get("PYTHONPATH", "")])}
    with contextlib.ExitStack() as stack:
        child = subprocess.Popen(
            own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        assert child.stdout is not None
        stack.enter_context(child.stdout)
        try:
            output, _ = child.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            child.kill()  # one that the driver holds ends only when that answers
            return [Fault("driver", "driver", f"the driver of the GPUs has not answered within {ANSWER_S:g} s", True)]
    return [Fault(*fault) for fault in json.loads(output or "[]")]


def failed_check(state: Path | None = None) -> str:
    """Return which faults make this machine unusable, as the end of a sentence; empty if none does."""
    fatal = [str(fault) for fault in read_faults(state) if fault.is_fatal]
    return f"failed its health check: {'; '.join(fatal[:3])}" if fatal else ""


# --- GPUs ------------------------------------------------------------------------------------------------------------


def gpu_faults(seen: Seen) -> list[Fault]:
    """Return what NVML says of the GPUs; nothing without a driver."""
    faults, links = list[Fault](), dict[int, tuple[str, int]]()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                device = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = str(pynvml.nvmlDeviceGetUUID(device))
                faults += _memory_faults(f"GPU {index}", device)
                links[index] = uuid, _active_links(device)
                faults += _link_errors(f"GPU {index}", device, links[index][1])
            except pynvml.NVMLError_GpuIsLost:
                faults.append(Fault(f"GPU {index}", "xid", "the driver has lost it; it needs a reset", True))
            except pynvml.NVMLError:
                continue
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return faults + _link_faults(links, seen)


def _memory_faults(name: str, device: Any) -> Iterator[Fault]:
    with contextlib.suppress(*_ABSENT):
        count = int(
            pynvml.nvmlDeviceGetTotalEccErrors(
                device, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        )
        if count:
            text = f"{count} uncorrectable ECC error{'s' if count > 1 else ''} since its driver was loaded"
            yield Fault(name, "ecc", text, True)
    with contextlib.suppress(*_ABSENT):
        _, _, is_pending, has_failed = pynvml.nvmlDeviceGetRemappedRows(device)[:4]
        if has_failed:
            yield Fault(name, "remap", "a row of its memory could not be remapped; replace it", True)
        elif is_pending:
            yield Fault(name, "remap", "a row of its memory waits to be remapped; reset it", False)


def _active_links(device: Any) -> int:
    active = 0
    for link in range(MAX_LINKS):
        try:
            active += bool(pynvml.nvmlDeviceGetNvLinkState(device, link))
        except pynvml.NVMLError_GpuIsLost:
            raise
        except pynvml.NVMLError:
            break  # it has no further links
    return active


def _link_errors(name: str, device: Any, links: int) -> Iterator[Fault]:
    """Yield the recoveries of links after errors, which cost time but lose nothing."""
    with contextlib.suppress(*_ABSENT):
        counter = pynvml.NVML_NVLINK_ERROR_DL_RECOVERY
        count = sum(int(pynvml.nvmlDeviceGetNvLinkErrorCounter(device, link, counter)) for link in range(links))
        if count:
            yield Fault(name, "nvlink", f"its NVLinks have recovered from errors {count} times", False)


def _link_faults(links: Mapping[int, tuple[str, int]], seen: Seen) -> list[Fault]:
    """Compare the active links of each GPU with what it had, and with its neighbours: some boards use not all."""
    most, faults = max((active for _, active in links.values()), default=0), []
    for index, (uuid, active) in links.items():
        expected = max(most, seen.get(uuid, 0))
        seen[uuid] = max(active, seen.get(uuid, 0))
        if active < expected:
            text = f"{active} of {expected} NVLinks are active"
            faults.append(Fault(f"GPU {index}", "nvlink", text, True))
    return faults


def kernel_lines(path: Path) -> Iterator[tuple[float, str]]:
    """Yield the records of the kernel's log as (seconds since the machine started, text); none without permission."""
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    with open(log, "rb", buffering=0) as file:
        while True:
            try:
                record = file.read(8192)
            except BrokenPipeError:
                continue  # records were overwritten meanwhile
            except OSError:
                return
            if not record:
                return
            for line in record.decode(errors="replace").splitlines():
                head, _, text = line.partition(";")
                fields = head.split(",")
                if len(fields) > 2 and fields[2].isdecimal():
                    yield int(fields[2]) / 1e6, text


def xid_faults(records: Iterable[tuple[float, str]], now: float, booted: float | None = None) -> list[Fault]:
    """Return the XIDs of the last day, each once for a GPU; those of applications are left out."""
    started = _boot_time() if booted is None else booted
    counts: dict[tuple[str, int], int] = {}
    for at, text in records:
        if (match := _XID.search(text)) and now - (started + at) <= RECENT_S:
            key = match[1], int(match[2])
            counts[key] = counts.get(key, 0) + 1
    faults = []
    for (address, number), count in counts.items():
        meaning = FATAL_XIDS.get(number) or NOTED_XIDS.get(number)
        if meaning:
            times = f", {count} times" if count > 1 else ""
            faults.append(Fault(f"GPU at {address}", "xid", f"XID {number}: {meaning}{times}", number in FATAL_XIDS))
    return faults


def _boot_time() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


# --- RDMA ------------------------------------------------------------------------------------------------------------


def rdma_faults(root: Path, seen: Seen) -> list[Fault]:
    """Return the faults of InfiniBand and RoCE ports: those that are down and were not, and those with many errors."""
    faults = []
    for port in sorted(root.glob("*/ports/*")):
        name = f"{port.parent.parent.name} port {port.name}"
        is_active = "ACTIVE" in _text(port / "state")
        if not is_active and seen.get(name):
            text = f"its link is {_text(port / 'phys_state').partition(': ')[2] or 'down'}"
            faults.append(Fault(name, "rdma", text, True))
        seen[name] = int(is_active or bool(seen.get(name)))
        for counter, limit in (("link_downed", 0), ("symbol_error", BIT_ERRORS)):
            count = _text(port / "counters" / counter)
            if is_active and count.isdecimal() and int(count) > limit:
                faults.append(Fault(name, "rdma", f"{counter} is {count}", False))
    return faults


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return 1 if the node cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m runners.telemetry.faults", description=__doc__)
    parser.add_argument("--here", action="store_true", help="read in this process, and print JSON")
    parser.add_argument("--state", type=Path, help="file with the links that were active, written by each call")
    parser.add_argument("--kernel-log", type=Path, default=KERNEL_LOG)
    parser.add_argument("--rdma", type=Path, default=RDMA)
    options = parser.parse_args(arguments)
    if options.here:
        faults = _faults_here(options.state, options.kernel_log, options.rdma)
        sys.stdout.write(json.dumps(faults))
        return 0
    sources = ["--kernel-log", str(options.kernel_log), "--rdma", str(options.rdma)]
    faults = read_faults(options.state, *sources)
    for fault in faults:
        sys.stdout.write(f"{'' if fault.is_fatal else 'noted: '}{fault}\n")
    return int(any(fault.is_fatal for fault in faults))


def _faults_here(state: Path | None, kernel_log: Path, rdma: Path) -> list[Fault]:
    seen = _read_seen(state)
    faults = [*gpu_faults(seen), *xid_faults(kernel_lines(kernel_log), time.time()), *rdma_faults(rdma, seen)]
    if state:
        with contextlib.suppress(OSError):
            descriptor = os.open(state, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(seen, file)
    return sorted(faults, key=lambda fault: not fault.is_fatal)[:MAX_FAULTS]


def _read_seen(path: Path | None) -> Seen:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return {str(name): int(count) for name, count in json.loads(path.read_text() if path else "{}").items()}
    return {}


if __name__ == "__main__":
    sys.exit(main())
