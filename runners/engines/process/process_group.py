"""Place of a rank among the others, its device and its process group."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from runners.config import ConfigError, Problem, RunConfig
from runners.config.devices import CPU, DEVICES
from runners.engines.process.rendezvous import check_that_devices_differ, identity, meet

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Place(NamedTuple):
    """Position of a rank among the ranks of a run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Number of the rank among those on this machine."""
    local_world_size: int = 1
    """Number of ranks on this machine, as far as known."""
    init_method: str = "env://"
    """Rendezvous URL, as torch.distributed takes it."""


def place_from_environment(environment: Mapping[str, str]) -> Place:
    """Read the place from torchrun's environment variables; without them the process is a single rank."""
    if "RANK" not in environment:
        return Place()
    rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    return Place(
        rank=rank,
        world_size=world_size,
        local_rank=int(environment.get("LOCAL_RANK", rank)),
        local_world_size=int(environment.get("LOCAL_WORLD_SIZE", 1)),
    )


def place_by_hand(dist_url: str, world_size: int, rank: int) -> Place:
    """Return the place of a manually started rank; with a loopback address all ranks are on this machine."""
    if urlsplit(dist_url).hostname in LOOPBACK:
        return Place(rank, world_size, rank, world_size, dist_url)
    gpus = max(torch.cuda.device_count(), 1)
    return Place(rank, world_size, rank % gpus, 1, dist_url)


def choose_device(config: RunConfig, place: Place) -> torch.device:
    """Return the device of a rank: its own GPU if requested and available, else the CPU.

    Raises ConfigError if cluster.device is cuda and the machine has too few GPUs.
    """
    # Emulated passes only sleep, so they leave GPUs to other runs.
    choice = CPU if config.train.compute == "emulated" else config.device
    gpus = torch.cuda.device_count() if choice.may_use_gpus and torch.cuda.is_available() else 0
    if gpus >= place.local_world_size:
        return torch.device("cuda", place.local_rank)
    if choice.needs_gpus:
        raise ConfigError(
            [
                Problem(
                    "cluster.device",
                    choice.name,
                    f"device {choice.name} needs one GPU per rank on this machine ({place.local_world_size}), but"
                    f" torch {torch.__version__} finds {gpus}; use cpu or auto, or a node with more GPUs",
                )
            ]
        )
    return torch.device("cpu")


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or the CPU model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def join(place: Place, device: torch.device, timeout: timedelta, transport: str | None = None) -> str:
    """Join the process group of all ranks and return its backend; "none" for a single rank.

    `transport` defaults to nccl for ranks on GPUs and gloo for others. Raises ConfigError if the rendezvous fails, or
    if two ranks have the same GPU.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if place.world_size == 1:
        return "none"
    if place.local_world_size == place.world_size and sys.platform == "linux":
        # By default gloo resolves the host name to find a network interface; the name may not resolve.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = transport or DEVICES[device.type].backend
    store = meet(place.init_method, place.rank, place.world_size, timeout)
    if backend == "nccl":
        check_that_devices_differ(store, place.rank, place.world_size, identity(device), str(device))
    dist.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )
    return backend


def barrier(device: torch.device) -> None:
    """Wait until all ranks have called this; no-op without a process group."""
    if dist.is_initialized():
        dist.barrier(device_ids=[device.index] if dist.get_backend() == "nccl" else None)


def leave() -> None:
    """Close all connections; call barrier() first, so that no rank closes a connection that another still uses."""
    if dist.is_initialized():
        dist.destroy_process_group()
