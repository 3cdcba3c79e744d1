"""NVIDIA's management library (NVML) through ctypes: counters of GPUs, named as in `runners/telemetry/gpus.py`.

Without the driver there are no GPUs; counters that a device does not support are left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

_SUCCESS = 0
# What a device will never support is asked for only once: not supported, no permission, function not found.
_NEVER = (3, 4, 13)
_TEMPERATURE_GPU = 0
_CLOCK_SM, _CLOCK_MEM = 1, 2
_TEXT_BYTES = 96
_loading = threading.Lock()


class Utilization(ctypes.Structure):
    """nvmlUtilization_t, in per cent."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Memory(ctypes.Structure):
    """nvmlMemory_v2_t, in bytes; `used` is without the memory of the driver, as nvidia-smi shows it."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class Memory1(ctypes.Structure):
    """nvmlMemory_t of older drivers."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


MEMORY_VERSION = ctypes.sizeof(Memory) | 2 << 24


class Device:
    """One GPU."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._absent: set[str] = set()

    def description(self) -> dict[str, Any]:
        """Return name, memory (bytes) and UUID, as far as the driver states them."""
        facts: dict[str, Any] = {"name": self._text("nvmlDeviceGetName"), "uuid": self._text("nvmlDeviceGetUUID")}
        memory = Memory1()
        if self._call("nvmlDeviceGetMemoryInfo", ctypes.byref(memory)) == _SUCCESS:
            facts["memory_bytes"] = int(memory.total)
        return {name: value for name, value in facts.items() if value}

    def counters(self) -> dict[str, float]:
        """Read all counters that the device supports, in SI units."""
        numbers: dict[str, float] = {}
        for name, read in _GROUPS.items():
            if name not in self._absent:
                code, values = read(self)
                if code == _SUCCESS:
                    numbers.update(values)
                elif code in _NEVER:
                    self._absent.add(name)
        return numbers

    def _utilization(self) -> tuple[int, dict[str, float]]:
        value = Utilization()
        code = self._call("nvmlDeviceGetUtilizationRates", ctypes.byref(value))
        return code, {"gpu_util_pct": float(value.gpu), "memory_util_pct": float(value.memory)}

    def _memory(self) -> tuple[int, dict[str, float]]:
        value = Memory(version=MEMORY_VERSION)
        code = self._call("nvmlDeviceGetMemoryInfo_v2", ctypes.byref(value))
        if code == _SUCCESS:
            return code, {"gpu_mem_bytes": float(value.used)}
        older = Memory1()
        code = self._call("nvmlDeviceGetMemoryInfo", ctypes.byref(older))
        return code, {"gpu_mem_bytes": float(older.used)}

    def _counter(self, metric: str, scale: float, function: str, *arguments: int) -> tuple[int, dict[str, float]]:
        value = ctypes.c_uint()
        code = self._call(function, *(ctypes.c_int(argument) for argument in arguments), ctypes.byref(value))
        return code, {metric: value.value * scale}

    def _text(self, function: str) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._call(function, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode("utf-8", "replace") if code == _SUCCESS else ""

    def _call(self, function: str, *arguments: Any) -> int:
        try:
            return int(getattr(self._library, function)(self._handle, *arguments))
        except AttributeError:
            return 13  # the driver is older than the function


_GROUPS: dict[str, Callable[[Device], tuple[int, dict[str, float]]]] = {
    "utilization": Device._utilization,
    "memory": Device._memory,
    "power": lambda device: device._counter("power_watts", 1e-3, "nvmlDeviceGetPowerUsage"),
    "temperature": lambda device: device._counter(
        "temperature_celsius", 1.0, "nvmlDeviceGetTemperature", _TEMPERATURE_GPU
    ),
    "sm_clock": lambda device: device._counter("sm_clock_hz", 1e6, "nvmlDeviceGetClockInfo", _CLOCK_SM),
    "memory_clock": lambda device: device._counter("memory_clock_hz", 1e6, "nvmlDeviceGetClockInfo", _CLOCK_MEM),
}


class Library:
    """NVML, initialised."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def count(self) -> int:
        """Return the number of GPUs."""
        number = ctypes.c_uint()
        return number.value if self._library.nvmlDeviceGetCount_v2(ctypes.byref(number)) == _SUCCESS else 0

    def driver(self) -> str:
        """Return the version of the driver."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._library.nvmlSystemGetDriverVersion(buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode("utf-8", "replace") if code == _SUCCESS else ""

    def device(self, name: str) -> Device | None:
        """Return a GPU by index or UUID; None if there is no such GPU."""
        handle = ctypes.c_void_p()
        if name.isdecimal():
            code = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            code = self._library.nvmlDeviceGetHandleByUUID(ctypes.c_char_p(name.encode()), ctypes.byref(handle))
        return Device(self._library, handle) if code == _SUCCESS else None


@contextlib.contextmanager
def opened(load: Callable[[str], Any] = ctypes.CDLL) -> Iterator[Library | None]:
    """Initialise NVML for a block; None where there is no driver."""
    with _loading:
        try:
            library = load("libnvidia-ml.so.1")
            is_ready = library.nvmlInit_v2() == _SUCCESS
        except (OSError, AttributeError):
            library, is_ready = None, False
    if library is None or not is_ready:
        yield None
        return
    try:
        yield Library(library)
    finally:
        library.nvmlShutdown()


def count() -> int:
    """Return the number of GPUs of this machine."""
    with opened() as library:
        return library.count() if library is not None else 0
