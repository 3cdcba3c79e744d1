"""How a daemon deals with a batch system: the settings that all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

AWAY_GRACE_S = 300.0
"""Time for which a run waits for a system that does not answer, before it is submitted."""
SETTLE_S = 5.0
"""Time after the end of a job in which its last words may still be on their way through a network file system."""


class Pace(NamedTuple):
    """How often a daemon looks, how long it waits, and how many jobs it has at a time."""

    away_grace_s: float = AWAY_GRACE_S
    poll_s: float = 2.0
    """Seconds between two looks at the jobs."""
    settle_s: float = SETTLE_S
    max_jobs: int = 1_000_000
    """Jobs of this daemon at a time, also those that are just ending."""
    ships_from_nodes: bool = True
    """Nodes that reach Redis ship by themselves; otherwise the daemon ships all output."""


def read_pace(environment: Mapping[str, str], prefix: str, *, slots: int, poll_s: float) -> Pace:
    """Read PREFIX_GRACE_S and so on. Raises ValueError with the setting, its value and the remedy."""
    return Pace(
        away_grace_s=read_seconds(environment, f"{prefix}_GRACE_S", AWAY_GRACE_S),
        poll_s=read_seconds(environment, f"{prefix}_POLL_S", poll_s),
        settle_s=read_seconds(environment, f"{prefix}_SETTLE_S", SETTLE_S),
        max_jobs=slots,
        ships_from_nodes=_ships_from_nodes(environment, f"{prefix}_SHIP"),
    )


def read_seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    """Read a number of seconds; raises ValueError with the setting, its value and the remedy."""
    text = environment.get(name) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise ValueError(f"invalid {name} {text!r}; use a number of seconds, at most 86400")
    return seconds


def _ships_from_nodes(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name) or "auto"
    if text not in ("auto", "login"):
        raise ValueError(
            f"invalid {name} {text!r}; use auto (compute nodes that reach Redis ship by themselves) or login"
        )
    return text == "auto"
