"""The GPUs of this machine through NVIDIA's management library (NVML): inventory, GPUs of a run, and counters.

Without the driver the machine has none; counters that a device does not support (MIG, small cards, permissions) are
absent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pynvml

from runners.telemetry.xid_events import XidEvents

if TYPE_CHECKING:
    from runners.config import RunConfig

EVERY_S = 1.0
ANSWER_S = 10.0
"""Maximum time by which a driver that does not answer delays a run."""

log = logging.getLogger(__name__)


def described() -> tuple[list[dict[str, Any]], str] | None:
    """List the GPUs (index, name, memory_bytes, uuid) and the version of the driver; None if NVML is not available."""
    try:
        with _library():
            devices = [_description(index) for index in range(pynvml.nvmlDeviceGetCount())]
            return devices, str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


@contextlib.contextmanager
def _library() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _description(index: int) -> dict[str, Any]:
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = None
    # Some devices share the memory of the machine and have none of their own.
    with contextlib.suppress(pynvml.NVMLError):
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(device).total)
    name, uuid = str(pynvml.nvmlDeviceGetName(device)), str(pynvml.nvmlDeviceGetUUID(device))
    return {"index": index, "name": name, "memory_bytes": memory, "uuid": uuid}


class Conditions(NamedTuple):
    """Firmware and limits of all GPUs, by name: gpu0_vbios, gpu0_power_watts."""

    firmware: dict[str, str]
    limits: dict[str, float]


_FIRMWARE: dict[str, Callable[[Any], str]] = {
    "vbios": lambda device: str(pynvml.nvmlDeviceGetVbiosVersion(device)),
    "gsp": lambda device: str(pynvml.nvmlDeviceGetGspFirmwareVersion(device)),
}
# An application clock is set by a person (nvidia-smi -ac), as is a customer boost clock (-lgc).
_LIMITS: dict[str, Callable[[Any], float]] = {
    "power_watts": lambda device: pynvml.nvmlDeviceGetEnforcedPowerLimit(device) / 1000,
    "sm_clock_hz": lambda device: pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_SM) * 1e6,
    "memory_clock_hz": lambda device: pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_MEM) * 1e6,
    "application_clock_hz": lambda device: pynvml.nvmlDeviceGetApplicationsClock(device, pynvml.NVML_CLOCK_SM) * 1e6,
    "locked_clock_hz": lambda device: pynvml.nvmlDeviceGetClock(
        device, pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_ID_CUSTOMER_BOOST_MAX
    ) * 1e6,
    "ecc": lambda device: float(pynvml.nvmlDeviceGetEccMode(device)[0]),
}  # fmt: skip


def conditions() -> Conditions:
    """Return the firmware and the limits of the GPUs as they are now; of what a device does not state, nothing.

    A process of its own reads them: a driver that hangs must not hold the caller.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # Above all the lock of the run, which this process may outlive.
            os.closerange(3, writer)
            os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
            os.write(writer, json.dumps(_conditions()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        if select.select([pipe], [], [], ANSWER_S)[0]:
            answer = pipe.read()
            os.waitpid(child, 0)
            return Conditions(*json.loads(answer)) if answer else Conditions({}, {})
    log.warning("no limits of the GPUs: their driver has not answered within %g s", ANSWER_S)
    os.kill(child, signal.SIGKILL)
    # A process that the driver holds ends only when that answers.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, os.WNOHANG)
    return Conditions({}, {})


def _conditions() -> Conditions:
    read = Conditions({}, {})
    with contextlib.suppress(pynvml.NVMLError), _library():
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            for name, version in _FIRMWARE.items():
                with contextlib.suppress(pynvml.NVMLError):
                    read.firmware[f"gpu{index}_{name}"] = version(device)
            for name, limit in _LIMITS.items():
                with contextlib.suppress(pynvml.NVMLError):
                    read.limits[f"gpu{index}_{name}"] = limit(device)
    return read


def used_by(
    config: RunConfig, gpus: Sequence[Mapping[str, Any]], environment: Mapping[str, str], nodes: int = 1
) -> list[dict[str, Any]]:
    """Return the GPUs that a run on `nodes` nodes uses on one of them, by local rank; none if it runs on the CPU. Pure.

    The order is that of the driver, which is the order of CUDA if all GPUs are of the same type.
    """
    if not config.device.may_use_gpus:
        return []
    visible = _visible(gpus, environment.get("CUDA_VISIBLE_DEVICES"))
    if config.engine.has_device_map and config.sharding.device_mapping and nodes == 1:
        numbers = [int(name[4:]) for name in config.sharding.devices if name.startswith("GPU:")]
    else:
        numbers = list(range(config.world_size // nodes))
    if config.engine.starts_its_own_ranks:
        # Its trials or program use the GPUs that there are.
        numbers = [number for number in numbers if number < len(visible)]
    return [visible[number] for number in numbers] if numbers and max(numbers) < len(visible) else []


def _visible(gpus: Sequence[Mapping[str, Any]], names: str | None) -> list[dict[str, Any]]:
    """Apply CUDA_VISIBLE_DEVICES as CUDA does: indices, prefixes of UUIDs, MIG devices, until an unknown name."""
    if names is None:
        return [dict(gpu) for gpu in gpus]
    visible: list[dict[str, Any]] = []
    for name in (part.strip() for part in names.split(",")):
        if name.startswith("MIG-"):
            visible.append({"index": None, "name": "MIG device", "memory_bytes": None, "uuid": name})
            continue
        match = next((gpu for gpu in gpus if _is_called(gpu, name)), None)
        if match is None:
            break
        visible.append(dict(match))
    return visible


def _is_called(gpu: Mapping[str, Any], name: str) -> bool:
    if name.isdecimal():
        return bool(gpu["index"] == int(name))
    return name.startswith("GPU-") and str(gpu.get("uuid", "")).startswith(name)


def _memory_used(device: Any) -> float:
    try:
        # Without the memory of the driver, as nvidia-smi shows it; older drivers report only the sum.
        return float(pynvml.nvmlDeviceGetMemoryInfo(device, pynvml.nvmlMemory_v2).used)
    except pynvml.NVMLError:
        return float(pynvml.nvmlDeviceGetMemoryInfo(device).used)


# Metric, as the reader of nvidia-smi names it -> how to read it, in SI units.
COUNTERS: dict[str, Callable[[Any], float]] = {
    "gpu_util_pct": lambda device: float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu),
    "memory_util_pct": lambda device: float(pynvml.nvmlDeviceGetUtilizationRates(device).memory),
    "gpu_mem_bytes": _memory_used,
    "power_watts": lambda device: pynvml.nvmlDeviceGetPowerUsage(device) / 1000,
    "temperature_celsius": lambda device: float(
        pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU)
    ),
    "sm_clock_hz": lambda device: pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM) * 1e6,
    "memory_clock_hz": lambda device: pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_MEM) * 1e6,
}  # fmt: skip


class Reading(NamedTuple):
    """Counters of one GPU at one time."""

    position: int
    """Index among the GPUs of the run: the rank that trains on it."""
    time: float
    values: dict[str, float]


class Watch:
    """Reads the GPUs of one run once a second, in its own thread, so that a hanging driver blocks nothing else."""

    def __init__(self, uuids: Sequence[str], clock: Callable[[], float]) -> None:
        self._uuids = list(uuids)
        self._clock = clock
        self._stop = threading.Event()
        self._latest: list[Reading] = []
        self._xids: list[tuple[int, int]] = []
        # Unsupported counters are read only once.
        self._absent: set[tuple[int, str]] = set()

    def start(self) -> None:
        """Start the thread, if there are GPUs."""
        if self._uuids:
            threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def stop(self) -> None:
        """Stop after the current reading, without waiting for it."""
        self._stop.set()

    def take(self) -> list[Reading]:
        """Return the readings since the last call, one of each GPU that answered."""
        latest, self._latest = self._latest, []
        return latest

    def take_xids(self) -> list[tuple[int, int]]:
        """Return (position, XID) of the errors of GPUs since the last call."""
        taken, self._xids = self._xids, []
        return taken

    def _run(self) -> None:
        try:
            with _library():
                devices = {index: device for index, uuid in enumerate(self._uuids) if (device := _device(uuid))}
                events = XidEvents(devices)
                while devices and not self._stop.is_set():
                    self._latest = [self._device_reading(position, device) for position, device in devices.items()]
                    self._xids += events.take()
                    self._stop.wait(EVERY_S)
                self._xids += events.take()
                events.close()
        except pynvml.NVMLError as error:
            log.warning("no telemetry of the GPUs: %s", error)

    def _device_reading(self, position: int, device: Any) -> Reading:
        values = {}
        for name, read in COUNTERS.items():
            if (position, name) in self._absent:
                continue
            try:
                values[name] = read(device)
            except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission):
                self._absent.add((position, name))
            except pynvml.NVMLError:
                continue  # the device may answer again later
        return Reading(position, self._clock(), values)


def _device(uuid: str) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        log.warning("no telemetry of GPU %s: %s", uuid, error)
        return None
