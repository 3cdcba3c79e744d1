"""Describe a parlab node as a cluster: its GPUs, or processes that share its processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runners.config import RunConfig

from .cluster import Cluster, cluster
from .hardware import Gpu, find
from .measured import COPY_SHARE, measured_device, positive, with_measured_links

PROCESS = "CPU process"
_CORE_FLOPS = 80e9
"""Peak fp32 FLOP/s of one core's vector units: 32 per cycle (AVX-512, or two AVX2 fused multiply-adds) at 2.5 GHz. It
is used until the node has measured its own, since processor data sheets do not state it."""
_CORE_BANDWIDTH = 15e9
"""Memory bandwidth of one core (bytes/s)."""


def cluster_of(hardware: Mapping[str, Any], config: RunConfig, name: str = "") -> Cluster:
    """Return the cluster on which a configuration would run, made of nodes like this one.

    `hardware` is the description that a node reports: gpus (name, memory_bytes), cpu_cores, memory_bytes. The device is
    the node's GPU if the run uses GPUs, otherwise a process with its threads. Raises ValueError for an unknown GPU.
    """
    ranks, per_node = config.world_size, min(config.gpus_per_node, config.world_size)
    gpus = list(hardware.get("gpus") or [])
    is_gpu = bool(gpus) and config.device.may_use_gpus and len(gpus) >= per_node
    rates = _rates(hardware, is_gpu=is_gpu)
    if is_gpu:
        device = measured_device(_gpu(gpus[0]), rates)
    else:
        device = process(hardware, per_node, config.launcher.threads_per_rank, config.launcher.memory_limit_mib)
    return with_measured_links(cluster(device, ranks, per_node, name=name), rates)


def _rates(hardware: Mapping[str, Any], *, is_gpu: bool) -> Mapping[str, Any]:
    """Return what the node measured of its GPUs, or else of processes on its processor; empty without it."""
    rates = hardware.get("rates")
    is_stated = isinstance(rates, Mapping) and (rates.get("device") != PROCESS) == is_gpu
    return rates if is_stated and isinstance(rates, Mapping) else {}


def _gpu(description: Mapping[str, Any]) -> Gpu:
    name = str(description.get("name") or "")
    gpu = find(name)
    if gpu is None:
        raise ValueError(f"gpu {name!r} is not in the catalogue; add it in the admin")
    memory = description.get("memory_bytes")
    return replace(gpu, memory_bytes=int(memory)) if memory else gpu


def process(hardware: Mapping[str, Any], processes: int, threads: int, limit_mib: int | None = None) -> Gpu:
    """Return one of `processes` processes that share a processor: its part of cores, memory (bytes) and bandwidth."""
    cores = int(hardware.get("cpu_cores") or 1)
    share = min(float(threads), cores / processes)
    memory = int(hardware.get("memory_bytes") or 8 << 30) // processes
    measured = _measured_flops(hardware)
    flops = share * (measured or _CORE_FLOPS)
    # A processor without 16-bit units computes bf16 in fp32 and rounds.
    return Gpu(
        PROCESS,
        min(memory, limit_mib << 20) if limit_mib else memory,
        {"fp32": flops, "bf16": flops / 2, "fp16": flops / 2},
        share * (_core_bandwidth(hardware) or _CORE_BANDWIDTH),
        "measured on this node" if measured else "one core: 32 FLOP per cycle at 2.5 GHz",
        flops / 2,
    )


def _measured_flops(hardware: Mapping[str, Any]) -> float | None:
    """Return the measured FLOP/s of fp32 products of one thread, `matmul.flops.fp32.1`; None if not measured."""
    value: Any = hardware.get("matmul")
    for name in ("flops", "fp32", "1"):
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and 0 < value < 1e15 else None


def _core_bandwidth(hardware: Mapping[str, Any]) -> float | None:
    """Return the memory bandwidth of a core (bytes/s) while all copy, as the node measured it; None if it did not."""
    rates = _rates(hardware, is_gpu=False)
    memory, processes = positive(rates.get("memory")), positive(rates.get("devices"))
    cores = positive(hardware.get("cpu_cores"))
    if memory is None or processes is None or cores is None:
        return None
    return memory / COPY_SHARE * processes / min(cores, processes)
