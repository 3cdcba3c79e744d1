"""Ranks meet at a store, before any transport: where they find each other, and whether each has a GPU of its own."""

from __future__ import annotations

import os
import re
import socket
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from runners.config import ConfigError, Problem

MASTER_PORT = "MASTER_PORT"
"""Who named the port, where it was a launcher."""
_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.I)


def meet(init_method: str, rank: int, world_size: int, timeout: timedelta) -> Store:
    """Return the store at which all ranks meet.

    Raises ConfigError when rank 0's port is taken, or rank 0 is not found there within the timeout.
    """
    field, address = _address(init_method)
    try:
        store, _rank, _size = next(rendezvous(init_method, rank, world_size, timeout=timeout))
    except dist.DistError as error:
        raise ConfigError([_problem(str(error), field, address, rank, timeout)]) from error
    store.set_timeout(timeout)
    return PrefixStore("parlab", store)


def _address(init_method: str) -> tuple[str, str]:
    """Return who named the meeting point, and the point."""
    if init_method != "env://":
        return "--dist-url", urlsplit(init_method).netloc or init_method
    return MASTER_PORT, f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get(MASTER_PORT, '')}"


def _problem(error: str, field: str, address: str, rank: int, timeout: timedelta) -> Problem:
    host, _, port = address.rpartition(":")
    if _IN_USE.search(error):
        message = (
            f"port {port} of {host} is in use by another program, so the ranks cannot meet there; use another port"
            f" on every rank, or end that program ('ss -ltnp' names it)"
        )
        return Problem(field, port, message)
    first_line = error.splitlines()[0] if error else "no reason given"
    message = (
        f"rank {rank} did not find rank 0 at {address} within {timeout.total_seconds():g} s ({first_line[:200]});"
        " see that rank 0 runs and can be reached there, or raise launcher.collective_timeout_s"
    )
    return Problem(field, address, message)


def identity(device: torch.device) -> str:
    """Name a GPU so that no other one in the world has the name: the machine's name and the GPU's own number."""
    properties = torch.cuda.get_device_properties(device)
    return f"{socket.gethostname()} {getattr(properties, 'uuid', device.index)}"


def check_that_devices_differ(store: Store, rank: int, world_size: int, mine: str, shown: str) -> None:
    """Raise ConfigError on every rank where two of them were given one device; `shown` names it for people.

    NCCL takes one rank for each GPU and otherwise fails in words of its own, or waits for ever.
    """
    store.set(f"device/{rank}", mine)
    owners: dict[str, int] = {}
    for other in range(world_size):
        name = store.get(f"device/{other}").decode()
        if name in owners:
            host, _, number = name.partition(" ")
            message = (
                f"ranks {owners[name]} and {other} were both given GPU {number} of {host} ({shown} on rank {rank}), and"
                " NCCL takes one rank for each GPU; give each rank a LOCAL_RANK or CUDA_VISIBLE_DEVICES of its own,"
                " use fewer ranks, or cluster.device cpu"
            )
            raise ConfigError([Problem("cluster.device", shown, message)])
        owners[name] = other
