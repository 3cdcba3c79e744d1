"""Advice that no setting follows: what the measurements alone show."""

from __future__ import annotations

from typing import NamedTuple

from .advice import Advice
from .waterfall import Waterfall

NOTICEABLE = 0.03
"""Share of the step from which waits and data loading are worth a look."""
SLOWER = 0.1
"""Excess of a rank over the others that is not the noise of a step."""
HOST_BOUND = 0.1
BELOW_RATE = 0.6
"""Share of the rate of a link below which large collectives are slow; NCCL reaches 0.7 to 0.9 of it."""


class Reached(NamedTuple):
    """Bus bandwidth of the large collectives of a trace beside the rate of the links, in bytes/s."""

    bandwidth: float
    rate: float
    share: float
    """Share of the traced step that their exposed time takes."""


def looks(
    waterfall: Waterfall,
    slowest: tuple[int, float] | None,
    slowest_stage: tuple[int, float] | None,
    idle_host_share: float | None,
    reached: Reached | None,
) -> list[Advice]:
    """Return what to look at; the arguments are those of rules.Case."""
    rows = [_slow_rank(waterfall, slowest), _slow_stage(waterfall, slowest_stage), _loading(waterfall)]
    rows += [_host(idle_host_share), _network(reached)]
    return [row for row in rows if row is not None]


def _slow_rank(waterfall: Waterfall, slowest: tuple[int, float] | None) -> Advice | None:
    return _straggler(
        waterfall,
        slowest,
        kind="rank",
        title="Look at rank {rank}",
        cause="the others wait while the slowest rank computes",
        reading="rank {rank} computes {excess:.3g} % longer than the median rank",
    )


def _slow_stage(waterfall: Waterfall, slowest: tuple[int, float] | None) -> Advice | None:
    return _straggler(
        waterfall,
        slowest,
        kind="stages",
        title="Give the stage of rank {rank} fewer layers, or look at its device",
        cause="all stages wait for the slowest one in every micro batch",
        reading="the stage of rank {rank} computes {excess:.3g} % longer than the mean of the stages",
    )


def _straggler(
    waterfall: Waterfall, slowest: tuple[int, float] | None, *, kind: str, title: str, cause: str, reading: str
) -> Advice | None:
    """Advise on a rank for which others wait; `slowest` is the rank and by what share it computes longer."""
    waiting = waterfall.share("straggler")
    if slowest is None or waiting < NOTICEABLE or slowest[1] < SLOWER:
        return None
    rank, excess = slowest
    reading = reading.format(rank=rank, excess=100 * excess)
    return Advice(kind, title.format(rank=rank), waiting, 0.5 * waiting, waiting, "straggler", cause, reading, {})


def _loading(waterfall: Waterfall) -> Advice | None:
    loading = waterfall.share("loading")
    if loading < NOTICEABLE:
        return None
    return Advice(
        "loading",
        "Load batches ahead with more data workers",
        loading,
        0.5 * loading,
        loading,
        "loading",
        "data loading that compute does not hide can be hidden",
        f"data loading takes {100 * loading:.3g} % of the step",
        {},
    )


def _host(share: float | None) -> Advice | None:
    if share is None or share < HOST_BOUND:
        return None
    return Advice(
        "host",
        "Launch fewer kernels: compile the model or record CUDA graphs",
        share,
        0.3 * share,
        share,
        "host",
        "the device waits for launches",
        f"in the trace the device waits for the host {100 * share:.3g} % of a step",
        {},
    )


def _network(reached: Reached | None) -> Advice | None:
    if reached is None or reached.share < NOTICEABLE or reached.bandwidth > BELOW_RATE * reached.rate:
        return None
    gain = reached.share * (1 - reached.bandwidth / reached.rate)
    return Advice(
        "network",
        "Look at the network: collectives are below its rate",
        gain,
        0.3 * gain,
        gain,
        "data",
        "exposed time of large collectives x what is missing to the rate of the link",
        f"large collectives reach {reached.bandwidth / 1e9:.3g} of {reached.rate / 1e9:.3g} GB/s",
        {},
    )
