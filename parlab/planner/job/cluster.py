"""The hardware a job runs on: devices, the links inside a node and the links between nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from parlab.planner.requests.fields import nearest_name

from .hardware import Gpu, devices, find, find_processor

_GBIT = 1e9 / 8


@dataclass(frozen=True)
class Link:
    """A link: bandwidth in one direction (bytes/s) and latency until the first byte arrives (s)."""

    bandwidth: float
    latency_s: float
    is_measured: bool = False
    """The bandwidth was measured, or set by traffic shaping; otherwise it is nominal."""
    exchange: float | None = None
    """Measured bandwidth of an all-to-all of all devices of a node (bytes/s that a device sends to others)."""

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
    nvlink_domain: int = 0
    """Devices connected by the links of `inside`; 0: those of a node."""
    oversubscription: float = 1.0
    """Bandwidth of the nodes below a leaf switch relative to that of its links to other switches."""
    is_rail_optimized: bool = False
    """Devices of equal rank in their nodes share a leaf switch, so that a switch reaches more nodes."""

    def __post_init__(self) -> None:
        for field in ("gpus", "gpus_per_node"):
            value = getattr(self, field)
            if not 1 <= value <= 2**20:
                raise ValueError(f"{field} {value} is out of range; use 1 to {2**20}")
        if not 1 <= self.oversubscription <= 64:
            raise ValueError(f"oversubscription {self.oversubscription:g} is out of range; use 1 to 64")
        if not self.device.memory_bytes > 0:
            raise ValueError(f"memory_bytes {self.device.memory_bytes} of {self.device.name} is out of range; use > 0")

    @property
    def nodes(self) -> int:
        """Number of nodes, rounded up."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def domain(self) -> int:
        """Number of devices connected by the links of `inside`."""
        return max(self.nvlink_domain, self.gpus_per_node)

    @property
    def domains(self) -> int:
        """Number of groups of devices with fast links among them, rounded up."""
        return -(-self.gpus // self.domain)

    @property
    def leaf_nodes(self) -> int:
        """Nodes that one leaf switch connects; one of each node's devices per switch if rail-optimised."""
        return _LEAF_PORTS if self.is_rail_optimized else max(1, _LEAF_PORTS // self.gpus_per_node)


_LEAF_PORTS = 32
"""Ports of a leaf switch to nodes: half of 64 (NVIDIA Quantum-2 QM9700, as in DGX SuperPOD)."""


class Fabric(NamedTuple):
    """The usual links of a kind of device."""

    link: float
    """Bandwidth of a device inside its domain, one direction (bytes/s): NVLink, PCIe, shared memory."""
    gbit_s: float
    """Network bandwidth of one device (Gbit/s)."""
    domain: int = 8
    """Devices that these links connect; more than a node in racks with NVLink switches."""


_USUAL: dict[str, Fabric] = {
    "T4": Fabric(16e9, 6.25),
    "L4": Fabric(16e9, 12.5),
    "V100": Fabric(150e9, 12.5),
    "A100": Fabric(300e9, 200),
    "A800": Fabric(200e9, 200),
    "H100": Fabric(450e9, 400),
    "H800": Fabric(200e9, 400),
    "H20": Fabric(450e9, 400),
    "H200": Fabric(450e9, 400),
    "GH200": Fabric(450e9, 400, 32),
    "B200": Fabric(900e9, 400),
    "B300": Fabric(900e9, 800),
    "GB200": Fabric(900e9, 400, 72),
    "GB300": Fabric(900e9, 800, 72),
    "L40S": Fabric(32e9, 50),
    "MI250": Fabric(200e9, 200),
    "MI250X": Fabric(200e9, 100),
    "MI300X": Fabric(448e9, 400),
    "MI325X": Fabric(448e9, 400),
    "MI350X": Fabric(538e9, 400),
    "MI355X": Fabric(538e9, 400),
    "TPU": Fabric(600e9, 25, 8960),
    "CPU": Fabric(2e9, 1.25),
}
"""First word of a device name -> its usual links, from data sheets. Nodes have 8 devices unless stated otherwise."""
_OTHER = Fabric(32e9, 12.5)
_NODE = 8


_HOST_BYTES_S = {"V100": 12e9, "T4": 12e9, "A100": 25e9, "A800": 25e9, "GH200": 400e9, "GB200": 200e9, "GB300": 200e9}
_OTHER_HOST_BYTES_S = 50e9


def host_bandwidth(gpu: Gpu) -> float:
    """Return the bandwidth from the processor to a device (bytes/s): measured, or usual for PCIe or NVLink-C2C."""
    return gpu.host_bandwidth or _HOST_BYTES_S.get(gpu.name.split()[0], _OTHER_HOST_BYTES_S)


def device(name: str) -> Gpu:
    """Return the device of that name. Raises ValueError for an unknown device; the message lists the known ones."""
    by_name = {gpu.name.lower(): gpu for gpu in devices()}
    gpu = by_name.get(name.strip().lower()) or find(name) or find_processor(name)
    if gpu is None:
        raise ValueError(unknown_device(name, [listed.name for listed in devices()]))
    return gpu


def unknown_device(name: str, names: Sequence[str]) -> str:
    """Return the error message for an unknown device, with the nearest of `names` and how to add one."""
    nearest = nearest_name(name, names)
    hint = f"did you mean {nearest}? " if nearest else ""
    remedy = f"use one of {', '.join(names)}, or add it in the admin (Devices)"
    return f"gpu {name[:80]} is not in the device catalogue; {hint}{remedy}"


def cluster(
    gpu: str | Gpu,
    gpus: int,
    gpus_per_node: int = 8,
    *,
    inter_node_gbit_s: float | None = None,
    link_gb_s: float | None = None,
    latency_s: float | None = None,
    is_measured: bool = False,
    name: str = "",
    nvlink_domain: int | None = None,
    oversubscription: float = 1.0,
    is_rail_optimized: bool = False,
) -> Cluster:
    """Return a cluster of `gpus` devices.

    `inter_node_gbit_s` is the network bandwidth of a whole node, `link_gb_s` that of a device inside its node in one
    direction (GB/s); `nvlink_domain` the number of devices that fast links
    connect, at least those of a node. Unspecified links get the usual values for such nodes.
    Raises ValueError for an unknown device or a value out of range.
    """
    device_model = device(gpu) if isinstance(gpu, str) else gpu
    usual = _USUAL.get(device_model.name.split()[0], _OTHER)
    # A node of fewer devices than usual keeps its network cards; in a rack each device has its own.
    cards = gpus_per_node if usual.domain > _NODE else max(_NODE, gpus_per_node)
    between = device_model.node_gbit_s or usual.gbit_s * cards
    if inter_node_gbit_s is not None and not 0 < inter_node_gbit_s <= 1e6:
        raise ValueError(f"inter_node_gbit_s {inter_node_gbit_s} is out of range; use more than 0 and at most 1e6")
    if link_gb_s is not None and not 0 < link_gb_s <= 1e5:
        raise ValueError(f"link_gb_s {link_gb_s} is out of range; use more than 0 and at most 1e5")
    link = link_gb_s * 1e9 if link_gb_s else device_model.link_bandwidth or usual.link
    return Cluster(
        device_model,
        gpus,
        gpus_per_node,
        Link(link, 50e-6 if device_model.is_cpu else 8e-6),
        Link((inter_node_gbit_s or between) * _GBIT, 20e-6 if latency_s is None else latency_s, is_measured),
        name,
        inter_node_gbit_s is None,
        max(gpus_per_node, nvlink_domain or (usual.domain if usual.domain > _NODE else 1)),
        oversubscription,
        is_rail_optimized,
    )


def with_gpus(cluster: Cluster, gpus: int) -> Cluster:
    """Return the same cluster with another number of devices."""
    return replace(cluster, gpus=gpus)


_FIGURE = r"([0-9]+(?:\.[0-9]+)?)"


def gbit_s(text: str | None) -> float | None:
    """Return the bandwidth of a node from a description, in Gbit/s.

    "8x200Gb HDR IB" is 1600, "NDR 400Gb x8" 3200, "800Gbps" 800, "50 GB/s" 400. A measured figure takes precedence over
    a nominal one; a range counts as its midpoint. None without a figure.
    """
    if not text:
        return None
    measured = re.search(rf"(?i:measured)[^;0-9]*{_FIGURE}\s*-\s*{_FIGURE}\s*(GB|(?i:gb))", text)
    if measured:
        return (float(measured[1]) + float(measured[2])) / 2 * _bits(measured[3])
    nominal = re.search(rf"(?:([0-9]+)\s*[xX]\s*)?{_FIGURE}\s*(GB|(?i:gb))[a-zA-Z/]*(?:\s*[xX]\s*([0-9]+))?", text)
    if not nominal:
        return None
    return float(nominal[2]) * int(nominal[1] or 1) * int(nominal[4] or 1) * _bits(nominal[3])


def _bits(unit: str) -> int:
    """Return the Gbit of a unit: 8 for gigabytes, which alone have two capital letters."""
    return 8 if unit == "GB" else 1
