"""A management library as a machine with GPUs has it, put before the real one: what stands in FAKE_GPUS, as JSON.

[{"name", "uuid", "memory": bytes, "lacks": [counters without support]}]; the driver hangs where FAKE_HANGS is set. Of
faults: "ecc_errors", "remapped": [corrected, uncorrected, is pending, has failed], "links": [is active],
"link_recoveries", "is_lost", "xids": [numbers], which happen once.
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any

Gpu = dict[str, Any]

NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = 0
NVML_CLOCK_MEM = 2
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_NVLINK_ERROR_DL_RECOVERY = 1
nvmlEventTypeXidCriticalError = 8
NVML_CLOCK_ID_CUSTOMER_BOOST_MAX = 3
nvmlMemory_v2 = 0x2000028


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_FunctionNotFound(NVMLError):
    pass


class NVMLError_NoPermission(NVMLError):
    pass


class NVMLError_NotFound(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_Timeout(NVMLError):
    pass


def _gpus() -> list[Gpu]:
    gpus: list[Gpu] = json.loads(os.environ.get("FAKE_GPUS", "[]"))
    return gpus


def nvmlInit() -> None:
    if "FAKE_GPUS" not in os.environ:
        raise NVMLError_LibraryNotFound
    if "FAKE_HANGS" in os.environ:
        time.sleep(3600)


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return "575.57.08"


def nvmlDeviceGetCount() -> int:
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index: int) -> Gpu:
    gpu = _gpus()[index]
    if gpu.get("is_lost"):
        raise NVMLError_GpuIsLost
    return gpu


def nvmlDeviceGetHandleByUUID(uuid: str) -> Gpu:
    for gpu in _gpus():
        if gpu["uuid"] == uuid:
            return gpu
    raise NVMLError_NotFound


def nvmlDeviceGetName(gpu: Gpu) -> str:
    return str(gpu["name"])


def nvmlDeviceGetUUID(gpu: Gpu) -> str:
    return str(gpu["uuid"])


def _needs(gpu: Gpu, counter: str) -> None:
    if counter in gpu.get("lacks", []):
        raise NVMLError_NotSupported
    if counter in gpu.get("loses", []):
        raise NVMLError_GpuIsLost


def nvmlDeviceGetMemoryInfo(gpu: Gpu, version: int | None = None) -> SimpleNamespace:
    _needs(gpu, "memory")
    reserved = 0 if version else 500 << 20
    return SimpleNamespace(total=gpu["memory"], used=(3 << 30) + reserved)


def nvmlDeviceGetUtilizationRates(gpu: Gpu) -> SimpleNamespace:
    _needs(gpu, "utilization")
    return SimpleNamespace(gpu=97, memory=41)


def nvmlDeviceGetPowerUsage(gpu: Gpu) -> int:
    _needs(gpu, "power")
    return 412_345


def nvmlDeviceGetTemperature(gpu: Gpu, sensor: int) -> int:
    _needs(gpu, "temperature")
    return 61


def nvmlDeviceGetClockInfo(gpu: Gpu, kind: int) -> int:
    _needs(gpu, "clocks")
    return 1980 if kind == NVML_CLOCK_SM else 3201


def _set(gpu: Gpu, name: str) -> Any:
    """Return a setting of FAKE_GPUS; a device without it does not support it."""
    if name not in gpu:
        raise NVMLError_NotSupported
    return gpu[name]


def nvmlDeviceGetVbiosVersion(gpu: Gpu) -> str:
    return str(_set(gpu, "vbios"))


def nvmlDeviceGetGspFirmwareVersion(gpu: Gpu) -> str:
    return str(_set(gpu, "gsp"))


def nvmlDeviceGetEnforcedPowerLimit(gpu: Gpu) -> int:
    return int(_set(gpu, "power_limit_mw"))


def nvmlDeviceGetMaxClockInfo(gpu: Gpu, kind: int) -> int:
    return int(_set(gpu, "memory_mhz" if kind == NVML_CLOCK_MEM else "sm_mhz"))


def nvmlDeviceGetApplicationsClock(gpu: Gpu, _kind: int) -> int:
    return int(_set(gpu, "application_mhz"))


def nvmlDeviceGetClock(gpu: Gpu, _kind: int, _limit: int) -> int:
    return int(_set(gpu, "locked_mhz"))


def nvmlDeviceGetEccMode(gpu: Gpu) -> list[int]:
    return [int(_set(gpu, "ecc")), 0]


def nvmlDeviceGetTotalEccErrors(gpu: Gpu, _kind: int, _counter: int) -> int:
    return int(_set(gpu, "ecc_errors"))


def nvmlDeviceGetRemappedRows(gpu: Gpu) -> list[int]:
    return list(_set(gpu, "remapped"))


def nvmlDeviceGetNvLinkState(gpu: Gpu, link: int) -> int:
    links = _set(gpu, "links")
    if link >= len(links):
        raise NVMLError_NotSupported
    return int(links[link])


def nvmlDeviceGetNvLinkErrorCounter(gpu: Gpu, _link: int, _counter: int) -> int:
    return int(_set(gpu, "link_recoveries"))


def nvmlEventSetCreate() -> list[SimpleNamespace]:
    return []


def nvmlDeviceRegisterEvents(gpu: Gpu, _types: int, events: list[SimpleNamespace]) -> None:
    events += [SimpleNamespace(device=gpu, eventData=number) for number in gpu.get("xids", [])]


def nvmlEventSetWait_v2(events: list[SimpleNamespace], _timeout_ms: int) -> SimpleNamespace:
    if not events:
        raise NVMLError_Timeout
    return events.pop(0)


def nvmlEventSetFree(events: list[SimpleNamespace]) -> None:
    events.clear()
