"""Repeats: runs of the same point, their mean and spread, and the differences that their noise explains. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from parlab.findings.noise import Noise, deviation, is_within, noise

from .format import SPACE, significant
from .points import RunPoint, Spread, Timer

APPROXIMATELY = "\N{ALMOST EQUAL TO}"
"""Marks values that repeats cannot tell from the best one."""


def with_deviation(text: str, values: Sequence[float], factor: float = 1.0) -> str:
    """Append the standard deviation of repeats to their mean, with its decimal places: `1.24 ± 0.03`."""
    if len(values) < 2:
        return text
    spread = deviation(values) / factor
    places = len(text.partition(".")[2])
    shown = f"{spread:.{places}f}"
    return f"{text}{SPACE}±{SPACE}{shown if float(shown) or not spread else significant(spread, 1)}"


def pooled(members: Sequence[RunPoint]) -> RunPoint:
    """Return repeats as one point: means, with the range of the step time instead of its percentiles."""
    first = members[0]
    if len(members) == 1:
        return first
    times = [point.step_time_s.median for point in members if point.step_time_s]
    ranks = {rank for point in members for rank in point.memory_by_rank}
    phases = dict.fromkeys(name for point in members for name in point.timers)
    return first._replace(
        step_time_s=Spread(fmean(times), min(times), max(times)) if times else None,
        memory_by_rank={
            rank: fmean(p.memory_by_rank[rank] for p in members if rank in p.memory_by_rank) for rank in sorted(ranks)
        },
        timers={name: _timer([point.timers[name] for point in members if name in point.timers]) for name in phases},
        samples_per_s=_mean(members, lambda point: point.samples_per_s),
        tokens_per_s=_mean(members, lambda point: point.tokens_per_s),
        memory_min=_mean(members, lambda point: point.memory_min),
        memory_max=_mean(members, lambda point: point.memory_max),
        mfu_pct=_mean(members, lambda point: point.mfu_pct),
        hfu_pct=_mean(members, lambda point: point.hfu_pct),
        gpu_util_pct=_mean(members, lambda point: point.gpu_util_pct),
        loss=_mean(members, lambda point: point.loss),
        fps=_mean(members, lambda point: point.fps),
        flops_per_gpu=_mean(members, lambda point: point.flops_per_gpu),
        repeats=tuple(members),
    )


def _mean(members: Sequence[RunPoint], value: Callable[[RunPoint], float | None]) -> float | None:
    values = [number for point in members if (number := value(point)) is not None]
    return fmean(values) if values else None


def _timer(timers: Sequence[Timer]) -> Timer:
    return Timer(
        fmean(timer.median for timer in timers), min(timer.min for timer in timers), max(timer.max for timer in timers)
    )


def each_run(points: Sequence[RunPoint]) -> list[RunPoint]:
    """Return the single runs, for tables of numbers that are exported."""
    return [run for point in points for run in (point.repeats or (point,))]


def values_of(point: RunPoint, value: Callable[[RunPoint], float | None]) -> list[float]:
    return [number for run in each_run([point]) if (number := value(run)) is not None]


def error_bars(
    points: Sequence[RunPoint], value: Callable[[RunPoint], float | None], factor: float = 1.0
) -> dict[str, Any] | None:
    """Return error bars from the smallest to the largest repeat; None if no point has repeats."""
    if not any(point.repeats for point in points):
        return None
    ranges = [(value(point), values_of(point, value)) for point in points]
    return bars_over(
        (None if mean is None else mean / factor, [number / factor for number in values]) for mean, values in ranges
    )


def bars_over(ranges: Iterable[tuple[float | None, Sequence[float]]]) -> dict[str, Any]:
    """Return error bars from each mean to the smallest and the largest of its values; none without both."""
    bars = [(max(v) - mean, mean - min(v)) if mean is not None and v else (0.0, 0.0) for mean, v in ranges]
    return asymmetric(bars)


def asymmetric(bars: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return error bars of these lengths, up and down."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [up for up, _ in bars],
        "arrayminus": [down for _, down in bars],
        "thickness": 1,
        "width": 3,
    }


def noise_of(points: Iterable[RunPoint], value: Callable[[RunPoint], float | None]) -> Noise | None:
    return noise(values_of(point, value) for point in points)


def lead_note(
    points: Sequence[RunPoint],
    value: Callable[[RunPoint], float | None],
    *,
    least_is_best: bool,
    subject: str = "",
) -> str:
    """Return which points the repeats cannot tell from the best one, for a caption; empty without repeats.

    `subject` names the best one where the sentence before it does not.
    """
    noisy = noise_of(points, value)
    numbers = {point.number: number for point in points if (number := value(point)) is not None}
    if noisy is None or len(numbers) < 2:
        return ""
    best, *others = sorted(
        (point for point in points if point.number in numbers),
        key=lambda point: numbers[point.number] * (1 if least_is_best else -1),
    )
    top = numbers[best.number]
    close = [p for p in others if is_within(numbers[p.number], top, noisy, count_of(p), count_of(best))]
    if not close:
        limit = percent(noisy.limit(count_of(best), 1))
        return f" {subject or 'It'} leads by more than the noise of the repeats ({limit})."
    names = ", ".join(f"run {point.number}" for point in close[:3])
    more = f" and {len(close) - 3} more" if len(close) > 3 else ""
    lead = f"The lead of {subject[:1].lower()}{subject[1:]}" if subject else "Its lead"
    return f" {lead} over {names}{more} is smaller than the noise of the repeats."


def count_of(point: RunPoint) -> int:
    return max(1, len(point.repeats))


def percent(share: float) -> str:
    return f"{significant(100 * share, 2)}{SPACE}%"


def grouped(points: Sequence[RunPoint], keys: Mapping[int, object]) -> list[RunPoint]:
    """Pool points with the same key (by run number) and state, at the place of the first."""
    groups: dict[tuple[object, str], list[RunPoint]] = {}
    for point in points:
        groups.setdefault((keys[point.number], point.state), []).append(point)
    return [pooled(members) for members in groups.values()]
