"""XIDs of the GPUs of a run while it runs, from NVML's events: unlike the kernel's log they need no root."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import pynvml

from runners.telemetry.faults import FATAL_XIDS, NOTED_XIDS

MOST = 100
"""XIDs that are read at once; a broken GPU can report them without end."""

log = logging.getLogger(__name__)


class Xid(NamedTuple):
    """An XID of the GPU of a rank."""

    rank: int
    number: int

    @property
    def is_fatal(self) -> bool:
        return self.number in FATAL_XIDS

    def __str__(self) -> str:
        meaning = FATAL_XIDS.get(self.number) or NOTED_XIDS.get(self.number) or "see NVIDIA's catalogue of XIDs"
        return f"GPU of rank {self.rank}: XID {self.number}: {meaning}"


class XidEvents:
    """The XIDs of some GPUs, by the position of each."""

    def __init__(self, devices: Mapping[int, Any]) -> None:
        self._positions: dict[str, int] = {}
        self._events: Any = None
        try:
            events = pynvml.nvmlEventSetCreate()
            for position, device in devices.items():
                pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
                self._positions[str(pynvml.nvmlDeviceGetUUID(device))] = position
            self._events = events
        except pynvml.NVMLError as error:
            log.info("no events of XIDs: %s", error)

    def take(self) -> list[tuple[int, int]]:
        """Return (position, XID) of what has happened since the last call."""
        found: list[tuple[int, int]] = []
        while self._events is not None and len(found) < MOST:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                position = self._positions.get(str(pynvml.nvmlDeviceGetUUID(event.device)))
            except pynvml.NVMLError_Timeout:
                break
            except pynvml.NVMLError:
                self._events = None
                break
            if position is not None:
                found.append((position, int(event.eventData)))
        return found

    def close(self) -> None:
        if self._events is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._events)
