"""What a daemon on a login node may use of the cluster: its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from runners.node.jobs.pool import Pace, read_pace

POLL_S = 2.0
"""Seconds between two looks at the queue: one command for all jobs."""


class Pool(NamedTuple):
    """Settings of a daemon that submits jobs."""

    partitions: tuple[str, ...]
    """Partitions that runs may use; the first one is the default."""
    pace: Pace = Pace()


def read_pool(is_slurm: bool, partition: str, environment: Mapping[str, str], *, slots: int = 1) -> Pool | None:
    """Read the settings; None without --slurm. Raises ValueError with the setting, its value and the remedy."""
    names = tuple(name for name in partition.split(",") if name)
    if is_slurm and not names:
        raise ValueError("--slurm needs --partition; name the partitions that runs may use, like gpu,debug")
    if names and not is_slurm:
        raise ValueError(f"--partition {partition} has no effect without --slurm; add --slurm")
    if not is_slurm:
        return None
    return Pool(names, read_pace(environment, "PARLAB_SLURM", slots=slots, poll_s=POLL_S))
