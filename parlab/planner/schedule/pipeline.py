"""The input of a simulation: compute times, links and messages of one pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

MAX_RANKS = 64
MAX_MICRO_BATCHES = 4096
MAX_PASSES = 65_536
"""Upper limit of passes, all ranks together; simulating this number takes about 0.2 s."""
_LONGEST_S = 86_400.0


class StageTimes(NamedTuple):
    """Time of one micro batch on one rank, all chunks together (s)."""

    forward_s: float
    backward_s: float
    """The whole backward pass, including recomputation."""
    weight_s: float = 0.0
    """The weight gradients in the backward pass, which zero-bubble schedules defer."""

    @property
    def both_s(self) -> float:
        """Forward plus backward, t in the formulas."""
        return self.forward_s + self.backward_s


class Link(NamedTuple):
    """The outgoing link of one rank: all messages it sends share the bandwidth, and each has the one-way delay."""

    delay_s: float = 0.0
    bits_per_s: float = math.inf

    def wire_s(self, message_bytes: float) -> float:
        """Return how long a message occupies the link (s), without the delay."""
        return 8 * message_bytes / self.bits_per_s

    def hop_s(self, message_bytes: float) -> float:
        """Return the transfer time of a single message (s), c in the formulas: delay + bytes / bandwidth."""
        return self.delay_s + self.wire_s(message_bytes)


@dataclass(frozen=True)
class Pipeline:
    """One iteration of a pipeline: times and outgoing link of each rank, and message sizes.

    Raises ValueError with field, value and remedy for a value out of range.
    """

    stages: tuple[StageTimes, ...]
    num_micro_batches: int
    links: tuple[Link, ...]
    """Outgoing link of each rank; activations and gradients share it."""
    forward_bytes: float = 0.0
    """Activations of one micro batch between two stages."""
    backward_bytes: float = 0.0
    """Gradients of these activations."""
    step_s: float = 0.0
    """Work of every rank once at the end of the iteration, for example the optimizer (s)."""
    sends_block: bool = False
    """The computing thread waits until a message has left; otherwise sends are non-blocking."""
    receives_ahead: bool = True
    """Receives are posted ahead; otherwise a transfer starts only when its receiver waits for it."""

    def __post_init__(self) -> None:
        _check_count("stages", len(self.stages), MAX_RANKS)
        _check_count("num_micro_batches", self.num_micro_batches, MAX_MICRO_BATCHES)
        if len(self.links) != len(self.stages):
            raise ValueError(f"links has {len(self.links)} entries for {len(self.stages)} stages; give one for each")
        for rank, times in enumerate(self.stages):
            for name, seconds in zip(times._fields, times, strict=True):
                _check_seconds(f"{name} of stage {rank}", seconds)
            if times.weight_s > times.backward_s:
                raise ValueError(
                    f"weight_s of stage {rank} {times.weight_s:g} is more than backward_s {times.backward_s:g}, which"
                    " includes it; use at most that"
                )
        for rank, link in enumerate(self.links):
            _check_seconds(f"delay_s of link {rank}", link.delay_s)
            if not link.bits_per_s >= 1:
                raise ValueError(f"bits_per_s of link {rank} {link.bits_per_s:g} is out of range; use at least 1")
        _check_seconds("step_s", self.step_s)
        for name, size in (("forward_bytes", self.forward_bytes), ("backward_bytes", self.backward_bytes)):
            if not 0 <= size < 2**50:
                raise ValueError(f"{name} {size:g} is out of range; use 0 to 2^50")

    @property
    def num_ranks(self) -> int:
        return len(self.stages)

    def forward_hop_s(self, rank: int) -> float:
        """Return the transfer time of activations sent by a rank (s)."""
        return self.links[rank].hop_s(self.forward_bytes)

    def backward_hop_s(self, rank: int) -> float:
        """Return the transfer time of gradients sent by a rank (s)."""
        return self.links[rank].hop_s(self.backward_bytes)


def uniform(
    num_ranks: int,
    num_micro_batches: int,
    times: StageTimes,
    link: Link,
    message_bytes: float,
    *,
    step_s: float = 0.0,
    sends_block: bool = False,
    receives_ahead: bool = True,
) -> Pipeline:
    """Return a pipeline of equal stages and links, with messages of the same size in both directions."""
    _check_count("stages", num_ranks, MAX_RANKS)
    return Pipeline(
        stages=(times,) * num_ranks,
        num_micro_batches=num_micro_batches,
        links=(link,) * num_ranks,
        forward_bytes=message_bytes,
        backward_bytes=message_bytes,
        step_s=step_s,
        sends_block=sends_block,
        receives_ahead=receives_ahead,
    )


def check_passes(counts: Iterable[int]) -> None:
    """Raise ValueError for a simulation that would take too long for a page."""
    passes = sum(counts)
    if passes > MAX_PASSES:
        raise ValueError(f"{passes} passes are more than {MAX_PASSES}; use fewer stages, chunks or micro batches")


def _check_count(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise ValueError(f"{name} {value} is out of range; use 1 to {most}")


def _check_seconds(name: str, value: float) -> None:
    if not 0 <= value <= _LONGEST_S:
        raise ValueError(f"{name} {value:g} is out of range; use 0 to {_LONGEST_S:g} seconds")
