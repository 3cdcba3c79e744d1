"""The processes that a launcher lost: which rank, where, and of what. Pure."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple


class Death(NamedTuple):
    """One process that ended and should not have."""

    rank: int | None
    host: str
    """Empty where the launcher does not say."""
    code: int
    """Exit code; negative for a signal."""


# torchrun's block about one rank, in its summary of a failure (torch 2.x).
_TORCHRUN = re.compile(r"host\s+: (\S+)\s+rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+)")
_TORCHRUN_SUMMARY = re.compile(r"^(?:\S+ )?FAILED\s*$|Root Cause \(first observed failure\)", re.MULTILINE)
_ENDED_BY_THE_LAUNCHER = -signal.SIGTERM


def find_deaths(text: str) -> list[Death]:
    """Find what torchrun's summary tells (torch 2), the first to die first; empty where there is none.

    What died under another launcher runners.ranks tells in events.
    """
    root = text.rfind("Root Cause")
    if root < 0:
        return []
    start = max((match.start() for match in _TORCHRUN_SUMMARY.finditer(text, 0, root)), default=root)
    # What was observed first stands last.
    parts = text[root:], text[start:root]
    return [Death(int(rank), host, int(code)) for part in parts for host, rank, code in _TORCHRUN.findall(part)]


def dead_rank(deaths: list[Death], explained: set[int], *, only_consequences: bool) -> Death | None:
    """Choose the death that explains the others, or None where what the ranks told does.

    `explained` are the ranks that told what befell them. A signal tells nothing itself; an exit code without a word is
    the cause where all others complain of a rank that is gone (`only_consequences`).
    """
    silent = [death for death in deaths if death.rank not in explained and death.code != _ENDED_BY_THE_LAUNCHER]
    killed = [death for death in silent if death.code < 0]
    return next(iter(killed or (silent if only_consequences else [])), None)
