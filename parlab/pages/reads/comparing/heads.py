"""The answer of a comparison in words, and the pictures that show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parlab.advice.waterfalls.waterfall import difference
from parlab.charts.format import MINUS, SPACE, Unit, in_sentence, significant, unit_for
from parlab.charts.measures import MEASURES, Measure, measured
from parlab.charts.points import RunPoint, counted_devices
from parlab.charts.svg import Svg
from parlab.charts.sweeps.compared import BridgeStep, Lost, MatrixCell, Sureness, bridge, lost_bars, matrix, sureness
from parlab.findings.medians import MedianChange, median_change
from parlab.findings.noise import Noise
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.identities import identities
from parlab.lab.selectors.analysis.waterfalls import run_waterfalls
from parlab.lab.selectors.comparison.results import Comparison, is_within_noise, noises
from parlab.publishing.figures.compared_curves import slowest_ranks
from runners.wire.protocol import RunState

MOST_IN_MATRIX = 12
_ALL_STEPS = 1_000_000
_FEWEST_POINTS = 2
_CERTAIN = ("memory",)
"""Results that are counted and not timed: two runs of one configuration have the same."""


class ComparisonHead(NamedTuple):
    """What a comparison says first."""

    answer: str
    detail: str
    bridge: Svg | None = None
    unit: str = ""
    """Of the bridge."""
    sure: Svg | None = None
    matrix: Svg | None = None
    matrix_unit: str = ""
    lost: Svg | None = None
    """The time that each run takes beyond the best one."""
    lost_unit: str = ""


def column_names(runs: Sequence[Run]) -> dict[int, str]:
    """Return for each run what tells it apart from the others, by its id."""
    return {pk: identity.name for pk, identity in identities(runs).items()}


def comparison_head(comparison: Comparison, names: Sequence[str], everyone: Sequence[Run]) -> ComparisonHead:
    """Return the answer of a comparison; `everyone` are the runs with all repeats."""
    if len(comparison.runs) == 2:
        return _of_two(comparison, everyone)
    return _of_many(comparison, names, everyone)


def _of_two(comparison: Comparison, everyone: Sequence[Run]) -> ComparisonHead:
    first, second = comparison.points
    lost = [letter for letter, point in zip("AB", comparison.points, strict=True) if point.state == RunState.OOM]
    if lost:
        return ComparisonHead(f"{' and '.join(lost)} ran out of memory.", "")
    noisy = noises(everyone)
    step = _step_change(comparison, noisy(MEASURES["step_time"]))
    rows = [*_step_rows(first, second, step, noisy(MEASURES["step_time"])), *_other_rows(first, second, noisy)]
    drawn, unit = _bridge(comparison.runs)
    answer, detail = _answer_of_two(first, second, step, noisy(MEASURES["step_time"]))
    return ComparisonHead(answer, detail, drawn, unit, sureness(rows) if rows else None)


def _step_change(comparison: Comparison, noisy: Noise | None) -> MedianChange | None:
    """Return the change of the step time with its interval: of the repeats, else of the steps of both runs."""
    share = _share(MEASURES["step_time"], *comparison.points)
    if share is not None and noisy is not None:
        limit = noisy.limit(*(max(1, len(group)) for group in comparison.groups))
        return MedianChange(share, share - limit, share + limit)
    series = [_timed_steps(run, columns) for run, columns in _step_series(comparison.runs)]
    change = median_change(*series) if len(series) == 2 else None
    if change is None or share is None:
        return change
    # The numbers of both runs are those of their summaries, which leave out more steps than the warm-up.
    off = share - change.share
    return MedianChange(share, change.low + off, change.high + off)


def _step_series(runs: Sequence[Run]) -> list[tuple[Run, tuple[NDArray[np.int64], NDArray[np.float64]]]]:
    read = slowest_ranks(runs, ("step_time_s",), _ALL_STEPS)
    return [(runs[place], (columns.steps, columns.values)) for place, columns in sorted(read.items())]


def _timed_steps(run: Run, columns: tuple[NDArray[np.int64], NDArray[np.float64]]) -> NDArray[np.float64]:
    steps, values = columns
    warmup = int((run.resolved.get("train") or {}).get("warmup_steps") or 0)
    timed: NDArray[np.float64] = values[steps > warmup]
    return timed


def _share(measure: Measure, first: RunPoint, second: RunPoint) -> float | None:
    before, after = measure.value(first), measure.value(second)
    return after / before - 1 if before and after is not None else None


def _is_proven(first: RunPoint, second: RunPoint, step: MedianChange, noisy: Noise | None) -> bool:
    """Return whether a change is more than chance: its interval does not hold zero, and its steps vary by less."""
    return step.is_proven and not is_within_noise(MEASURES["step_time"], first, second, noisy)


def _step_rows(first: RunPoint, second: RunPoint, step: MedianChange | None, noisy: Noise | None) -> list[Sureness]:
    share = _share(MEASURES["step_time"], first, second)
    if step is None:
        return [] if share is None else [Sureness("Step time", share, None, None, "spread unknown", None)]
    is_proven = _is_proven(first, second, step, noisy)
    is_good = step.share < 0 if is_proven else None
    word = "proven" if is_proven else "not proven"
    return [Sureness("Step time", step.share, step.low, step.high, word, is_good)]


def _other_rows(first: RunPoint, second: RunPoint, noisy: Callable[[Measure], Noise | None]) -> list[Sureness]:
    rows = []
    for name in ("memory", "loss"):
        measure = MEASURES[name]
        share = _share(measure, first, second)
        if share is None:
            continue
        limit = noise.limit() if (noise := noisy(measure)) and share else None
        if not share:
            rows.append(Sureness(measure.title, 0.0, None, None, "identical", None))
        elif limit is not None:
            is_proven = abs(share) > limit
            rows.append(
                Sureness(measure.title, share, share - limit, share + limit, "proven" if is_proven else "not proven",
                         (share < 0) if is_proven else None)
            )  # fmt: skip
        elif name in _CERTAIN:
            rows.append(Sureness(measure.title, share, None, None, "certain", share < 0))
        else:
            rows.append(Sureness(measure.title, share, None, None, "one run each", None))
    return rows


def _devices_of(point: RunPoint) -> str:
    return counted_devices([point], point.gpus) if point.gpus else "an unknown number"


def _answer_of_two(
    first: RunPoint, second: RunPoint, step: MedianChange | None, noisy: Noise | None
) -> tuple[str, str]:
    share = step.share if step else _share(MEASURES["step_time"], first, second)
    if share is None:
        return "No step time of both runs is known.", ""
    if abs(share) < 5e-4:
        return "No measurable difference: both take the same time a step.", ""
    is_proven = step is None or _is_proven(first, second, step, noisy)
    size = f"{significant(abs(100 * share), 2 if is_proven else 1)}{SPACE}%"
    text = f"B takes {size} {'less' if share < 0 else 'more'} time a step"
    note = "" if first.gpus == second.gpus else f" A ran on {_devices_of(first)}, B on {_devices_of(second)}."
    if step is None:
        return f"{text}.", f"How much the steps vary is unknown.{note}"
    interval = f"95{SPACE}% interval {_signed(step.low)} to {_signed(step.high)}{SPACE}%."
    if is_proven:
        return f"{text}.", f"{interval}{note}"
    return f"{text}, not proven yet.", f"{interval}{note}"


def _signed(share: float) -> str:
    return f"{'+' if share > 0 else MINUS}{significant(abs(100 * share), 2)}"


def _bridge(runs: Sequence[Run]) -> tuple[Svg | None, str]:
    """Draw where the difference of two steps comes from; None if one of them has no terms."""
    terms = [run_waterfalls(run, with_prediction=False).measured for run in runs]
    first, second = terms
    if first is None or second is None:
        return None, ""
    unit = unit_for([first.total_s, second.total_s], "s")
    steps = [
        BridgeStep(change.title, change.ns / 1e9, change.key == "unexplained") for change in difference(first, second)
    ]
    return bridge(("A", "B"), (first.total_s, second.total_s), steps, unit), unit.name


def _of_many(comparison: Comparison, names: Sequence[str], everyone: Sequence[Run]) -> ComparisonHead:
    measure = next(iter(measured(comparison.points).values()), None)
    finished = [
        (name, point, value)
        for name, point in zip(names, comparison.points, strict=True)
        if measure is not None and point.state == RunState.FINISHED and (value := _per_gpu(measure, point, comparison))
    ]
    if measure is None or len(finished) < _FEWEST_POINTS:
        return ComparisonHead("No result of two runs is known.", "")
    finished.sort(key=lambda row: row[2], reverse=not measure.least_is_best)
    noisy = noises(everyone)
    noise = noisy(measure)
    best_name, best, _value = finished[0]
    others = finished[1:]
    alike = sum(is_within_noise(measure, point, best, noise) for _name, point, _value in others)
    word = {"rate": "fastest", "time": "fastest"}.get(measure.kind, f"best by {in_sentence(measure.title)}")
    per = " per GPU" if _has_several_counts(comparison.points) and measure.kind == "rate" else ""
    answer = f"{best_name} is {word}{per}"
    answer += f"; {alike} of {len(others)} others within noise." if alike else f" of {len(finished)}."
    shown = finished[:MOST_IN_MATRIX]
    cells = [[_cell(measure, one, other, noise) for other in shown] for one in shown]
    has_steps = any(point.step_time_s and point.step_time_s.p90 is not None for point in comparison.points)
    detail = "" if noise else f"One run a point: noise is {'that of the steps' if has_steps else 'unknown'}."
    lost, lost_unit = _lost(comparison, names, noisy)
    return ComparisonHead(
        answer,
        detail,
        matrix=matrix([name for name, _point, _value in shown], cells),
        matrix_unit=f"% {'less' if measure.least_is_best else 'more'} {in_sentence(measure.title)}{per}",
        lost=lost,
        lost_unit=lost_unit,
    )


def _lost(
    comparison: Comparison, names: Sequence[str], noisy: Callable[[Measure], Noise | None]
) -> tuple[Svg | None, str]:
    """Draw the time that each run takes beyond the best: per sample where batches may differ, of all its GPUs."""
    timed = [
        (name, point) for name, point in zip(names, comparison.points, strict=True) if point.state == RunState.FINISHED
    ]
    per_sample, step = MEASURES["ms_per_sample"], MEASURES["step_time"]
    measure = per_sample if all(per_sample.value(point) is not None for _, point in timed) else step
    each = _has_several_counts([point for _, point in timed])
    if each and not all(point.gpus for _, point in timed):
        return None, ""
    values = [
        (name, point, value * ((point.gpus or 1) if each else 1))
        for name, point in timed
        if (value := measure.value(point)) is not None
    ]
    if len(values) < _FEWEST_POINTS:
        return None, ""
    values.sort(key=lambda row: row[2])
    _, first, best = values[0]
    unit = unit_for([values[-1][2] - best], "s") if measure is step else Unit(1.0, "ms", "ms")
    rows = [
        Lost(
            name,
            (value - best) / unit.factor,
            value / best - 1,
            point is not first and is_within_noise(measure, first, point, noisy(measure)),
        )
        for name, point, value in values[:MOST_IN_MATRIX]
    ]
    device = "GPU " if each else ""
    return lost_bars(rows), f"{device}{unit.name} a {'step' if measure is step else 'sample'}"


def _has_several_counts(points: Sequence[RunPoint]) -> bool:
    return len({point.gpus for point in points}) > 1


def _per_gpu(measure: Measure, point: RunPoint, comparison: Comparison) -> float | None:
    """Return a result, of unequal numbers of GPUs the rate of one of them."""
    value = measure.value(point)
    if value is None or measure.kind != "rate" or not _has_several_counts(comparison.points):
        return value
    return value / point.gpus if point.gpus else None


_Row = tuple[str, RunPoint, float]


def _cell(measure: Measure, one: _Row, other: _Row, noise: Noise | None) -> MatrixCell:
    if is_within_noise(measure, other[1], one[1], noise):
        return MatrixCell(None, is_noise=True)
    share = other[2] / one[2] - 1 if measure.least_is_best else one[2] / other[2] - 1
    return MatrixCell(share)
