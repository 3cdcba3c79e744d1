"""What else decides the speed of a machine: kernel, NCCL, firmware, and limits of clocks and power.

A value that the machine does not state, or that only root may read, is absent.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from runners.telemetry import gpus

_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")


def conditions(root: Path = Path("/")) -> dict[str, Any]:
    """Return kernel, nccl, firmware (name -> version) and limits (name -> value in SI units) as they are now."""
    by_gpu = gpus.conditions()
    stated = {
        "kernel": platform.release(),
        "nccl": nccl_version(),
        "firmware": {**_firmware(root), **by_gpu.firmware},
        "limits": {**_limits(root), **by_gpu.limits},
    }
    return {name: value for name, value in stated.items() if value}


def nccl_version() -> str:
    """Return the version of NCCL: of the package that torch's wheels require, else of the system's library."""
    for package in _NCCL:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    name = ctypes.util.find_library("nccl")
    for directory in _LIBRARIES if name else ():
        match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", str((Path(directory) / str(name)).resolve()))
        if match:
            return match[1]
    return ""


def _firmware(root: Path) -> dict[str, str]:
    firmware = {"bios": _text(root / "sys/class/dmi/id/bios_version")}
    for line in _text(root / "proc/cpuinfo").splitlines():
        if line.startswith("microcode"):
            firmware["microcode"] = line.partition(":")[2].strip()
            break
    for path in sorted((root / "sys/class/infiniband").glob("*/fw_ver")):
        firmware[path.parent.name] = _text(path)
    return {name: version for name, version in firmware.items() if version}


def _limits(root: Path) -> dict[str, float | str]:
    cpu = root / "sys/devices/system/cpu"
    limits: dict[str, float | str] = {}
    if governor := _text(cpu / "cpu0/cpufreq/scaling_governor"):
        limits["cpu_governor"] = governor
    if (khz := _text(cpu / "cpu0/cpufreq/scaling_max_freq")).isdecimal():
        limits["cpu_clock_hz"] = float(khz) * 1000
    if turbo := _text(cpu / "intel_pstate/no_turbo"):
        limits["cpu_turbo"] = "off" if turbo == "1" else "on"
    for path in sorted((root / "sys/class/powercap").glob("intel-rapl:[0-9]/constraint_0_power_limit_uw")):
        if (microwatts := _text(path)).isdecimal():
            limits[f"cpu{path.parent.name[-1]}_power_watts"] = int(microwatts) / 1e6
    return limits


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
