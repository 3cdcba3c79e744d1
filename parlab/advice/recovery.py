"""Recovery: what the time between an interruption and the first new step was spent on. Pure.

The parts of an interruption follow each other and add up to it. A part whose end no log states has no time of its own:
it is contained in the next one, which names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

TITLES: Mapping[str, str] = {
    "detect": "Detect",
    "drain": "Drain",
    "queue": "Queue",
    "start": "Start",
    "rendezvous": "Rendezvous",
    "load": "Load",
    "first_step": "First step",
    "repeated": "Repeated steps",
}
"""Parts in their order."""
MEANINGS: Mapping[str, str] = {
    "detect": "from the last step until the failure was noticed",
    "drain": "until all processes had ended",
    "queue": "until the next attempt had its nodes",
    "start": "until the first line of a rank: launcher, container, imports",
    "rendezvous": "until all ranks had met",
    "load": "until the last checkpoint was loaded",
    "first_step": "until the end of the first step: model, compilation, allocations",
    "repeated": "steps that had been made before",
}
SHORTER: Mapping[str, str] = {
    "detect": "set launcher.hang_timeout_s and launcher.collective_timeout_s to a few steps; a node that vanishes is"
    " noticed after its lease (--lease of its daemon)",
    "drain": "lower launcher.grace_s, or write checkpoints faster, so that ranks end before it is over",
    "queue": "keep a node free, queue the next job ahead (launcher.chain), or use a partition with priority",
    "start": "keep the image and the packages on a local disk of the nodes, and import less before the first line",
    "rendezvous": "start all nodes at the same time; check the network between them and the rendezvous timeout",
    "load": "write sharded checkpoints that each rank loads by itself, to a faster or a local disk",
    "first_step": "keep the compilation cache of torch (TORCHINDUCTOR_CACHE_DIR) on a disk that attempts share",
    "repeated": "write checkpoints more often, or when the warning signal comes (launcher.warn_before_s)",
}
"""What would shorten a part."""


class RecoveryPart(NamedTuple):
    key: str
    seconds: float
    contains: tuple[str, ...] = ()
    """Earlier parts that nothing tells from this one."""

    @property
    def title(self) -> str:
        return ", ".join([*(TITLES[key].lower() if place else TITLES[key] for place, key in enumerate(self.contains)),
                          TITLES[self.key].lower() if self.contains else TITLES[self.key]])  # fmt: skip


class Interruption(NamedTuple):
    """An interruption of a training: Unix seconds, and its parts."""

    name: str
    """`Attempt 1 to 2`, `Restart 1`."""
    reason: str
    begin_s: float
    end_s: float
    parts: tuple[RecoveryPart, ...]
    ranks: tuple[int, int] | None = None
    """Ranks before and after, where they are known."""
    repeated_steps: int = 0

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def longest(self) -> RecoveryPart | None:
        return max(self.parts, key=lambda part: part.seconds, default=None)

    @property
    def advice(self) -> str:
        """What would shorten the longest part."""
        return SHORTER[self.longest.key] if self.longest and self.longest.seconds > 0 else ""


def interruption(
    name: str,
    begin_s: float,
    ends_s: Mapping[str, float | None],
    *,
    reason: str = "",
    ranks: tuple[int, int] | None = None,
    repeated_steps: int = 0,
) -> Interruption:
    """Split an interruption at the ends of its parts (Unix seconds; None: not known).

    An end before that of an earlier part, from another clock, makes its part empty.
    """
    at, parts, unknown = begin_s, list[RecoveryPart](), list[str]()
    for key in TITLES:
        if key not in ends_s:
            continue
        end = ends_s[key]
        if end is None:
            unknown.append(key)
            continue
        parts.append(RecoveryPart(key, max(0.0, end - at), tuple(unknown)))
        at, unknown = max(at, end), []
    return Interruption(name, reason, begin_s, at, tuple(parts), ranks, repeated_steps)


def totals(interruptions: Iterable[Interruption]) -> dict[str, float]:
    """Return the seconds of each part over several interruptions, in the order of the parts."""
    seconds = dict.fromkeys(TITLES, 0.0)
    for each in interruptions:
        for part in each.parts:
            seconds[part.key] += part.seconds
    return {key: value for key, value in seconds.items() if value > 0}


class Hour(NamedTuple):
    begin_s: float
    seconds: float
    progress_s: float
    """In steps that lasted."""

    @property
    def share(self) -> float:
        return self.progress_s / self.seconds if self.seconds > 0 else 0.0


def by_hour(
    begin_s: float, end_s: float, steps: Iterable[tuple[Sequence[float], Sequence[float]]], hour_s: float = 3600.0
) -> list[Hour]:
    """Return the goodput of each hour; `steps` are begins and ends of lasting steps (Unix seconds) by attempt."""
    count = max(1, int(-(-(end_s - begin_s) // hour_s))) if end_s > begin_s else 0
    progress = [0.0] * count
    for begins, ends in steps:
        for begin, end in zip(begins, ends, strict=True):
            _spread(progress, max(begin, begin_s) - begin_s, min(end, end_s) - begin_s, hour_s)
    return [
        Hour(begin_s + place * hour_s, min(hour_s, end_s - begin_s - place * hour_s), seconds)
        for place, seconds in enumerate(progress)
    ]


def _spread(progress: list[float], begin: float, end: float, hour_s: float) -> None:
    """Add an interval to the hours that it is in."""
    while begin < end:
        place = min(int(begin // hour_s), len(progress) - 1)
        until = end if place == len(progress) - 1 else min(end, (place + 1) * hour_s)
        progress[place] += until - begin
        begin = until
