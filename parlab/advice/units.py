"""Advice for engines without steps: bandwidths by message size, capacity searches and DeepSpeed's autotuner.

A run of these is judged by its unit: the time of a GiB in the largest messages, of the whole search, or of a sample in
the best experiment. Gains are shares of that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .advice import Advice
from .rules import SMALLEST_GAIN

BOUND = 0.5
"""Share of the largest message's time from which latency is the cause."""
_HIDDEN = 0.1
"""Share of latency in the messages that are advised."""
_LARGEST_BYTES = 1 << 30
_FEWEST_STEPS = 2
"""Steps until the peak of the memory: the first one creates the states of the optimizer."""
_WIDER = 4
"""How much further a search should look; beyond that, the fit of its times is a guess."""


class Message(NamedTuple):
    """A message size with its mean time."""

    size: int
    """Bytes."""
    seconds: float


def message_advice(by_operation: Mapping[str, Sequence[Message]], size_factor: int) -> list[Advice]:
    """Advise larger messages where latency takes most of the largest one.

    time = latency + size / rate, through the smallest and the largest message of an operation (Hockney 1994).
    """
    if not by_operation or size_factor < 2:
        return []
    fits = [_fit(messages) for messages in by_operation.values() if messages]
    largest = max(fit.size for fit in fits)
    share = sum(fit.latency_share for fit in fits) / len(fits)
    if share < BOUND:
        return []
    size = largest
    while size * size_factor <= _LARGEST_BYTES and _latency_share(fits, size) > _HIDDEN:
        size *= size_factor
    now_s, then_s = (sum(fit.seconds(at) / at for fit in fits) for at in (largest, size))
    gain = 1 - then_s / now_s
    if gain < SMALLEST_GAIN:
        return []
    latency_s = max(fit.latency_s for fit in fits)
    evidence = (
        f"messages of {bytes_text(largest)} take {1e3 * fits[0].seconds(largest):.3g} ms, of which latency"
        f" ({1e3 * latency_s:.3g} ms) takes {100 * share:.3g} %"
    )
    return [
        Advice(
            "messages",
            f"Messages up to {bytes_text(size)} instead of {bytes_text(largest)}",
            gain,
            0.7 * gain,
            min(1.0, 1.1 * gain),
            "latency",
            "message time = latency + size / rate, from the smallest and the largest message; the gain is per byte",
            evidence,
            {"collectives.max_bytes": size},
        )
    ]


class _Fit(NamedTuple):
    size: int
    latency_s: float
    s_per_byte: float

    def seconds(self, size: int) -> float:
        return self.latency_s + self.s_per_byte * size

    @property
    def latency_share(self) -> float:
        return self.latency_s / self.seconds(self.size)


def _fit(messages: Sequence[Message]) -> _Fit:
    """Fit latency and rate. With one size the latency is not separable and counts as 0."""
    ordered = sorted(messages)
    first, last = ordered[0], ordered[-1]
    if first.size == last.size:
        return _Fit(last.size, 0.0, last.seconds / last.size)
    per_byte = max(0.0, last.seconds - first.seconds) / (last.size - first.size)
    return _Fit(last.size, max(0.0, last.seconds - per_byte * last.size), per_byte)


def _latency_share(fits: Sequence[_Fit], size: int) -> float:
    return sum(fit.latency_s / fit.seconds(size) for fit in fits) / len(fits)


class Trial(NamedTuple):
    """A short training of a capacity search."""

    seconds: float
    """With start-up."""
    step_s: float | None
    """None: it did not fit, or printed no mean step time."""


def trial_advice(trials: Sequence[Trial], iterations: int, warmup: int) -> list[Advice]:
    """Advise shorter trials: whether a size fits shows in the first two steps."""
    total_s = sum(trial.seconds for trial in trials)
    if iterations <= _FEWEST_STEPS or total_s <= 0:
        return []
    steps_s = sum(min(trial.seconds, iterations * trial.step_s) for trial in trials if trial.step_s)
    gain = steps_s / total_s * (1 - _FEWEST_STEPS / iterations)
    if gain < SMALLEST_GAIN:
        return []
    settings = {"train.iterations": _FEWEST_STEPS, "train.warmup_steps": min(warmup, _FEWEST_STEPS - 1)}
    return [
        Advice(
            "trials",
            f"Trials of {_FEWEST_STEPS} steps instead of {iterations}",
            gain,
            0.7 * gain,
            min(1.0, 1.1 * gain),
            "trials",
            "a trial needs as many steps as its memory takes to peak; its start-up stays",
            f"{len(trials)} trials took {total_s:.3g} s, of which their steps took {100 * steps_s / total_s:.3g} %",
            settings,
        )
    ]


class Experiment(NamedTuple):
    zero_stage: int
    micro_batch_size: int
    sample_s: float
    """Seconds of the whole training per sample; all ranks together."""


def tuning_advice(
    experiments: Iterable[Experiment], most: int, stages: Sequence[int], stage_gains: Mapping[int, float]
) -> list[Advice]:
    """Advise a wider search where the best experiment lies at its border.

    `most` is the largest micro batch of the search, `stages` are its ZeRO stages, and `stage_gains` the predicted share
    of the time that each other stage saves for the best experiment.
    """
    rows = list(experiments)
    if not rows:
        return []
    best = min(rows, key=lambda row: row.sample_s)
    return [*_wider(rows, best, most), *_stages(best, stages, stage_gains)]


def _wider(rows: Sequence[Experiment], best: Experiment, most: int) -> list[Advice]:
    """Time of a micro batch = constant + slope x its size, through the two largest of the best stage."""
    peers = {row.micro_batch_size: row for row in rows if row.zero_stage == best.zero_stage}
    sizes = sorted(peers)
    if len(sizes) < 2 or best.micro_batch_size != sizes[-1] or 2 * best.micro_batch_size <= most:
        return []  # the tuner tried larger ones, which were slower or did not fit
    small, large = (peers[size] for size in sizes[-2:])
    small_s, large_s = (row.sample_s * row.micro_batch_size for row in (small, large))
    slope = max(0.0, (large_s - small_s) / (large.micro_batch_size - small.micro_batch_size))
    size = _WIDER * most
    after_s = max(0.0, large_s - slope * large.micro_batch_size) / size + slope
    gain = 1 - after_s / large.sample_s
    if gain < SMALLEST_GAIN:
        return []
    evidence = (
        f"the best experiment has the largest micro batch that was tried, {large.micro_batch_size}: it takes"
        f" {1e3 * large.sample_s:.3g} ms per sample, micro batch {small.micro_batch_size} {1e3 * small.sample_s:.3g} ms"
    )
    return [
        Advice(
            "search",
            f"Search micro batches up to {size} instead of {most}",
            gain,
            0.3 * gain,
            min(1.0, 1.2 * gain),
            "search",
            "time of a micro batch = constant + slope x its size, from the two largest that were tried",
            evidence,
            {"autotuning.max_micro_batch_size": size},
        )
    ]


def _stages(best: Experiment, stages: Sequence[int], gains: Mapping[int, float]) -> list[Advice]:
    better = {stage: gain for stage, gain in gains.items() if stage not in stages and gain >= SMALLEST_GAIN}
    if not better:
        return []
    stage = max(better, key=lambda each: better[each])
    gain = better[stage]
    return [
        Advice(
            "search",
            f"Search ZeRO stage {stage} too",
            gain,
            gain - 0.15,
            min(1.0, gain + 0.15),
            "search",
            "the planner's ratio of the best experiment after and before the change",
            f"the best experiment has ZeRO stage {best.zero_stage}; stage {stage} was not searched and fits",
            {"autotuning.stages": sorted({*stages, stage})},
        )
    ]


def bytes_text(size: int) -> str:
    """Write a size with its largest unit: `64 KiB`."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.4g} {unit}"
    return f"{size} B"
