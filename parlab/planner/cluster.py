"""The hardware a job runs on: devices, the links inside a node and the links between nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .hardware import Gpu, devices, find, find_processor

_GBIT = 1e9 / 8
_DEVICE_FAMILIES = "V100, A100, H100, H200, B200, L40S, MI250, MI300X or CPU"


@dataclass(frozen=True)
class Link:
    """A link: bandwidth in one direction (bytes/s) and latency until the first byte arrives (s)."""

    bandwidth: float
    latency_s: float
    is_measured: bool = False
    """The bandwidth was measured, or set by traffic shaping; otherwise it is nominal."""

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth {self.bandwidth} bytes/s is out of range; use more than 0")
        if not 0 <= self.latency_s <= 60:
            raise ValueError(f"latency_s {self.latency_s} is out of range; use 0 to 60")


@dataclass(frozen=True)
class Cluster:
    """Nodes with one kind of device. `inside` is the link of a device in its node, `between` that of a whole node."""

    device: Gpu
    gpus: int
    gpus_per_node: int
    inside: Link
    between: Link
    name: str = ""
    """Name of the cluster; each calibration is for one cluster."""
    is_between_assumed: bool = False
    """The bandwidth between nodes was not specified; it is the usual value for such nodes."""

    def __post_init__(self) -> None:
        for field in ("gpus", "gpus_per_node"):
            value = getattr(self, field)
            if not 1 <= value <= 2**20:
                raise ValueError(f"{field} {value} is out of range; use 1 to {2**20}")
        if not self.device.memory_bytes > 0:
            raise ValueError(f"memory_bytes {self.device.memory_bytes} of {self.device.name} is out of range; use > 0")

    @property
    def nodes(self) -> int:
        """Number of nodes, rounded up."""
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
"""First word of a device name -> bandwidth of its links inside a node in one direction (bytes/s; NVLink, Infinity
Fabric, PCIe or shared memory, from data sheets) and the usual network bandwidth of such a node (Gbit/s)."""


def device(name: str) -> Gpu:
    """Return the device of that name. Raises ValueError for an unknown device; the message lists the known ones."""
    by_name = {gpu.name.lower(): gpu for gpu in devices()}
    gpu = by_name.get(name.strip().lower()) or find(name) or find_processor(name)
    if gpu is None:
        raise ValueError(f"gpu {name!r} is not in the catalogue; use {_DEVICE_FAMILIES}, or add it in the admin")
    return gpu


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
    """Return a cluster of `gpus` devices.

    `inter_node_gbit_s` is the network bandwidth of a whole node. Unspecified links get the usual values for such nodes.
    Raises ValueError for an unknown device or a value out of range.
    """
    device_model = device(gpu) if isinstance(gpu, str) else gpu
    inside, between = _USUAL.get(device_model.name.split()[0], (32e9, 100))
    inside, between = device_model.link_bandwidth or inside, device_model.node_gbit_s or between
    if inter_node_gbit_s is not None and not 0 < inter_node_gbit_s <= 1e6:
        raise ValueError(f"inter_node_gbit_s {inter_node_gbit_s} is out of range; use more than 0 and at most 1e6")
    return Cluster(
        device_model,
        gpus,
        gpus_per_node,
        Link(inside, 50e-6 if device_model.is_cpu else 8e-6),
        Link((inter_node_gbit_s or between) * _GBIT, 20e-6 if latency_s is None else latency_s, is_measured),
        name,
        inter_node_gbit_s is None,
    )


def with_gpus(cluster: Cluster, gpus: int) -> Cluster:
    """Return the same cluster with another number of devices."""
    return replace(cluster, gpus=gpus)


def gbit_s(text: str | None) -> float | None:
    """Return the bandwidth of a node from a description: "8x200Gb HDR IB" 1600, "NDR 400Gb x8" 3200, "800Gbps" 800.

    A measured figure takes precedence over a nominal one; a range counts as its midpoint. None without a figure.
    """
    if not text:
        return None
    lowered = text.lower()
    measured = re.search(r"measured[^;0-9]*([0-9.]+)\s*-\s*([0-9.]+)\s*gb", lowered)
    if measured:
        return (float(measured[1]) + float(measured[2])) / 2
    nominal = re.search(r"(?:([0-9]+)\s*x\s*)?([0-9.]+)\s*gb[a-z/]*(?:\s*x\s*([0-9]+))?", lowered)
    if not nominal:
        return None
    return float(nominal[2]) * int(nominal[1] or 1) * int(nominal[3] or 1)
