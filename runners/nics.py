"""Traffic of this machine's network interfaces, as rates; without `lo`.

What RDMA carries passes the operating system by; the counters of InfiniBand and RoCE ports tell it.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import NamedTuple

import psutil

MAX_INTERFACES = 16
"""A machine with containers has hundreds; only those with the most traffic are reported."""
_RDMA = Path("/sys/class/infiniband")
_LANES = 4
"""A port's counters count words of four bytes (InfiniBand specification, PortCounters)."""
# Host ends of the interface pairs of containers: a bridge or network card counts the same bytes.
_PAIRS = ("lo", "veth", "cali", "lxc")
_ODD = re.compile(r"[^A-Za-z0-9_.:+-]")


class Counts(NamedTuple):
    """Bytes since the start of the machine."""

    received: int
    sent: int


class Nics:
    """Turns the counters of all interfaces into bytes per second since the last call."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._counts = counts()

    def rates(self) -> dict[str, float]:
        """Return {"nic_rx_bytes_per_s/eth0": ..., "nic_tx_bytes_per_s/eth0": ...} since the last call."""
        now, current = time.monotonic(), counts()
        seconds = max(now - self._at, 1e-3)
        rates = {}
        for name, count in current.items():
            before = self._counts.get(name)
            # A new or reset interface has no rate yet.
            if before and count.received >= before.received and count.sent >= before.sent:
                rates[f"nic_rx_bytes_per_s/{name}"] = round((count.received - before.received) / seconds, 1)
                rates[f"nic_tx_bytes_per_s/{name}"] = round((count.sent - before.sent) / seconds, 1)
        self._at, self._counts = now, current
        return rates


def counts() -> dict[str, Counts]:
    """Return the counters of the busiest interfaces, by name."""
    interfaces = {}
    with contextlib.suppress(OSError, psutil.Error):
        for name, count in psutil.net_io_counters(pernic=True).items():
            if not name.startswith(_PAIRS) and count.bytes_recv + count.bytes_sent:
                interfaces[name] = Counts(count.bytes_recv, count.bytes_sent)
    interfaces |= _rdma_counts()
    busiest = sorted(interfaces, key=lambda name: sum(interfaces[name]), reverse=True)[:MAX_INTERFACES]
    return {_ODD.sub("_", name)[:32]: interfaces[name] for name in sorted(busiest)}


def _rdma_counts() -> dict[str, Counts]:
    ports = {}
    with contextlib.suppress(OSError):
        for port in sorted(_RDMA.glob("*/ports/*")):
            with contextlib.suppress(OSError, ValueError):
                received, sent = (
                    int((port / "counters" / name).read_text()) * _LANES for name in ("port_rcv_data", "port_xmit_data")
                )
                ports[f"{port.parts[-3]}:{port.name}"] = Counts(received, sent)
    return ports
