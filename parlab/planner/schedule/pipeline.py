"""What a simulation is given: compute times, links and messages of one pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

MAX_RANKS = 64
MAX_MICRO_BATCHES = 4096
MAX_PASSES = 65_536
"""Passes of all ranks together: a simulation of so many takes a fifth of a second."""
_LONGEST_S = 86_400.0


class StageTimes(NamedTuple):
    """Seconds that one micro batch takes on one rank, all its chunks together."""

    forward_s: float
    backward_s: float
    """The whole backward pass, activations computed again included."""
    weight_s: float = 0.0
    """Of that, the gradients of the weights: what zero-bubble schedules put off."""

    @property
    def both_s(self) -> float:
        """Forward and backward: t."""
        return self.forward_s + self.backward_s


class Link(NamedTuple):
    """What leaves one rank: whatever it sends shares the bandwidth, and each message is delayed one way."""

    delay_s: float = 0.0
    bits_per_s: float = math.inf

    def wire_s(self, message_bytes: float) -> float:
        """Return how long a message keeps the link busy, without the delay."""
        return 8 * message_bytes / self.bits_per_s

    def hop_s(self, message_bytes: float) -> float:
        """Return the way of one message alone, c: delay + bytes / bandwidth."""
        return self.delay_s + self.wire_s(message_bytes)


@dataclass(frozen=True)
class Pipeline:
    """The work of one iteration: times by rank, the outgoing link of each rank, and the size of what travels.

    Raises ValueError with field, value and remedy where a number makes no sense.
    """

    stages: tuple[StageTimes, ...]
    num_micro_batches: int
    links: tuple[Link, ...]
    """Of each rank; both its directions share it."""
    forward_bytes: float = 0.0
    """Activations of one micro batch between two stages."""
    backward_bytes: float = 0.0
    """Gradients of these activations."""
    step_s: float = 0.0
    """What every rank does once at the end of the iteration, such as the optimizer."""
    sends_block: bool = False
    """The computing thread waits until a message has left; else something beside it sends."""
    receives_ahead: bool = True
    """A message may arrive before its receiver asks; else it starts only then."""

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
                    " holds it; use at most that"
                )
        for rank, link in enumerate(self.links):
            _check_seconds(f"delay_s of link {rank}", link.delay_s)
            if not link.bits_per_s >= 1:
                raise ValueError(f"bits_per_s of link {rank} {link.bits_per_s:g} carries nothing; use at least 1")
        _check_seconds("step_s", self.step_s)
        for name, size in (("forward_bytes", self.forward_bytes), ("backward_bytes", self.backward_bytes)):
            if not 0 <= size < 2**50:
                raise ValueError(f"{name} {size:g} is no size of a message; use 0 to 2^50")

    @property
    def num_ranks(self) -> int:
        return len(self.stages)

    def forward_hop_s(self, rank: int) -> float:
        """Return the way of activations that leave a rank."""
        return self.links[rank].hop_s(self.forward_bytes)

    def backward_hop_s(self, rank: int) -> float:
        """Return the way of gradients that leave a rank."""
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
    """Make a pipeline of equal stages and links, with messages of one size both ways."""
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
    """Refuse a simulation that would keep a page waiting."""
    passes = sum(counts)
    if passes > MAX_PASSES:
        raise ValueError(f"{passes} passes are more than {MAX_PASSES}; use fewer stages, chunks or micro batches")


def _check_count(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise ValueError(f"{name} {value} cannot be simulated; use 1 to {most}")


def _check_seconds(name: str, value: float) -> None:
    if not 0 <= value <= _LONGEST_S:
        raise ValueError(f"{name} {value:g} is no time; use 0 to {_LONGEST_S:g} seconds")
