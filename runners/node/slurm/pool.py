"""What a daemon on a login node may use of the cluster, and how often it asks: its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

AWAY_GRACE_S = 300.0
"""Time for which a run waits for a Slurm that does not answer, before it is submitted."""
POLL_S = 2.0
"""Seconds between two looks at the queue: one command for all jobs."""
SETTLE_S = 5.0
"""Time after the end of a job in which its last words may still be on their way through a network file system."""


class Pool(NamedTuple):
    """Settings of a daemon that submits jobs."""

    partitions: tuple[str, ...]
    """Partitions that runs may use; the first one is the default."""
    away_grace_s: float = AWAY_GRACE_S
    poll_s: float = POLL_S
    settle_s: float = SETTLE_S
    max_jobs: int = 1_000_000
    """Jobs of this daemon in the queue at a time, also those that are just ending."""
    ships_from_nodes: bool = True
    """Compute nodes that reach Redis ship by themselves; otherwise the login node ships all output."""


def read_pool(is_slurm: bool, partition: str, environment: Mapping[str, str], *, slots: int = 1) -> Pool | None:
    """Read the settings; None without --slurm. Raises ValueError with the setting, its value and the remedy."""
    names = tuple(name for name in partition.split(",") if name)
    if is_slurm and not names:
        raise ValueError("--slurm needs --partition; name the partitions that runs may use, like gpu,debug")
    if names and not is_slurm:
        raise ValueError(f"--partition {partition} has no effect without --slurm; add --slurm")
    if not is_slurm:
        return None
    return Pool(
        names,
        away_grace_s=_seconds(environment, "PARLAB_SLURM_GRACE_S", AWAY_GRACE_S),
        poll_s=_seconds(environment, "PARLAB_SLURM_POLL_S", POLL_S),
        settle_s=_seconds(environment, "PARLAB_SLURM_SETTLE_S", SETTLE_S),
        max_jobs=slots,
        ships_from_nodes=_ships_from_nodes(environment.get("PARLAB_SLURM_SHIP") or "auto"),
    )


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise ValueError(f"invalid {name} {text!r}; use a number of seconds, at most 86400")
    return seconds


def _ships_from_nodes(text: str) -> bool:
    if text not in ("auto", "login"):
        raise ValueError(
            f"invalid PARLAB_SLURM_SHIP {text!r}; use auto (compute nodes that reach Redis ship by themselves) or login"
        )
    return text == "auto"
