"""Advice that no setting follows: what the measurements alone show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from parlab.advice.waterfalls.waterfall import Waterfall

from .advice import Advice
from .goodput import NO_FAILURES, Failures, daly, lost_share
from .growth import Growth

NOTICEABLE = 0.03
"""Share of the step from which waits and data loading are worth a look."""
SLOWER = 0.1
"""Excess of a rank over the others that is not the noise of a step."""
HOST_BOUND = 0.1
IDLE = 0.2
"""The same without a trace: the counter of NVML samples coarsely."""
BELOW_RATE = 0.6
"""Share of the rate of a link below which large collectives are slow; NCCL reaches 0.7 to 0.9 of it."""
EXCHANGE = 0.15
"""Share of the step from which communication is worth a look that is a difference of two passes."""
PER_STEP = 0.25
"""Share of the step that does not depend on its samples, from which a larger batch is worth a try."""


class Slowest(NamedTuple):
    """The rank with the longest work, or its node if all ranks of the node are as slow."""

    rank: int
    excess: float
    """Over the median rank, or over the mean of the stages (0.2: 20 % longer)."""
    place: str = ""
    """How it is called; empty: by its rank."""
    work: str = "computes"
    """What it does longer."""

    @property
    def name(self) -> str:
        return self.place or f"rank {self.rank}"


class Checkpoints(NamedTuple):
    """Checkpoints that a run saves every some steps."""

    every_steps: float
    cost_s: float
    """Of one."""
    share: float
    """Of the wall time."""
    gpus: int
    every_s: float
    """Time between two of them, without their own."""
    failures: Failures = NO_FAILURES

    @property
    def failure_every_s(self) -> float:
        """Mean time between failures of the run."""
        return self.failures.gpu_every_s / max(1, self.gpus)

    @property
    def best_s(self) -> float:
        """Time between two checkpoints that loses the least, by Daly."""
        return max(daly(self.cost_s, self.failure_every_s), self.cost_s)

    def lost_share(self, every_s: float) -> float:
        """Return the share of the time without progress: checkpoints, and steps made again after failures."""
        return lost_share(self.cost_s, self.failure_every_s, every_s)


class Signs(NamedTuple):
    """What the measurements of a run show besides its waterfall; None: not measured."""

    slowest: Slowest | None = None
    slowest_stage: Slowest | None = None
    idle_host_share: float | None = None
    """Share of a traced step in which the device waits for the host."""
    busy_share: float | None = None
    """Share of the time in which the GPUs run any kernel (NVML), mean over the GPUs."""
    reached: Reached | None = None
    growths: Sequence[Growth] = ()
    checkpoints: Checkpoints | None = None
    is_plain: bool = False
    """Whether the run is a script that states no settings from which the planner could predict it."""


class Reached(NamedTuple):
    """Bus bandwidth of large collectives, from a trace or timers, beside the rate of the links, in bytes/s."""

    bandwidth: float
    rate: float
    share: float
    """Share of the step that their exposed time takes."""
    source: str = "in the trace large collectives reach"


NO_SIGNS = Signs()


def looks(waterfall: Waterfall, signs: Signs) -> list[Advice]:
    """Return what to look at, in no order."""
    rows = [_slow_rank(waterfall, signs.slowest), _slow_stage(waterfall, signs.slowest_stage), _loading(waterfall)]
    rows += [_host(signs.idle_host_share) if signs.idle_host_share is not None else _idle(waterfall, signs.busy_share)]
    rows += [_network(signs.reached), _checkpoint(signs.checkpoints)]
    if signs.is_plain:
        rows += [_exchange(waterfall), _batch(waterfall)]
    rows += [_memory(each) for each in signs.growths[:1]]
    return [row for row in rows if row is not None]


def _slow_rank(waterfall: Waterfall, slowest: Slowest | None) -> Advice | None:
    return _straggler(
        waterfall,
        slowest,
        kind="rank",
        title="Look at {name}",
        cause="the others wait while the slowest rank computes",
        reading="{name} {work} {excess:.3g} % longer than the median rank",
    )


def _slow_stage(waterfall: Waterfall, slowest: Slowest | None) -> Advice | None:
    return _straggler(
        waterfall,
        slowest,
        kind="stages",
        title="Give the stage of {name} fewer layers, or look at its device",
        cause="all stages wait for the slowest one in every micro batch",
        reading="the stage of {name} {work} {excess:.3g} % longer than the mean of the stages",
    )


def _straggler(
    waterfall: Waterfall, slowest: Slowest | None, *, kind: str, title: str, cause: str, reading: str
) -> Advice | None:
    """Advise on a rank for which others wait."""
    waiting = waterfall.share("straggler")
    if slowest is None or waiting < NOTICEABLE or slowest.excess < SLOWER:
        return None
    reading = reading.format(name=slowest.name, work=slowest.work, excess=100 * slowest.excess)
    title = title.format(name=slowest.name)
    return Advice(kind, title, 0.75 * waiting, 0.5 * waiting, waiting, "straggler", cause, reading, {})


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
    reading = f"in the trace the device waits for the host {100 * share:.3g} % of a step"
    return _fewer_kernels(share, "host", "the device waits for launches", reading)


def _idle(waterfall: Waterfall, busy: float | None) -> Advice | None:
    """Without a trace: what of the idle time of the GPUs neither data loading nor writing takes."""
    if busy is None:
        return None
    share = 1 - busy - waterfall.share("loading") - waterfall.share("logging")
    if share < IDLE:
        return None
    rule = "the GPUs run no kernel, and neither data loading nor writing takes that time; NCCL counts as a kernel"
    reading = f"the GPUs run no kernel {100 * (1 - busy):.3g} % of the time; record a trace to see where"
    return _fewer_kernels(share, "unexplained", rule, reading)


def _fewer_kernels(share: float, part: str, rule: str, reading: str) -> Advice:
    title = "Launch fewer kernels: compile the model or record CUDA graphs"
    return Advice("host", title, share, 0.3 * share, share, part, rule, reading, {})


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
        f"{reached.source} {reached.bandwidth / 1e9:.3g} of {reached.rate / 1e9:.3g} GB/s",
        {},
    )


def _exchange(waterfall: Waterfall) -> Advice | None:
    share = waterfall.share("data")
    if share < EXCHANGE:
        return None
    return Advice(
        "network",
        "Exchange gradients faster: 16-bit gradients, fewer exchanges, or a faster network",
        0.5 * share,
        0.3 * share,
        share,
        "data",
        "16-bit gradients, or an exchange every second step, halve the exchange",
        f"the exchange of gradients takes {100 * share:.3g} % of the step",
        {},
    )


def _batch(waterfall: Waterfall) -> Advice | None:
    """Twice the samples in a step halve what a sample pays of the work that each step does once."""
    optimizer, data = waterfall.share("optimizer"), waterfall.share("data")
    share = optimizer + data
    if share < PER_STEP:
        return None
    return Advice(
        "batch",
        "Twice the samples per step: a larger batch, or accumulated gradients",
        0.5 * share,
        0.25 * share,
        0.5,
        "optimizer" if optimizer >= data else "data",
        "optimizer and exchange of gradients take the same time for more samples; the gain is per sample",
        f"work that does not depend on the batch takes {100 * share:.3g} % of the step",
        {},
    )


def _checkpoint(checkpoints: Checkpoints | None) -> Advice | None:
    if checkpoints is None or checkpoints.cost_s <= 0:
        return None
    gain = checkpoints.lost_share(checkpoints.every_s) - checkpoints.lost_share(checkpoints.best_s)
    is_less_often = checkpoints.best_s > checkpoints.every_s
    if gain < NOTICEABLE or (is_less_often and checkpoints.share < NOTICEABLE):
        return None
    steps = max(1, round(checkpoints.every_steps * checkpoints.best_s / checkpoints.every_s))
    hours = checkpoints.failures.gpu_every_s / 3600
    return Advice(
        "checkpoint",
        f"Save checkpoints {'less' if is_less_often else 'more'} often: every {time_text(checkpoints.best_s)},"
        f" {steps:,} steps",
        gain,
        0.7 * gain,
        gain,
        "logging",
        "share of the wall time in checkpoints and in steps made again after failures, without that at Daly's interval;"
        f" {hours:,.3g} h between failures of a GPU ({checkpoints.failures.source})",
        f"a checkpoint every {checkpoints.every_steps:g} steps takes {100 * checkpoints.share:.3g} % of the time",
        {},
    )


def _memory(growth: Growth) -> Advice:
    when = "" if growth.full_in_s is None else f": {growth.place} is full in about {time_text(growth.full_in_s)}"
    return Advice(
        "memory",
        f"Find what keeps memory{when}",
        0.0,
        0.0,
        0.0,
        "memory",
        "memory that grows in every quarter of the time after the start ends the run; it does not shorten the step",
        f"{growth.place} grows by {60 * growth.rate.bytes_per_s / 2**20:.3g} MiB a minute,"
        f" {growth.rate.bytes_now / 2**30:.3g} GiB now",
        {},
    )


def time_text(seconds: float) -> str:
    """Write a time with its largest unit: `12 min`."""
    for size, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
