"""The sum of the timers of a step and the step time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from parlab.findings.contradictions import Amount, Contradiction, Counts, RunFacts, looks_like, percent, ratio_of, shown
from parlab.findings.facts import Sizes, count, figure_amount, number, part, segment_sizes, stated
from parlab.findings.rates import run_step
from parlab.formats.schema import Document, Segment

TIMERS_ABOVE = 1.10
"""Timers of one rank do not overlap, so their sum cannot exceed the step. Published healthy pairs reach 1.02."""

TIMERS_BELOW = 0.5
"""Time without a timer (data, logging, gaps) is at most 10 % in published healthy pairs; 50 % is a wrong unit."""

RUN_TIMERS_BELOW = 0.25
"""Timers of our own runs may cover only 70 % of a step on a busy machine: medians of noisy steps do not add up."""

LEAST_STEPS = 5
"""Medians of fewer steps may be of different steps: timers are often printed for every tenth step."""

# Timers that do not overlap on a rank; all others are set-up, evaluation, or nested in one of these.
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
# A timer -> prefixes of the timers that it contains (Megatron-LM, megatron/training.py and schedules.py; forward and
# backward are those of 1.x).
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
    """Return the timers that do not overlap; timers nested in another one are excluded."""
    chosen = _TOP_LEVEL.intersection(names)
    for outer, inner in _CONTAINS.items():
        if outer in chosen:
            chosen -= {name for name in chosen if name != outer and name.startswith(inner)}
    return sorted(chosen)


class Timed(NamedTuple):
    """A step time and its timers in seconds, over the same steps."""

    step_s: Amount
    timers_s: Mapping[str, float]
    least_s: Mapping[str, float]
    """Times of the fastest rank or record, because the slowest ranks of two timers may differ."""
    slow_step_s: float
    """The time of slow steps, if the step time is a median."""
    below: float
    """The share of the step that the timers must cover."""
    basis: str
    """Description of the step time."""


def timers(timed: Timed, counts: Counts | None = None) -> Contradiction | None:
    """Compare the sum of top-level timers with the step time, if the computation is timed."""
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
    return Contradiction(
        f"The timers {', '.join(names)} add up to {shown(total)} s, {percent(share)} of the step time of"
        f" {shown(step.value)} s"
        f" ({timed.basis}){looks_like(max(share, 1 / share) if share else math.inf, counts, TIMERS_ABOVE - 1)}.",
        {"timers_s": total, "step_time_s": step.value},
    )


def timers_in_document(document: Document) -> Iterator[Contradiction]:
    for index, segment in enumerate(document.segments):
        sizes = segment_sizes(segment)
        timed = _timed(segment, sizes)
        if timed and not any(segment.launch.arguments.get(name) for name in _OVERLAPS):
            contradiction = timers(timed, sizes.counts)
            if contradiction:
                line = (figure := stated(segment, "ms_per_sample")) and figure.line
                yield contradiction.at(
                    line or (segment.last.line if segment.last else None), segment=index, figure="timers_s"
                )


def _timed(segment: Segment, sizes: Sizes) -> Timed | None:
    """Pair timers with the step time of the same steps; None if they were not printed with each record."""
    counts = {name: segment.timers_s[name].count for name in top_level(segment.timers_s)}
    values = {name: segment.timers_s[name].mean for name in counts}
    least = {name: segment.timers_s[name].min for name in counts}
    figure = stated(segment, "ms_per_sample")
    if segment.step_time_s and counts and set(counts.values()) == {segment.records}:
        step = segment.step_time_s.mean
        return Timed(Amount(step), values, least, step, TIMERS_BELOW, f"mean of {segment.records} records")
    if not segment.records and figure and sizes.global_batch:
        ms = figure_amount(figure)
        basis = f"{shown(ms.value)} ms per sample x {shown(sizes.global_batch)} samples"
        stated_step = ms.scaled(sizes.global_batch / 1e3)
        return Timed(stated_step, values, least, stated_step.value, TIMERS_BELOW, basis)
    return None


def timers_of_run(run: RunFacts) -> Iterator[Contradiction]:
    """Check the timers of each rank against the step time, and report the rank with the largest difference."""
    step, all_timers = run_step(run), part(run.summary, "timers_s")
    steps = count(part(run.summary, "steps").get("count"))
    if step is None or (steps is not None and steps < LEAST_STEPS):
        return
    by_rank: dict[str, dict[str, float]] = {}
    least: dict[str, dict[str, float]] = {}
    for name in top_level(all_timers):
        timer = part(all_timers, name)
        ranks = part(timer, "by_rank") or {"": timer.get("median")}
        for rank, value in ranks.items():
            if (seconds := number(value)) is not None:
                by_rank.setdefault(str(rank), {})[name] = seconds
                # One rank may print the slowest of all ranks, which can be a different rank for each timer.
                low = number(timer.get("min")) if len(ranks) == 1 else None
                least.setdefault(str(rank), {})[name] = seconds if low is None else min(low, seconds)
    slow = number(part(run.summary, "step_time_s").get("p90")) or step.value
    timed = {
        rank: Timed(step, of, least[rank], max(slow, step.value), RUN_TIMERS_BELOW, "median of its steps")
        for rank, of in by_rank.items()
    }
    contradictions = {rank: contradiction for rank, of in timed.items() if (contradiction := timers(of))}
    if contradictions:
        rank = max(contradictions, key=lambda rank: ratio_of(contradictions[rank].numbers["timers_s"], step.value))
        message = f"Rank {rank}: {contradictions[rank].message}" if rank else contradictions[rank].message
        yield contradictions[rank]._replace(message=message).at(run=run.number, figure="timers_s")
