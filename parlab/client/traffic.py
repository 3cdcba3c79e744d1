"""From counters of network interfaces to rates, for the client and for `runners.telemetry.nics`.

What RDMA carries passes the operating system by; the counters of InfiniBand and RoCE ports count it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Callable, NamedTuple

MAX_INTERFACES = 16
"""A machine with containers has hundreds; only those with the most traffic are reported."""
RDMA = Path("/sys/class/infiniband")
_LANES = 4
"""A port's counters count words of four bytes (InfiniBand specification, PortCounters)."""
# Host ends of the interface pairs of containers: a bridge or network card counts the same bytes.
_PAIRS = ("lo", "veth", "cali", "lxc")
_ODD = re.compile(r"[^A-Za-z0-9_.:+-]")


class Counts(NamedTuple):
    """Bytes since the start of the machine."""

    received: int
    sent: int


class Rates:
    """Turns the counters of all interfaces into bytes per second since the last call."""

    def __init__(self, counts: Callable[[], Mapping[str, Counts]]) -> None:
        """`counts` returns the counters of the interfaces that the operating system lists, by name."""
        self._read = counts
        self._at = time.monotonic()
        self._counts = self.counts()

    def counts(self) -> dict[str, Counts]:
        """Return the counters of the busiest interfaces and RDMA ports, by a name that a series may have."""
        interfaces = {
            name: count for name, count in self._read().items() if not name.startswith(_PAIRS) and sum(count) > 0
        }
        interfaces.update(_rdma_counts())
        busiest = sorted(interfaces, key=lambda name: sum(interfaces[name]), reverse=True)[:MAX_INTERFACES]
        return {_ODD.sub("_", name)[:32]: interfaces[name] for name in sorted(busiest)}

    def rates(self) -> dict[str, float]:
        """Return {"nic_rx_bytes_per_s/eth0": ..., "nic_tx_bytes_per_s/eth0": ...} since the last call."""
        now, current = time.monotonic(), self.counts()
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


def _rdma_counts() -> dict[str, Counts]:
    ports = {}
    with contextlib.suppress(OSError):
        for port in sorted(RDMA.glob("*/ports/*")):
            with contextlib.suppress(OSError, ValueError):
                received, sent = (
                    int((port / "counters" / name).read_text()) * _LANES for name in ("port_rcv_data", "port_xmit_data")
                )
                ports[f"{port.parts[-3]}:{port.name}"] = Counts(received, sent)
    return ports
