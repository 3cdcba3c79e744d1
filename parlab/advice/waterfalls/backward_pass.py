"""Plain data parallel scripts: communication and waiting inside the backward pass.

DistributedDataParallel reduces gradients while the backward pass runs, so no timer separates them. The ranks leave the
backward pass together: the rank whose backward pass is shortest entered it last, and the others waited for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .timers import Groups, text, total

BACKWARD = 2.0
"""Backward over forward FLOPs (Narayanan et al. 2021, SC21)."""
_LATE = 0.5
"""Share of a shorter backward pass that the longer work before it has to account for."""


class Inside(NamedTuple):
    """Seconds inside the backward passes of a step, mean over the ranks."""

    communication_s: float
    waiting_s: float
    communication_basis: str
    waiting_basis: str

    @property
    def total_s(self) -> float:
        return self.communication_s + self.waiting_s


def inside_backward(groups: Groups) -> Inside | None:
    """Split the backward passes; None if gradients have timers, or passes none by rank."""
    forward, backward = total(groups.forward), total(groups.backward)
    if groups.data or len(backward.by_rank) < 2 or set(forward.by_rank) != set(backward.by_rank):
        return None
    shortest = min(backward.by_rank, key=lambda rank: backward.by_rank[rank])
    name, pass_s = text(groups.backward), backward.by_rank[shortest]
    waiting_s = 0.0
    if is_late(work_of(groups), backward.by_rank, shortest):
        waiting_s = sum(backward.by_rank.values()) / len(backward.by_rank) - pass_s
    computed_s = BACKWARD * forward.by_rank[shortest]
    return Inside(
        max(0.0, pass_s - computed_s),
        waiting_s,
        f"{name}, shortest over the ranks - {BACKWARD:g} x {text(groups.forward)} of this rank",
        f"{name}, mean - shortest: the rank with the shortest one entered it last",
    )


def work_of(groups: Groups) -> dict[str, float]:
    """Return the time of each rank before its backward pass (s)."""
    return dict(total({**groups.loading, **groups.forward}).by_rank)


def is_late(work: Mapping[str, float], backward: Mapping[str, float], rank: str) -> bool:
    """Return whether a rank enters the backward pass late by about what its backward pass is shorter."""
    others = [each for each in backward if each != rank]
    if not others or rank not in work:
        return False
    shorter_s = middle(backward[each] for each in others) - backward[rank]
    longer_s = work[rank] - middle(work.get(each, 0.0) for each in others)
    return shorter_s > 0 and longer_s >= _LATE * shorter_s


def middle(values: Iterable[float]) -> float:
    """Return the upper median."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
