"""What the timers of a step add up to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from parlab.findings.doubts import Amount, Counts, Doubt, RunFacts, looks_like, percent, ratio_of, shown
from parlab.findings.facts import Sizes, count, figure_amount, number, part, segment_sizes, stated
from parlab.findings.rates import run_step
from parlab.formats.schema import Document, Segment

TIMERS_ABOVE = 1.10
"""Timers of one rank follow each other, so their sum cannot exceed the step. Published healthy pairs reach 1.02."""

TIMERS_BELOW = 0.5
"""What timers leave out (data, logging, gaps) is at most a tenth in published healthy pairs; half is another unit."""

RUN_TIMERS_BELOW = 0.25
"""Ranks of our own runs on a busy machine may time 70 % of a step: medians of noisy steps do not add up."""

LEAST_STEPS = 5
"""Medians of fewer steps may be of different ones: timers are often printed for every tenth."""

# Timers that follow each other on a rank; everything else is set-up, evaluation, or nested in one of these.
_TOP_LEVEL = frozenset(
    {
        "forward-backward", "forward-compute", "backward-compute", "forward", "backward", "step",
        "forward-recv", "forward-send", "backward-recv", "backward-send", "forward-send-forward-recv",
        "forward-send-backward-recv", "backward-send-forward-recv", "backward-send-backward-recv",
        "backward-reduce-model-grads", "backward-params-all-reduce", "backward-layernorm-all-reduce",
        "backward-embedding-all-reduce", "backward-gather-model-params", "grads-all-reduce", "grads-reduce-scatter",
        "all-grads-sync", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "params-all-gather", "optimizer",
    }
)  # fmt: skip
_COMPUTE = frozenset({"forward-backward", "forward-compute", "forward"})
# A timer -> those that it contains (Megatron-LM, megatron/training.py and schedules.py; 1.x has forward and backward).
_CONTAINS: dict[str, tuple[str, ...]] = {
    "forward-backward": ("forward-", "backward-send", "backward-recv", "backward-compute"),
    "backward-reduce-model-grads": (
        "backward-params-all-reduce", "backward-layernorm-all-reduce", "backward-embedding-all-reduce",
    ),
    "all-grads-sync": ("grads-all-reduce", "layernorm-grads-all-reduce", "embedding-grads-all-reduce",
                       "grads-reduce-scatter"),
    "forward": ("forward-",),
    "backward": ("backward-",),
}  # fmt: skip
_OVERLAPS = ("overlap_grad_reduce", "overlap_p2p_comm", "overlap_param_gather", "delay_grad_reduce")


def top_level(names: Iterable[str]) -> list[str]:
    """Choose the timers that follow each other; those that are nested in another one of them are left out."""
    chosen = _TOP_LEVEL.intersection(names)
    for outer, inner in _CONTAINS.items():
        if outer in chosen:
            chosen -= {name for name in chosen if name != outer and name.startswith(inner)}
    return sorted(chosen)


class Timed(NamedTuple):
    """A step and its timers, both seconds, over the same steps."""

    step_s: Amount
    timers_s: Mapping[str, float]
    least_s: Mapping[str, float]
    """What the fastest rank or record took: the slowest ranks of several timers are not the same rank."""
    slow_step_s: float
    """What slow steps took, where the step time is a median."""
    below: float
    """The share of the step that timers must reach."""
    basis: str
    """What the step time is, in words."""


def timers(timed: Timed, counts: Counts | None = None) -> Doubt | None:
    """Compare the sum of top-level timers with the step time; says nothing where not even compute is timed."""
    names = top_level(timed.timers_s)
    total, least = (sum(of[name] for name in names) for of in (timed.timers_s, timed.least_s))
    step = timed.step_s
    if len(names) < 2 or not _COMPUTE.intersection(names) or step.value <= 0:
        return None
    if least > timed.slow_step_s * TIMERS_ABOVE + step.slack:
        total = least
    elif total >= step.value * timed.below - step.slack:
        return None
    share = total / step.value
    return Doubt(
        f"The timers {', '.join(names)} add up to {shown(total)} s, {percent(share)} of the step of {shown(step.value)}"
        f" s ({timed.basis}){looks_like(max(share, 1 / share) if share else math.inf, counts, TIMERS_ABOVE - 1)}.",
        {"timers_s": total, "step_time_s": step.value},
    )


def timers_in_document(document: Document) -> Iterator[Doubt]:
    for index, segment in enumerate(document.segments):
        sizes = segment_sizes(segment)
        timed = _timed(segment, sizes)
        if timed and not any(segment.launch.arguments.get(name) for name in _OVERLAPS):
            doubt = timers(timed, sizes.counts)
            if doubt:
                line = (told := stated(segment, "ms_per_sample")) and told.line
                yield doubt.at(line or (segment.last.line if segment.last else None), segment=index, figure="timers_s")


def _timed(segment: Segment, sizes: Sizes) -> Timed | None:
    """Pair timers with the step time of the same steps; None where they were not printed with each record."""
    counts = {name: segment.timers_s[name].count for name in top_level(segment.timers_s)}
    values = {name: segment.timers_s[name].mean for name in counts}
    least = {name: segment.timers_s[name].min for name in counts}
    told = stated(segment, "ms_per_sample")
    if segment.step_time_s and counts and set(counts.values()) == {segment.records}:
        step = segment.step_time_s.mean
        return Timed(Amount(step), values, least, step, TIMERS_BELOW, f"mean of {segment.records} records")
    if not segment.records and told and sizes.global_batch:
        ms = figure_amount(told)
        basis = f"{shown(ms.value)} ms per sample x {shown(sizes.global_batch)} samples"
        stated_step = ms.scaled(sizes.global_batch / 1e3)
        return Timed(stated_step, values, least, stated_step.value, TIMERS_BELOW, basis)
    return None


def timers_of_run(run: RunFacts) -> Iterator[Doubt]:
    """Check the timers of each rank against the step, and name the rank that is furthest off."""
    step, found = run_step(run), part(run.summary, "timers_s")
    steps = count(part(run.summary, "steps").get("count"))
    if step is None or (steps is not None and steps < LEAST_STEPS):
        return
    by_rank: dict[str, dict[str, float]] = {}
    least: dict[str, dict[str, float]] = {}
    for name in top_level(found):
        timer = part(found, name)
        ranks = part(timer, "by_rank") or {"": timer.get("median")}
        for rank, value in ranks.items():
            if (seconds := number(value)) is not None:
                by_rank.setdefault(str(rank), {})[name] = seconds
                # One speaker may stand for the slowest of all ranks, a different one for each timer.
                low = number(timer.get("min")) if len(ranks) == 1 else None
                least.setdefault(str(rank), {})[name] = seconds if low is None else min(low, seconds)
    slow = number(part(run.summary, "step_time_s").get("p90")) or step.value
    timed = {
        rank: Timed(step, of, least[rank], max(slow, step.value), RUN_TIMERS_BELOW, "median of its steps")
        for rank, of in by_rank.items()
    }
    doubts = {rank: doubt for rank, of in timed.items() if (doubt := timers(of))}
    if doubts:
        rank = max(doubts, key=lambda rank: ratio_of(doubts[rank].numbers["timers_s"], step.value))
        words = f"Rank {rank}: {doubts[rank].message}" if rank else doubts[rank].message
        yield doubts[rank]._replace(message=words).at(run=run.number, figure="timers_s")
