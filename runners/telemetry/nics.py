"""Traffic of this machine's network interfaces, as rates; without `lo`."""

from __future__ import annotations

import contextlib

import psutil

from parlab.client.traffic import Counts, Rates


def nic_rates() -> Rates:
    """Return the rates of this machine's interfaces."""
    return Rates(_counts)


def _counts() -> dict[str, Counts]:
    with contextlib.suppress(OSError, psutil.Error):
        counters = psutil.net_io_counters(pernic=True)
        return {name: Counts(count.bytes_recv, count.bytes_sent) for name, count in counters.items()}
    return {}
