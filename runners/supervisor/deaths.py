"""Processes that a launcher lost: rank, host and exit code. Pure."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple


class Death(NamedTuple):
    """One process that ended unexpectedly."""

    rank: int | None
    host: str
    """Empty if the launcher does not print it."""
    code: int
    """Exit code; negative for a signal."""


# torchrun's block about one rank, in its summary of a failure (torch 2.x).
_TORCHRUN = re.compile(r"host\s+: (\S+)\s+rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+)")
_TORCHRUN_SUMMARY = re.compile(r"^(?:\S+ )?FAILED\s*$|Root Cause \(first observed failure\)", re.MULTILINE)
_ENDED_BY_THE_LAUNCHER = -signal.SIGTERM


def find_deaths(text: str) -> list[Death]:
    """Return the deaths in torchrun's summary (torch 2), the first one first; empty without a summary.

    For other launchers, runners.node.launch.ranks prints events instead.
    """
    root = text.rfind("Root Cause")
    if root < 0:
        return []
    start = max((match.start() for match in _TORCHRUN_SUMMARY.finditer(text, 0, root)), default=root)
    # The death that was observed first is printed last.
    parts = text[root:], text[start:root]
    return [Death(int(rank), host, int(code)) for part in parts for host, rank, code in _TORCHRUN.findall(part)]


def dead_rank(deaths: list[Death], explained: set[int], *, only_consequences: bool) -> Death | None:
    """Return the death that caused the failure, or None if an error that a rank printed did.

    `explained` are the ranks that printed an error. A rank killed by a signal prints none. A rank that exited without
    an error is the cause if all other ranks only lost their connection to it (`only_consequences`).
    """
    silent = [death for death in deaths if death.rank not in explained and death.code != _ENDED_BY_THE_LAUNCHER]
    killed = [death for death in silent if death.code < 0]
    return next(iter(killed or (silent if only_consequences else [])), None)
