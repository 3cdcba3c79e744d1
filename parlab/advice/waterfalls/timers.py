"""Timers of trainers by what they measure. They nest, so that only one of a nested pair counts.

Names: Megatron-LM (megatron/training/training.py, core/timers.py), DeepSpeed (runtime/engine.py, EngineTimers),
parlab's engines (docs/understand/engines.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Timer(NamedTuple):
    """Seconds of a timer in a step: mean over the ranks, range over the ranks, and by rank where known."""

    mean: float
    low: float
    high: float
    by_rank: Mapping[str, float] = {}

    @property
    def is_range(self) -> bool:
        """Whether ranks differ, so that the shortest time is that of the rank that arrived last."""
        return self.high > self.low


class Groups(NamedTuple):
    """Timers of a step by what they measure; empty without such timers."""

    forward: Mapping[str, Timer]
    backward: Mapping[str, Timer]
    both: Mapping[str, Timer]
    """Timers around all passes with their communication; only if there are none of single passes."""
    loading: Mapping[str, Timer]
    inner_loading: Mapping[str, Timer]
    """Data loading inside forward passes."""
    pipeline: Mapping[str, Timer]
    tensor: Mapping[str, Timer]
    data: Mapping[str, Timer]
    optimizer: Mapping[str, Timer]
    logging: Mapping[str, Timer]
    unused: tuple[str, ...] = ()
    """Timers that overlap with others, or whose meaning is unknown."""


# Of each row the first name that is present counts; further rows add to it.
_FORWARD = (("forward-compute", "fwd", "fwd_microstep", "forward_microstep", "forward"),)
_BACKWARD = (
    ("backward-compute", "backward-backward", "bwd_inner", "bwd_inner_microstep", "backward_inner_microstep", "bwd",
     "bwd_microstep", "backward"),
    ("backward-weight",),
)  # fmt: skip
_BOTH = (("forward-backward", "fwd_bwd_time", "forward_backward"),)
_INNER_LOADING = (("batch-generator", "batch generator"),)
_LOADING = (("data", "data_loading", "data-loading", "data_loader", "dataloader", "batch_input"),)
_TENSOR = (
    ("non-tensor-parallel-grads-all-reduce", "layernorm-grads-all-reduce", "backward-layernorm-all-reduce"),
    ("conditional-embedder-grads-all-reduce",),
)
_DATA = (
    ("all-grads-sync", "grads-reduce-scatter", "grads-all-reduce", "backward-params-all-reduce", "backward-allreduce",
     "bwd_allreduce", "bwd_allreduce_microstep", "backward_allreduce_microstep", "allreduce"),
    ("params-all-gather", "backward-gather-model-params"),
    ("embedding-grads-all-reduce", "backward-embedding-all-reduce"),
)  # fmt: skip
_OPTIMIZER = (("optimizer", "step", "step_microstep", "optimizer_step", "optimizer-step"),)
_LOGGING = (
    ("save-checkpoint", "save_checkpoint", "checkpoint"),
    ("save-checkpoint-non-persistent",),
    ("interval-logging", "logging"),
)
_TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv", "forward-backward-send")
PER_MICRO_BATCH = ("fwd_microstep", "forward_microstep", "bwd_inner_microstep", "backward_inner_microstep")
"""DeepSpeed prints these for the last micro batch of a step."""


def grouped(timers: Mapping[str, Timer], micro_batches: int = 1) -> Groups:
    """Sort timers by what they measure. `micro_batches` are those of a rank and step."""
    timers = {name: _whole(timer, micro_batches if name in PER_MICRO_BATCH else 1) for name, timer in timers.items()}
    forward, backward = _chosen(timers, _FORWARD), _chosen(timers, _BACKWARD)
    if "backward" in backward and "backward-allreduce" in timers:
        backward = {"backward": _without(timers["backward"], timers["backward-allreduce"])}
    both = {} if forward or backward else _chosen(timers, _BOTH)
    pipeline = {name: timer for name, timer in timers.items() if name.startswith(_TRANSFERS)}
    groups = Groups(
        forward,
        backward,
        both,
        _chosen(timers, _LOADING),
        _chosen(timers, _INNER_LOADING),
        pipeline,
        _chosen(timers, _TENSOR),
        _chosen(timers, _DATA),
        _chosen(timers, _OPTIMIZER),
        _chosen(timers, _LOGGING),
    )
    used = {name for group in groups[:-1] for name in group}
    return groups._replace(unused=tuple(sorted(set(timers) - used)))


def _chosen(timers: Mapping[str, Timer], rows: Iterable[tuple[str, ...]]) -> dict[str, Timer]:
    names = (next((name for name in row if name in timers), "") for row in rows)
    return {name: timers[name] for name in names if name}


def _whole(timer: Timer, times: int) -> Timer:
    if times == 1:
        return timer
    by_rank = {rank: times * seconds for rank, seconds in timer.by_rank.items()}
    return Timer(times * timer.mean, times * timer.low, times * timer.high, by_rank)


def _without(timer: Timer, inner: Timer) -> Timer:
    return Timer(max(0.0, timer.mean - inner.mean), max(0.0, timer.low - inner.low), max(0.0, timer.high - inner.high))


def total(group: Mapping[str, Timer]) -> Timer:
    """Add up timers. The range is exact where all have times by rank, otherwise that of the single timers added up."""
    mean = sum(timer.mean for timer in group.values())
    ranks = set.union(*(set(timer.by_rank) for timer in group.values())) if group else set()
    if len(ranks) > 1:
        by_rank = {rank: sum(timer.by_rank.get(rank, 0.0) for timer in group.values()) for rank in ranks}
        return Timer(mean, min(by_rank.values()), max(by_rank.values()), by_rank)
    return Timer(mean, sum(timer.low for timer in group.values()), sum(timer.high for timer in group.values()))


def text(group: Mapping[str, Timer]) -> str:
    """Name timers: `timers forward-compute and backward-compute`."""
    names = list(group)
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"timer{'s' if len(names) > 1 else ''} {listed}"
