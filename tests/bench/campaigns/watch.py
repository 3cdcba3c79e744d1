"""Accuracy and speed of the detection of changes, beside Perfherder's rule. See docs/use/watch.md."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from parlab.watch.analysis.changes import Detector
from parlab.watch.analysis.node_shifts import Floats, Ints
from parlab.watch.analysis.tracks import scan
from tests.bench.campaigns.watch_series import KINDS, Simulated, Truth, simulated
from tests.bench.result import Result, Scale

SIZES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
TUNING_SEEDS = range(60)
"""The threshold was chosen on these; nothing is reported on them."""
SEEDS = range(1_000, 1_100)
TOLERANCE = 5
"""Results by which the place of a change may be off."""


class Reported(NamedTuple):
    """A change that a method reports: its place, and the result after which it was reported."""

    at: int
    raised: int


class Score(NamedTuple):
    """How the reports of a method compare with the changes that were made."""

    right: int = 0
    false: int = 0
    missed: int = 0
    points: int = 0
    delays: tuple[int, ...] = ()
    """Results from the first one of each change to its report."""
    from_half: tuple[int, ...] = ()
    """The same from the result at which a slope has reached half of its size."""
    from_full: tuple[int, ...] = ()
    """The same from the end of the slope; negative if it is reported before."""

    @property
    def f1(self) -> float:
        return 2 * self.right / max(2 * self.right + self.false + self.missed, 1)

    @property
    def false_per_1000(self) -> float:
        return 1000 * self.false / max(self.points, 1)

    def delay(self, share: float) -> float:
        return quantile(self.delays, share)


def quantile(delays: Sequence[int], share: float) -> float:
    return float(np.quantile(delays, share)) if delays else float("nan")


Method = Callable[[Sequence[Simulated]], list[list[Reported]]]


def ours(series: Sequence[Simulated]) -> list[list[Reported]]:
    """Detect all series of equal length together."""
    detector = Detector(len(series))
    values: Floats = np.array([row.values for row in series], dtype=np.float64).T
    nodes: Ints = np.array([row.nodes for row in series], dtype=np.int64).T
    reports: list[list[Reported]] = [[] for _ in series]
    for alarm in detector.extend(values, nodes):
        if not alarm.continues:
            reports[alarm.series].append(Reported(alarm.at, alarm.raised))
    return reports


def perfherder(
    series: Sequence[Simulated], *, window: int = 12, t: float = 7.0, percent: float = 2.0
) -> list[list[Reported]]:
    """Apply Perfherder's rule: Student's t of the 12 results on each side, weighted by distance, above 7 and 2 %.

    Of neighbouring places with such a t the largest counts (Treeherder, perfalert: `detect_changes`).
    """
    return [_perfherder(row.values, window, t, percent) for row in series]


def _perfherder(values: np.ndarray, window: int, limit: float, percent: float) -> list[Reported]:
    scores = np.zeros(len(values))
    weights = (window - np.arange(window)) / window
    for at in range(window, len(values) - window + 1):
        before, after = values[at - window : at][::-1], values[at : at + window]
        old, new = (float(np.average(part, weights=weights)) for part in (before, after))
        spread = (before.var(ddof=1) + after.var(ddof=1)) / 2
        scores[at] = abs(new - old) / max(np.sqrt(spread * 2 / window), 1e-9)
        if abs(new - old) / old * 100 < percent:
            scores[at] = 0.0
    reports, at = [], 0
    while at < len(scores):
        if scores[at] > limit:
            end = at
            while end < len(scores) and scores[end] > limit:
                end += 1
            best = at + int(np.argmax(scores[at:end]))
            reports.append(Reported(best, min(best + window - 1, len(values) - 1)))
            at = end
        at += 1
    return reports


def score_of(reports: Sequence[Reported], truths: Sequence[Truth], points: int) -> Score:
    """Match reports with changes; one change counts once."""
    left, false = list(truths), 0
    delays, from_half, from_full = [], [], []
    for report in reports:
        match = next((row for row in left if row.first - TOLERANCE <= report.at <= row.last + TOLERANCE), None)
        if match is None:
            false += 1
        else:
            left.remove(match)
            delays.append(report.raised - match.first)
            from_half.append(report.raised - (match.first + match.last) // 2)
            from_full.append(report.raised - match.last)
    return Score(len(delays), false, len(left), points, tuple(delays), tuple(from_half), tuple(from_full))


def total(scores: Sequence[Score]) -> Score:
    right, false, missed, points = (sum(row[at] for row in scores) for at in range(4))  # type: ignore[misc]
    delays = tuple(chain.from_iterable(row.delays for row in scores))
    from_half = tuple(chain.from_iterable(row.from_half for row in scores))
    from_full = tuple(chain.from_iterable(row.from_full for row in scores))
    return Score(right, false, missed, points, delays, from_half, from_full)


def measured(method: Method, seeds: Sequence[int], sizes: Sequence[float] = SIZES) -> dict[tuple[float, str], Score]:
    """Return the score of a method by size of the change and kind of the series."""
    cases = [(size, kind) for size in sizes for kind in KINDS]
    series = [simulated(seed, kind, size) for size, kind in cases for seed in seeds]
    rows = list(zip(method(series), series, strict=True))
    scores = [score_of(reports, row.truths, len(row.values)) for reports, row in rows]
    count = len(seeds)
    return {case: total(scores[at * count : (at + 1) * count]) for at, case in enumerate(cases)}


def _seeds(scale: Scale) -> range:
    return SEEDS[: scale.of(len(SEEDS))]


@cache
def _scores(method: Method, scale: Scale) -> dict[tuple[float, str], Score]:
    """Return the score of a method by size and kind, and print it once."""
    scores = measured(method, _seeds(scale))
    _print("parlab" if method is ours else "Perfherder's rule", scores)
    return scores


def f1_5pct(scale: Scale) -> Result:
    """Measure F1 of steps and slopes of 5 % over all kinds of series."""
    score, other = (
        total([row for (size, _), row in _scores(method, scale).items() if size == 0.05])
        for method in (ours, perfherder)
    )
    return Result(score.f1, f"{other.f1:.3f} by Perfherder's rule", len(_seeds(scale)), score.f1 / max(other.f1, 1e-9))


def false_per_1000(scale: Scale) -> Result:
    """Measure false alerts per 1,000 results over all kinds and sizes."""
    score, other = (total(list(_scores(method, scale).values())) for method in (ours, perfherder))
    against = f"{other.false_per_1000:.3g} by Perfherder's rule"
    ratio = other.false_per_1000 / max(score.false_per_1000, 1e-9)
    return Result(score.false_per_1000, against, len(_seeds(scale)), ratio)


def series_10k_s(scale: Scale) -> Result:
    """Measure the time to search 10,000 series of 1,000 results, in two threads."""
    draw = np.random.default_rng(1)
    values = np.exp(draw.normal(0.0, 0.01, (scale.of(1000), scale.of(10_000))))
    began = time.perf_counter()
    scan(values)
    taken = time.perf_counter() - began
    few = [
        Simulated("plain", values[:, at], np.zeros(len(values), np.int64), []) for at in range(min(20, values.shape[1]))
    ]
    began = time.perf_counter()
    perfherder(few)
    other = (time.perf_counter() - began) / len(few) * values.shape[1]
    return Result(taken, f"{other:.3g} s by Perfherder's rule (20 series, scaled)", 1, other / taken)


def _print(name: str, scores: dict[tuple[float, str], Score]) -> None:
    sys.stdout.write(
        f"\n{name}\n{'size':>6} {'kind':14} {'F1':>6} {'false/1000':>10} {'delay: median, 90 %, 95 %':>26}\n"
    )
    by_size = {size: total([row for (own, _), row in scores.items() if own == size]) for size in SIZES}
    lines = [*scores.items(), *(((size, "all"), score) for size, score in by_size.items())]
    for (size, kind), row in sorted(lines, key=lambda line: line[0][0]):
        delay = ", ".join(f"{row.delay(share):.0f}" for share in (0.5, 0.9, 0.95)) if row.delays else "-"
        f1 = f"{row.f1:.3f}" if size else "-"
        sys.stdout.write(f"{size:6.0%} {kind:14} {f1:>6} {row.false_per_1000:10.2f} {delay:>26}\n")
        if kind == "drift" and row.delays:
            for end, delays in (("half", row.from_half), ("full", row.from_full)):
                median, most = (quantile(delays, share) for share in (0.5, 0.9))
                sys.stdout.write(f"{'':21} from the result with the {end} size: median {median:.0f}, 90 % {most:.0f}\n")
