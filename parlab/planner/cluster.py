"""Where a job runs: devices, the links inside a node and those between nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .hardware import Gpu, devices, find, find_processor

_GBIT = 1e9 / 8
_KNOWN = "V100, A100, H100, H200, B200, L40S, MI250, MI300X or CPU"


@dataclass(frozen=True)
class Link:
    """What carries messages: bytes/s in one direction and seconds until the first byte arrives."""

    bandwidth: float
    latency_s: float
    is_measured: bool = False
    """The bandwidth is what messages were measured, or the link was shaped, to get; otherwise it is nominal."""

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth {self.bandwidth} bytes/s carries nothing; use more than 0")
        if not 0 <= self.latency_s <= 60:
            raise ValueError(f"latency_s {self.latency_s} is no delay of a link; use 0 to 60")


@dataclass(frozen=True)
class Cluster:
    """Nodes of one kind of device. `inside` is one device's link in a node; `between` is one whole node's link."""

    device: Gpu
    gpus: int
    gpus_per_node: int
    inside: Link
    between: Link
    name: str = ""
    """Whose cluster; a calibration is made for one."""
    is_between_assumed: bool = False
    """The bandwidth between nodes is what such nodes usually have; nobody gave it."""

    def __post_init__(self) -> None:
        for field in ("gpus", "gpus_per_node"):
            value = getattr(self, field)
            if not 1 <= value <= 2**20:
                raise ValueError(f"{field} {value} is no cluster; use 1 to {2**20}")
        if not self.device.memory_bytes > 0:
            raise ValueError(f"memory_bytes {self.device.memory_bytes} of {self.device.name} holds nothing; use > 0")

    @property
    def nodes(self) -> int:
        """Nodes, a partial one counted whole."""
        return -(-self.gpus // self.gpus_per_node)


_USUAL: dict[str, tuple[float, float]] = {
    "T4": (16e9, 50),
    "L4": (16e9, 100),
    "V100": (150e9, 100),
    "A100": (300e9, 1600),
    "H100": (450e9, 3200),
    "H200": (450e9, 3200),
    "B200": (900e9, 3200),
    "L40S": (32e9, 400),
    "MI250": (200e9, 1600),
    "MI250X": (200e9, 800),
    "MI300X": (448e9, 3200),
    "CPU": (2e9, 10),
}
"""First word of a device -> bytes/s of its links inside a node in one direction (NVLink, Infinity Fabric, PCIe, shared
memory; data sheets), and Gbit/s of the network of a node as such nodes are usually sold."""


def device(name: str) -> Gpu:
    """Look up a device; raises ValueError naming those that are known."""
    named = {one.name.lower(): one for one in devices()}
    found = named.get(name.strip().lower()) or find(name) or find_processor(name)
    if found is None:
        raise ValueError(f"gpu {name!r} is not in the catalogue; use {_KNOWN}, or add it in the admin")
    return found


def cluster(
    gpu: str | Gpu,
    gpus: int,
    gpus_per_node: int = 8,
    *,
    inter_node_gbit_s: float | None = None,
    latency_s: float | None = None,
    is_measured: bool = False,
    name: str = "",
) -> Cluster:
    """Describe a cluster; what is not given is as such nodes usually have it. Gbit/s are of one whole node."""
    found = device(gpu) if isinstance(gpu, str) else gpu
    inside, between = _USUAL.get(found.name.split()[0], (32e9, 100))
    inside, between = found.link_bandwidth or inside, found.node_gbit_s or between
    if inter_node_gbit_s is not None and not 0 < inter_node_gbit_s <= 1e6:
        raise ValueError(f"inter_node_gbit_s {inter_node_gbit_s} is no network; use more than 0 and at most 1e6")
    return Cluster(
        found,
        gpus,
        gpus_per_node,
        Link(inside, 50e-6 if found.is_cpu else 8e-6),
        Link((inter_node_gbit_s or between) * _GBIT, 20e-6 if latency_s is None else latency_s, is_measured),
        name,
        inter_node_gbit_s is None,
    )


def with_gpus(where: Cluster, gpus: int) -> Cluster:
    """The same cluster with another number of devices."""
    return replace(where, gpus=gpus)


def gbit_s(text: str | None) -> float | None:
    """Read the bandwidth of a node from words: "8x200Gb HDR IB" 1600, "NDR 400Gb x8" 3200, "800Gbps" 800.

    A measured figure goes before a nominal one, a range is its middle. None where the words name no figure.
    """
    if not text:
        return None
    words = text.lower()
    measured = re.search(r"measured[^;0-9]*([0-9.]+)\s*-\s*([0-9.]+)\s*gb", words)
    if measured:
        return (float(measured[1]) + float(measured[2])) / 2
    one = re.search(r"(?:([0-9]+)\s*x\s*)?([0-9.]+)\s*gb[a-z/]*(?:\s*x\s*([0-9]+))?", words)
    if not one:
        return None
    return float(one[2]) * int(one[1] or 1) * int(one[3] or 1)
