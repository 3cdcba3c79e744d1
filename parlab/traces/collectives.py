"""The same collective on several ranks: who was late, how long the others waited, and how fast the transfer was.

A collective ends on all ranks at nearly the same time. The median difference of the ends therefore is the offset of
the clock of a rank, and the start of the last rank is when the transfer could begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .events import Message
from .intervals import Times
from .stragglers import PeriodLateness, by_time

Table = NDArray[np.float64]

MAX_COLLECTIVES = 200
_SAME_CLOCK_S = 1e-4
_PARTIAL = ("allgather", "all_gather", "reducescatter", "reduce_scatter", "alltoall", "all_to_all")
_WHOLE = ("allreduce", "all_reduce")


class RankMessages(NamedTuple):
    """The collectives of a rank, in seconds since `origin_s` on the clock of its node."""

    origin_s: float
    messages: Sequence[Message]


class Collective(NamedTuple):
    """A collective with its arrival on each rank; times in seconds on the clock of the first rank."""

    name: str
    group: str
    sequence: int
    begin_s: float
    """When the first rank arrived."""
    end_s: float
    bytes: float
    ranks: int
    late_rank: int
    skew_s: float
    """Time between the first and the last arrival."""
    transfer_s: float
    """Time from the last arrival to the end."""
    bus_bytes_s: float | None
    """Bus bandwidth during the transfer; None if the size is unknown."""


class RankSkew(NamedTuple):
    rank: int
    waits_s: float
    """Time in collectives before the last rank had arrived."""
    late: int
    """How often it arrived last."""
    late_by_s: float
    """How long the others waited for it in total, each collective counted once."""


class CriticalPart(NamedTuple):
    """A piece of the critical path: until this collective, this rank made the others wait."""

    rank: int
    begin_s: float
    end_s: float
    until: str


class Meeting(NamedTuple):
    """The collectives of all ranks of a run."""

    collectives: list[Collective]
    """The longest first, at most MAX_COLLECTIVES."""
    matched: int
    """Number of collectives that all ranks have."""
    ranks: list[RankSkew]
    path: list[CriticalPart]
    path_share: dict[int, float]
    """Rank -> share of the critical path."""
    offsets_s: dict[int, float]
    """Rank -> offset of its clock from that of the first rank."""
    problems: list[str]
    periods: list[PeriodLateness] = []
    """Who was late over the traced time."""


def meeting(traces: Mapping[int, RankMessages]) -> Meeting:
    """Match the collectives of several ranks by group, name and number."""
    nothing = Meeting([], 0, [], [], {}, dict.fromkeys(traces, 0.0), [])
    if len(traces) < 2:
        return nothing
    ranks = sorted(traces)
    placed = [_by_key(traces[rank], traces[ranks[0]].origin_s) for rank in ranks]
    common = set.intersection(*(set(messages) for messages in placed))
    if not common:
        return nothing._replace(problems=["the ranks share no collective; arrival and critical path are unknown"])
    problems = []
    missing = max(len(messages) for messages in placed) - len(common)
    if missing:
        problems.append(f"{missing} collectives are not in the traces of all ranks and are left out")
    messages = [placed[0][key] for key in sorted(common, key=lambda key: placed[0][key].end_s)]
    keys = [(message.group, message.name, message.sequence) for message in messages]
    begins = np.array([[own[key].begin_s for key in keys] for own in placed])
    ends = np.array([[own[key].end_s for key in keys] for own in placed])
    offsets = np.median(ends - ends[0], axis=1)
    problems += _clock_problems(ranks, offsets)
    return _met(ranks, messages, begins - offsets[:, None], ends - offsets[:, None])._replace(
        offsets_s={rank: float(offset) for rank, offset in zip(ranks, offsets, strict=True)}, problems=problems
    )


def _clock_problems(ranks: Sequence[int], offsets: Times) -> list[str]:
    if not (np.abs(offsets) > _SAME_CLOCK_S).any():
        return []
    worst = int(np.argmax(np.abs(offsets)))
    return [
        f"the clocks of the ranks differ, that of rank {ranks[worst]} by {offsets[worst]:.3g} s; they are aligned by"
        " the ends of collectives"
    ]


def _met(ranks: Sequence[int], messages: Sequence[Message], begins: Table, ends: Table) -> Meeting:
    """Compare the arrivals (rank x collective, s) on one clock."""
    last, latest = begins.argmax(axis=0), begins.max(axis=0)
    finished = np.maximum(np.median(ends, axis=0), latest)
    late = [ranks[int(place)] for place in last]
    first = begins.min(axis=0)
    collectives = [
        _collective(message, len(ranks), rank, float(begin), float(arrival), float(end))
        for message, rank, begin, arrival, end in zip(messages, late, first, latest, finished, strict=True)
    ]
    excess = _excess(begins)
    rows = [
        RankSkew(rank, float((latest - begins[i]).sum()), int((last == i).sum()), float(excess[last == i].sum()))
        for i, rank in enumerate(ranks)
    ]
    path = _path(late, latest, finished, [message.name for message in messages], float(begins.min()))
    whole = sum(part.end_s - part.begin_s for part in path) or 1.0
    share: dict[int, float] = {}
    for part in path:
        share[part.rank] = share.get(part.rank, 0.0) + (part.end_s - part.begin_s) / whole
    longest = sorted(collectives, key=lambda item: item.begin_s - item.end_s)[:MAX_COLLECTIVES]
    return Meeting(longest, len(messages), rows, _merged(path), share, {}, [], by_time(late, finished, excess))


def _excess(begins: Table) -> Times:
    """Return how much later the last rank arrived than the one before it."""
    ordered = np.sort(begins, axis=0)
    excess: Times = ordered[-1] - ordered[-2]
    return excess


def _by_key(trace: RankMessages, origin_s: float) -> dict[tuple[str, str, int], Message]:
    shift = trace.origin_s - origin_s
    return {
        (message.group, message.name, message.sequence): message._replace(
            begin_s=message.begin_s + shift, end_s=message.end_s + shift
        )
        for message in trace.messages
    }


def _collective(message: Message, ranks: int, late: int, begin_s: float, latest_s: float, end_s: float) -> Collective:
    count = message.group_size or ranks
    transfer_s = end_s - latest_s
    size = message.bytes
    bus = size * bus_factor(message.name, count) / transfer_s if size and transfer_s > 0 else None
    skew_s = latest_s - begin_s
    return Collective(
        message.name, message.group, message.sequence, begin_s, end_s, size, count, late, skew_s, transfer_s, bus
    )


def bus_factor(name: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth of a collective (NVIDIA, nccl-tests, PERFORMANCE.md)."""
    plain, ranks = name.lower(), max(2, ranks)
    if any(part in plain for part in _WHOLE):
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if any(part in plain for part in _PARTIAL) else 1.0


def _path(
    late: Sequence[int], latest: Times, finished: Times, names: Sequence[str], begin: float
) -> list[CriticalPart]:
    """Follow the rank that arrived last from the end of each collective to its arrival at the next one."""
    parts = []
    for rank, arrival, end, name in zip(late, latest, finished, names, strict=True):
        if arrival > begin:
            parts.append(CriticalPart(rank, begin, float(arrival), name))
        begin = max(begin, float(end))
    return parts


def _merged(path: list[CriticalPart]) -> list[CriticalPart]:
    merged: list[CriticalPart] = []
    for part in path:
        if merged and merged[-1].rank == part.rank:
            merged[-1] = merged[-1]._replace(end_s=part.end_s, until=part.until)
        else:
            merged.append(part)
    return merged[:MAX_COLLECTIVES]
