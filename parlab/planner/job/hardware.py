"""A catalogue of GPUs: peak FLOP/s by precision from data sheets, and measured throughput of matrix products.

A device outside the catalogue has no peak: a missing peak is better than a wrong one. CPU data sheets state no FLOP/s,
so a node measures the throughput of its matrix products instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

_TERA = 1e12
_SIZE = re.compile(r"([0-9]+) *gi?b\b")
"""A memory size in a device name: 80GB, 80 GB, 80GiB."""
_GB = 1 << 30
"""Data sheets print GB of memory but mean GiB, as drivers report it."""


class Peak(NamedTuple):
    """Dense FLOP/s of one device in one precision, and the source of the figure."""

    flops_per_s: float
    source: str


@dataclass(frozen=True)
class Gpu:
    """One device: memory in bytes, peak FLOP/s without sparsity, bandwidths in bytes/s."""

    name: str
    memory_bytes: int
    peak_flops: Mapping[str, float] = field(hash=False)
    """Precision (fp32, tf32, fp16, bf16, fp8, fp4) -> FLOP/s of the data sheet."""
    memory_bandwidth: float
    source: str
    matmul_ceiling_flops: float | None = None
    """Highest measured FLOP/s of large bf16 matrix products (Bekman, Machine Learning Engineering, 2024, maximum
    achievable matmul FLOPS); None without a measurement. V100: fp16, Markidis et al. 2018, section V. MI300X, MI325X:
    AMD, Measuring Max-Achievable FLOPs, part 2, 2025."""

    link_bandwidth: float | None = None
    """Bandwidth of its links inside a node in one direction (bytes/s); None: the usual value in `planner.cluster`."""
    node_gbit_s: float | None = None
    """Network bandwidth of a node with such devices (Gbit/s); None: the usual value in `planner.cluster`."""
    attention_share: float | None = None
    """Measured share of the ceiling that long fused attention reaches; None: that of the published kernels."""
    host_bandwidth: float | None = None
    """Measured bandwidth from the memory of the host (bytes/s); None: the usual value in `planner.cluster`."""

    @property
    def is_cpu(self) -> bool:
        """The device is a process on a processor: its communication and its computation compete for the same cores."""
        return self.name.startswith("CPU")

    def peak(self, precision: str) -> Peak | None:
        """Return the peak in a precision; None if the device has no units for that precision."""
        flops = self.peak_flops.get(self.units(precision))
        return None if flops is None else Peak(flops, f"{self.name}, {self.source}")

    @staticmethod
    def units(precision: str) -> str:
        """Return the key of `peak_flops` whose matrix units compute in a precision."""
        return _UNITS.get(precision, precision)


_UNITS = {"mxfp8": "fp8", "nvfp4": "fp4"}
"""Block-scaled formats run on the matrix units of the plain ones."""


def _peaks(**tera: float) -> dict[str, float]:
    return {precision: flops * _TERA for precision, flops in tera.items()}


_V100 = "NVIDIA Tesla V100 data sheet, 2020"
_V100_MATMUL = 83 * _TERA
_V100_SXM = _peaks(fp16=125, fp32=15.7)
_V100_PCIE = _peaks(fp16=112, fp32=14)
_A100 = "NVIDIA A100 Tensor Core GPU data sheet, 2021"
_A100_PEAKS = _peaks(fp16=312, bf16=312, tf32=156, fp32=19.5)
_A100_MATMUL = 271 * _TERA
_H100 = "NVIDIA H100 Tensor Core GPU data sheet, 2023, without sparsity"
_A800 = "NVIDIA A800 data sheet, 2022: an A100 with NVLink of 400 GB/s"
_H800 = "NVIDIA H800 data sheet, 2023, without sparsity: an H100 with NVLink of 400 GB/s"
_H20 = "NVIDIA H20 data sheet, 2023, without sparsity"
_H100_96 = "torchtitan, docs/performance.md, 2024: H100 of 500 W, HBM2e; ceiling: that of 700 W times (500/700)^0.5"
_GB200 = "NVIDIA GB200 NVL72 data sheet, 2024, without sparsity; ceiling: 0.74 of the peak, as clocks follow 1200 W"
_GB300 = "NVIDIA GB300 NVL72 data sheet, 2025, without sparsity; ceiling: that of GB200 times 1400/1200 W"
_B300 = "NVIDIA HGX B300 data sheet, 2025, per GPU, without sparsity"
_HOPPER_SXM = _peaks(fp8=1979, fp16=989.4, bf16=989.4, tf32=494.7, fp32=66.9)

# Lower-case words that a device name must all contain -> the device. The first match counts, so a longer key precedes
# the shorter one that it extends.
_CATALOGUE: dict[str, Gpu] = {
    "v100 pcie 32gb": Gpu("V100 PCIe 32 GB", 32 * _GB, _V100_PCIE, 900e9, _V100),
    "v100 pcie": Gpu("V100 PCIe 16 GB", 16 * _GB, _V100_PCIE, 900e9, _V100),
    "v100 32gb": Gpu("V100 SXM2 32 GB", 32 * _GB, _V100_SXM, 900e9, _V100, _V100_MATMUL),
    "v100": Gpu("V100 SXM2 16 GB", 16 * _GB, _V100_SXM, 900e9, _V100, _V100_MATMUL),
    "a100 80gb pcie": Gpu("A100 PCIe 80 GB", 80 * _GB, _A100_PEAKS, 1935e9, _A100),
    "a100 80gb": Gpu("A100 SXM4 80 GB", 80 * _GB, _A100_PEAKS, 2039e9, _A100, _A100_MATMUL),
    "a100 pcie": Gpu("A100 PCIe 40 GB", 40 * _GB, _A100_PEAKS, 1555e9, _A100),
    "a100": Gpu("A100 SXM4 40 GB", 40 * _GB, _A100_PEAKS, 1555e9, _A100, _A100_MATMUL),
    "a800 80gb pcie": Gpu("A800 PCIe 80 GB", 80 * _GB, _A100_PEAKS, 1935e9, _A800),
    "a800": Gpu("A800 SXM4 80 GB", 80 * _GB, _A100_PEAKS, 2039e9, _A800, _A100_MATMUL),
    "h800 pcie": Gpu("H800 PCIe", 80 * _GB, _peaks(fp8=1513, fp16=756, bf16=756, tf32=378, fp32=51), 2e12, _H800),
    "h800": Gpu("H800 SXM", 80 * _GB, _HOPPER_SXM, 3.35e12, _H800, 794 * _TERA),
    "h20": Gpu("H20", 96 * _GB, _peaks(fp8=296, fp16=148, bf16=148, tf32=74, fp32=44), 4e12, _H20),
    "h100 pcie": Gpu("H100 PCIe", 80 * _GB, _peaks(fp8=1513, fp16=756, bf16=756, tf32=378, fp32=51), 2e12, _H100),
    "h100 nvl": Gpu("H100 NVL", 94 * _GB, _peaks(fp8=1671, fp16=835.5, bf16=835.5, tf32=417.5, fp32=60), 3.9e12, _H100),
    "h100 96gb": Gpu("H100 SXM 96 GB", 96 * _GB, _HOPPER_SXM, 2.4e12, _H100_96, 671 * _TERA),
    "h100": Gpu("H100 SXM", 80 * _GB, _HOPPER_SXM, 3.35e12, _H100, 794 * _TERA),
    "h200 nvl": Gpu(
        "H200 NVL", 141 * _GB, _peaks(fp8=1671, fp16=835.5, bf16=835.5, tf32=417.5, fp32=60), 4.8e12,
        "NVIDIA H200 Tensor Core GPU data sheet, 2024, without sparsity",
    ),
    "h200": Gpu(
        "H200 SXM", 141 * _GB, _HOPPER_SXM, 4.8e12, "NVIDIA H200 Tensor Core GPU data sheet, 2024, without sparsity"
    ),
    "gh200": Gpu("GH200 96 GB", 96 * _GB, _HOPPER_SXM, 4e12, "NVIDIA GH200 data sheet, 2023, without sparsity"),
    "gb300": Gpu(
        "GB300", 279 * _GB, _peaks(fp4=15_000, fp8=5000, fp16=2500, bf16=2500, tf32=1250, fp32=80), 8e12,
        _GB300, 2158 * _TERA,
    ),
    "gb200": Gpu(
        "GB200", 186 * _GB, _peaks(fp4=10_000, fp8=5000, fp16=2500, bf16=2500, tf32=1250, fp32=80), 8e12,
        _GB200, 1850 * _TERA,
    ),
    "b300": Gpu(
        "B300", 268 * _GB, _peaks(fp4=13_500, fp8=4500, fp16=2250, bf16=2250, tf32=1125, fp32=75), 8e12,
        _B300,
    ),
    "b200": Gpu(
        "B200", 180 * _GB, _peaks(fp4=9000, fp8=4500, fp16=2250, bf16=2250, tf32=1125, fp32=75), 8e12,
        "NVIDIA Blackwell architecture brief, 2024, without sparsity",
    ),
    "l40s": Gpu(
        "L40S", 48 * _GB, _peaks(fp8=733, fp16=362, bf16=362, tf32=183, fp32=91.6), 864e9,
        "NVIDIA L40S data sheet, 2023, without sparsity",
    ),
    "l4": Gpu(
        "L4", 24 * _GB, _peaks(fp8=242, fp16=121, bf16=121, tf32=60, fp32=30.3), 300e9,
        "NVIDIA L4 data sheet, 2023, without sparsity",
    ),
    "t4": Gpu("T4", 16 * _GB, _peaks(fp16=65, fp32=8.1), 320e9, "NVIDIA T4 data sheet, 2019"),
    "mi250x": Gpu(
        "MI250X", 128 * _GB, _peaks(fp16=383, bf16=383, fp32=95.7), 3.2768e12,
        "AMD Instinct MI250X data sheet, 2021, both dies",
    ),
    "mi250": Gpu(
        "MI250", 128 * _GB, _peaks(fp16=362.1, bf16=362.1, fp32=90.5), 3.2768e12,
        "AMD Instinct MI250 data sheet, 2021, both dies",
    ),
    "mi300x": Gpu(
        "MI300X", 192 * _GB, _peaks(fp8=2614.9, fp16=1307.4, bf16=1307.4, tf32=653.7, fp32=163.4), 5.3e12,
        "AMD Instinct MI300X data sheet, 2023, without sparsity", 708 * _TERA,
    ),
    "mi325x": Gpu(
        "MI325X", 256 * _GB, _peaks(fp8=2614.9, fp16=1307.4, bf16=1307.4, tf32=653.7, fp32=163.4), 6e12,
        "AMD Instinct MI325X data sheet, 2024, without sparsity", 843 * _TERA,
    ),
    "mi350x": Gpu(
        "MI350X", 288 * _GB, _peaks(fp4=9200, fp8=4600, fp16=2300, bf16=2300, fp32=144.2), 8e12,
        "AMD Instinct MI350X data sheet, 2025, without sparsity",
    ),
    "mi355x": Gpu(
        "MI355X", 288 * _GB, _peaks(fp4=10_100, fp8=5000, fp16=2500, bf16=2500, fp32=157.3), 8e12,
        "AMD Instinct MI355X data sheet, 2025, without sparsity",
    ),
    "tpu v5p": Gpu("TPU v5p", 95 * _GB, _peaks(bf16=459), 2.765e12, "Google Cloud TPU v5p documentation, 2023"),
}  # fmt: skip


def _processor(name: str, cores: int, gigahertz: float, flop_a_cycle: int, bandwidth: float, memory: int) -> Gpu:
    """Return a whole processor; its fp32 peak is cores x base clock x FLOP per cycle."""
    peak = cores * gigahertz * 1e9 * flop_a_cycle
    source = f"{cores} cores x {gigahertz} GHz x {flop_a_cycle} FLOP per cycle"
    return Gpu(f"CPU {name}", memory * _GB, {"fp32": peak, "bf16": peak / 2, "fp16": peak / 2}, bandwidth, source)


_PROCESSORS: dict[str, Gpu] = {
    "epyc 7763": _processor("EPYC 7763", 64, 2.45, 32, 204.8e9, 256),
    "epyc 9654": _processor("EPYC 9654", 96, 2.4, 32, 460.8e9, 384),
    "xeon 8380": _processor("Xeon 8380", 40, 2.3, 64, 204.8e9, 256),
    "xeon 8480+": _processor("Xeon 8480+", 56, 2.0, 64, 307.2e9, 256),
}
"""Processors to plan with. `find` excludes them: a share of such a peak is meaningless for a run."""


def devices() -> list[Gpu]:
    """Return all devices of the catalogue, processors last."""
    return [*_CATALOGUE.values(), *_PROCESSORS.values()]


def find_processor(name: str) -> Gpu | None:
    """Return a processor by its name; None if it is unknown."""
    name_words = set(name.lower().replace("-", " ").split())
    return next((processor for key, processor in _PROCESSORS.items() if set(key.split()) <= name_words), None)


@lru_cache(1024)
def find(device_name: str) -> Gpu | None:
    """Return a device by its name as a driver or a person writes it ("NVIDIA A100-SXM4-40GB", "H100 PCIe").

    A name without a variant means the variant with the least memory. None if the device is unknown.
    """
    name_words = set(_SIZE.sub(r"\1gb", device_name.lower().replace("-", " ").replace("_", " ")).split())
    return next((gpu for key, gpu in _CATALOGUE.items() if set(key.split()) <= name_words), None)


def fastest(precision: str) -> Peak:
    """Return the highest peak of all devices in a precision."""
    peaks = [peak for gpu in _CATALOGUE.values() if (peak := gpu.peak(precision)) is not None]
    return max(peaks, key=lambda peak: peak.flops_per_s)


def peak_of(device_name: str, precision: str) -> Peak | None:
    """Return the peak of a device in a precision; None if either is unknown."""
    gpu = find(device_name)
    return gpu.peak(precision) if gpu else None
