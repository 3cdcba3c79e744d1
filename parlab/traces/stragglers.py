"""Stragglers by node and over time: for whom the others waited at collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .intervals import Times

PERIODS = 12


class NodeLateness(NamedTuple):
    """The ranks of a node at the collectives of all ranks."""

    node: str
    ranks: int
    late: int
    """How often one of them arrived last."""
    late_by_s: float
    """How long the others waited for them in total."""
    share: float
    """Of all such waits, 0 to 1."""


class PeriodLateness(NamedTuple):
    """A part of the traced time, with the rank for which the others waited longest."""

    begin_s: float
    end_s: float
    collectives: int
    rank: int
    late: int
    """How often this rank arrived last."""
    late_by_s: float


def by_node(lateness: Mapping[int, tuple[int, float]], hosts: Mapping[int, str]) -> list[NodeLateness]:
    """Add up {rank: (how often last, seconds)} by node, the worst first; empty unless there are several nodes."""
    names = {hosts.get(rank) or "" for rank in lateness}
    if len(names) < 2 or "" in names:
        return []
    whole = sum(seconds for _, seconds in lateness.values()) or 1.0
    rows = []
    for name in names:
        own = [lateness[rank] for rank in lateness if hosts[rank] == name]
        seconds = sum(late_by for _, late_by in own)
        rows.append(NodeLateness(name, len(own), sum(late for late, _ in own), seconds, seconds / whole))
    return sorted(rows, key=lambda row: (-row.late_by_s, row.node))


def by_time(late: Sequence[int], ends: Times, excess: Times) -> list[PeriodLateness]:
    """Divide the time until the last collective into PERIODS; `late` and `excess` (s) are of each collective."""
    if not len(ends):
        return []
    edges = np.linspace(float(ends.min()), float(ends.max()), PERIODS + 1)
    period = np.clip(np.searchsorted(edges, ends, side="right") - 1, 0, PERIODS - 1)
    ranks, rows = np.array(late), []
    for number in range(PERIODS):
        inside = period == number
        if not inside.any():
            continue
        sums = {int(rank): float(excess[inside & (ranks == rank)].sum()) for rank in np.unique(ranks[inside])}
        worst = max(sums, key=lambda rank: sums[rank])
        count = int((inside & (ranks == worst)).sum())
        begin, end = float(edges[number]), float(edges[number + 1])
        rows.append(PeriodLateness(begin, end, int(inside.sum()), worst, count, sums[worst]))
    return rows
