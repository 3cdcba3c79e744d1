"""A node of parlab, as it describes itself, as a cluster: its GPUs, or its processor's cores for processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runners.config import RunConfig

from .cluster import Cluster, cluster
from .hardware import Gpu, find

_CORE_FLOPS = 80e9
"""FLOP/s of fp32 that one core's vector units can do at best: 32 a cycle (AVX-512, or two AVX2 fused multiply-adds) at
2.5 GHz. Processors have no data sheet of it: a node measures it, and a calibration finds what share a training gets."""
_CORE_BANDWIDTH = 15e9
"""Bytes/s of memory that one core gets."""


def cluster_of(hardware: Mapping[str, Any], config: RunConfig, name: str = "") -> Cluster:
    """Describe where a configuration would run on nodes like this one.

    `hardware` is what a node says of itself: gpus (name, memory_bytes), cpu_cores, memory_bytes. The device is the GPU
    where the run takes one, else a process with its threads. Raises ValueError for a GPU that is not known.
    """
    ranks, per_node = config.world_size, min(config.gpus_per_node, config.world_size)
    gpus = list(hardware.get("gpus") or [])
    if gpus and config.cluster.device != "cpu" and len(gpus) >= per_node:
        device = _gpu(gpus[0])
    else:
        device = process(hardware, per_node, config.launcher.threads_per_rank, config.launcher.memory_limit_mib)
    return cluster(device, ranks, per_node, name=name)


def _gpu(described: Mapping[str, Any]) -> Gpu:
    name = str(described.get("name") or "")
    found = find(name)
    if found is None:
        raise ValueError(f"gpu {name!r} is not in the catalogue; add it in the admin")
    memory = described.get("memory_bytes")
    if not memory:
        return found
    return replace(found, memory_bytes=int(memory))


def process(hardware: Mapping[str, Any], processes: int, threads: int, limit_mib: int | None = None) -> Gpu:
    """One of so many processes that share a processor: its part of the cores, the memory and the bandwidth."""
    cores = int(hardware.get("cpu_cores") or 1)
    share = min(float(threads), cores / processes)
    memory = int(hardware.get("memory_bytes") or 8 << 30) // processes
    measured = _measured_flops(hardware)
    flops = share * (measured or _CORE_FLOPS)
    # Without units for 16 bits, bf16 is computed as fp32 and rounded.
    return Gpu(
        "CPU process",
        min(memory, limit_mib << 20) if limit_mib else memory,
        {"fp32": flops, "bf16": flops / 2, "fp16": flops / 2},
        share * _CORE_BANDWIDTH,
        "measured on this node" if measured else "one core: 32 FLOP a cycle at 2.5 GHz",
        flops / 2,
    )


def _measured_flops(hardware: Mapping[str, Any]) -> float | None:
    """FLOP/s of fp32 products of one thread, where the node has measured them: matmul.flops.fp32 by threads."""
    found: Any = hardware.get("matmul")
    for name in ("flops", "fp32", "1"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) and 0 < found < 1e15 else None
