"""Rendezvous of the ranks at a store, before any transport: connect, and check that each rank has its own GPU."""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from runners.config import ConfigError, Problem
from runners.engines.process.starting import MASTER_PORT

_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.I)


def meet(init_method: str, rank: int, world_size: int, timeout: timedelta) -> Store:
    """Return the store that all ranks share.

    Raises ConfigError if rank 0's port is in use, or if rank 0 cannot be reached within the timeout.
    """
    field, address = _address(init_method)
    try:
        store, _rank, _size = next(rendezvous(init_method, rank, world_size, timeout=timeout))
    except dist.DistError as error:
        raise ConfigError([_problem(str(error), field, address, rank, timeout)]) from error
    store.set_timeout(timeout)
    return PrefixStore("parlab", store)


def _address(init_method: str) -> tuple[str, str]:
    """Return the flag or variable that set the rendezvous address, and the address."""
    if init_method != "env://":
        return "--dist-url", urlsplit(init_method).netloc or init_method
    return MASTER_PORT, f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get(MASTER_PORT, '')}"


def _problem(error: str, field: str, address: str, rank: int, timeout: timedelta) -> Problem:
    host, _, port = address.rpartition(":")
    if _IN_USE.search(error):
        message = (
            f"port {port} of {host} is in use by another program; use another port on every rank, or stop that program"
            " ('ss -ltnp' shows it)"
        )
        return Problem(field, port, message)
    first_line = error.splitlines()[0] if error else "no reason given"
    message = (
        f"rank {rank} could not reach rank 0 at {address} within {timeout.total_seconds():g} s ({first_line[:200]});"
        " check that rank 0 is running and reachable, or raise launcher.collective_timeout_s"
    )
    return Problem(field, address, message)


def identity(device: torch.device) -> str:
    """Return a globally unique name of a GPU: host name and UUID, or the device index if torch reports no UUID."""
    properties = torch.cuda.get_device_properties(device)
    return f"{socket.gethostname()} {getattr(properties, 'uuid', device.index)}"


def check_that_devices_differ(store: Store, rank: int, world_size: int, device_id: str, label: str) -> None:
    """Raise ConfigError on every rank if two ranks have the same device; `label` is this rank's device in messages.

    NCCL supports one rank per GPU; with more it fails with an obscure message or waits forever.
    """
    store.set(f"device/{rank}", device_id)
    owners: dict[str, int] = {}
    for other in range(world_size):
        name = store.get(f"device/{other}").decode()
        if name in owners:
            host, _, number = name.partition(" ")
            message = (
                f"ranks {owners[name]} and {other} both use GPU {number} of {host} ({label} on rank {rank}), but"
                " NCCL supports one rank per GPU; give each rank its own LOCAL_RANK or CUDA_VISIBLE_DEVICES,"
                " use fewer ranks, or use cluster.device cpu"
            )
            _refuse_together(store, rank, world_size)
            raise ConfigError([Problem("cluster.device", label, message)])
        owners[name] = other


def _refuse_together(store: Store, rank: int, world_size: int) -> None:
    """Let rank 0, with which the store may end, wait until the others have read what they refuse."""
    if rank:
        store.set(f"device/{rank}/refused", "")
        return
    with suppress(dist.DistError):  # a rank that has died has nothing to read
        store.wait([f"device/{other}/refused" for other in range(1, world_size)])
