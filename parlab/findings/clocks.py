"""Times that must agree with clocks: steps with time stamps and bars, averages, first records, remaining time."""

from __future__ import annotations

from collections.abc import Iterator

from parlab.findings.contradictions import Contradiction, computed, shown
from parlab.findings.facts import segment_sizes
from parlab.findings.work import LEAST_RECORDS, OFF, last_line, printed_tokens, tokens_per_s
from parlab.formats.grammar.units import unix_time
from parlab.formats.schema import Document, Segment

# Evaluations and checkpoints lie between steps, so that clocks show more than the times of steps.
SHORT, LONG = 0.6, 3.0
STEADY_AVERAGE = 1.2
"""An average since the start that varies by less is also the time of the steps between two records."""
LEAST_CLOCK_S = 20.0
"""Time stamps of whole seconds say little about less."""
LEAST_BAR, BAR_LONG = 100, 50.0
"""A bar with fewer steps may still show its start; pauses make its mean at most so many times as long as a step."""
INSTANT = 0.1
"""A step that takes a smaller share of the median has not waited for its work."""
_PRINTED = "are printed"


def _clocked(segment: Segment) -> tuple[float, str] | None:
    """Return the time of a step by the numbers of a log, and how they state it.

    It is printed, an average that stays the same, or follows from the steps per second, or from the tokens of a step
    and their rate.
    """
    metrics = segment.metrics
    times, average, rates = (metrics.get(name) for name in ("step_time_s", "average_step_time_s", "steps_per_s"))
    if times is not None and times.kind == "printed":
        return times.median, _PRINTED
    if average is not None:
        is_steady = 0 < average.max < STEADY_AVERAGE * average.min
        return (average.last, _PRINTED) if is_steady else None
    if rates is not None:
        return (1 / rates.median, f"follow from {shown(rates.median)} steps/s") if rates.median > 0 else None
    sizes, tokens = segment_sizes(segment), printed_tokens(segment.launch)
    rate = tokens_per_s(segment, sizes.gpus)
    if times is not None or not tokens or not rate or sizes.is_ramped or sizes.is_curriculum:
        return None
    return tokens / rate, f"follow from {shown(float(tokens))} tokens and {shown(rate)} tokens/s"


def steps(document: Document) -> Iterator[Contradiction]:
    """Compare the step times that a log states with the time stamps of the first and the last step."""
    for index, segment in enumerate(document.segments):
        first, last, clocked = segment.first, segment.last, _clocked(segment)
        if first is None or last is None or clocked is None or first.rank != last.rank:
            continue
        stated_s, how = clocked
        stated = shown(stated_s) if how == _PRINTED else computed(stated_s)
        count = (last.iteration or 0) - (first.iteration or 0)
        began, ended = unix_time(first.time or ""), unix_time(last.time or "")
        if began is None or ended is None or count < LEAST_RECORDS or ended - began < LEAST_CLOCK_S:
            continue
        each = (ended - began) / count
        if SHORT * stated_s < each < LONG * stated_s:
            continue
        yield Contradiction(
            f"Steps of {stated} s {how}, but {shown(float(count))} steps took {shown(ended - began)} s by the"
            f" time stamps, {computed(each)} s each: the stated time is of"
            f" {'a part of a step' if each > stated_s else 'several steps'}.",
            {"stated_s": stated_s, "clock_s": each},
        ).at(first.line, last.line, segment=index, figure="step_time_s")


def bars(document: Document) -> Iterator[Contradiction]:
    """Compare the rate that a bar shows with its position and the time so far."""
    for index, segment in enumerate(document.segments):
        last, times = segment.last, segment.metrics.get("step_time_s")
        if last is None or times is None or times.kind != "smoothed" or (last.iteration or 0) < LEAST_BAR:
            continue
        elapsed, shown_s = last.values.get("elapsed_s", 0.0), last.values.get("step_time_s", 0.0)
        each = elapsed / (last.iteration or 1)
        if elapsed < LEAST_CLOCK_S or not 0 < BAR_LONG * shown_s < each:
            continue
        yield Contradiction(
            f"The bar shows {shown(1 / shown_s)} steps/s, but {shown(float(last.iteration or 0))} steps took"
            f" {shown(elapsed)} s, {computed(each)} s each: the bar does not time steps.",
            {"bar_s": shown_s, "clock_s": each},
        ).at(last.line, segment=index, figure="step_time_s")


def averages(document: Document) -> Iterator[Contradiction]:
    """Report step times that are averages since the start of the training, though nothing says so."""
    for index, segment in enumerate(document.segments):
        times, time = segment.metrics.get("step_time_s"), segment.step_time_s
        if times is None or time is None or times.kind != "average":
            continue
        yield Contradiction(
            f"Step times fall from {shown(times.first)} to {shown(times.last)} s as an average since the start does:"
            f" the later steps take {computed(time.median)} s each, and the run has not become faster.",
            {"first_s": times.first, "last_s": times.last, "recent_s": time.median},
        ).at(last_line(segment), segment=index, figure="step_time_s")


def first_records(document: Document) -> Iterator[Contradiction]:
    """Find a first step that is said to take a small part of the time of all others."""
    for index, segment in enumerate(document.segments):
        times = segment.metrics.get("step_time_s")
        if times is None or times.count < 3 or times.kind != "printed" or segment.first is None:
            continue
        if not 0 < times.first < INSTANT * times.median:
            continue
        yield Contradiction(
            f"The first step takes {shown(times.first)} s, the median is {shown(times.median)} s: it did not wait for"
            " its work; leave its time and rates out.",
            {"first_s": times.first, "median_s": times.median},
        ).at(segment.first.line, segment=index, figure="step_time_s")


def remaining(document: Document) -> Iterator[Contradiction]:
    """Find a remaining time below 0."""
    for index, segment in enumerate(document.segments):
        left = next((segment.metrics[name] for name in _REMAINING if name in segment.metrics), None)
        if left is None or left.last >= 0:
            continue
        yield Contradiction(
            f"The remaining time is {shown(left.last)} s: more steps were made than planned, as after a change of the"
            " batch size or the number of GPUs.",
            {"remaining_s": left.last},
        ).at(last_line(segment), segment=index, figure="eta_s")


_REMAINING = ("eta_s", "remaining_s", "remaining_time_s")


def tokens(document: Document) -> Iterator[Contradiction]:
    """Compare a rate of tokens with the number and the seconds that a summary states beside it."""
    for index, segment in enumerate(document.segments):
        count, rate = (segment.metrics.get(name) for name in ("total_tokens", "tokens_per_s"))
        seconds = next((segment.metrics[name] for name in _RUNTIMES if name in segment.metrics), None)
        if count is None or rate is None or seconds is None or segment.records or not count.count == rate.count == 1:
            continue
        if seconds.last <= 0 or rate.last <= 0 or 1 / OFF < count.last / seconds.last / rate.last < OFF:
            continue
        yield Contradiction(
            f"{shown(count.last)} tokens in {shown(seconds.last)} s are {computed(count.last / seconds.last)} tokens/s,"
            f" but {shown(rate.last)} are printed.",
            {"tokens": count.last, "seconds": seconds.last, "printed": rate.last},
        ).at(segment.lines.first if segment.lines else None, segment=index, figure="tokens_per_s")


_RUNTIMES = ("training_time_s", "train_runtime_s", "train_time_s", "total_time_s")
