"""The curves of a run: read, cut to the window, thinned, drawn."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from parlab.charts.format import Unit, field_title, unit_for
from parlab.charts.labels import label_ends
from parlab.charts.points import Timer
from parlab.charts.runs import curves
from parlab.charts.stacked import stacked
from parlab.charts.sweeps import phases
from parlab.charts.theme import Drawing
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.runs import step_time as run_step_time
from parlab.publishing.figures.chains import Joined
from parlab.publishing.figures.chosen_ranks import AUTOMATIC, ChosenRanks
from parlab.publishing.figures.windows import MOST, WIDE, Seen, Window, seen
from parlab.series.columns import Columns

FIRST_SERIES = ("loss", "lm_loss", "grad_norm")
"""Series that the page of a run offers first."""
RATES = {
    "samples_per_s": ("Throughput", "samples/s"),
    "tokens_per_s": ("Token throughput", "tokens/s"),
    "tokens_per_s_per_gpu": ("Token throughput per GPU", "tokens/s"),
    "steps_per_s": ("Steps per second", "steps/s"),
    "tflops_per_gpu": ("Compute per GPU", "TFLOP/s"),
}
"""Series whose title and unit are not their name."""
MAX_SERIES = 6
"""Panels of one figure."""
TIMER = "timer/"
_HAVE_FIGURES = frozenset({"step_time_s", "memory_bytes", "memory_peak_bytes", "samples", "tokens", "warmup"})
_OF_THE_MACHINE = (
    "gpu_", "memory_util_pct", "nic_", "cpu_pct", "cpu_power_watts", "power_watts", "temperature_celsius", "sm_clock",
    "memory_clock",
)  # fmt: skip
_OF_ENGINES = ("algbw", "busbw", "time_s/", "first_time_s/", "wrong/", "fits", "trial_s", "model_parameters")


def step_time(run: Run, attempt: Attempt, window: Window, chosen: ChosenRanks = AUTOMATIC) -> Drawing:
    whole, parts, start = _over(attempt, "step_time_s", window.sized(WIDE))
    drawing = curves.step_time(
        {rank: part.curve for rank, part in parts.items()},
        warmup_steps=int(run.resolved.get("train", {}).get("warmup_steps", 0)),
        iterations=run.iterations,
        unit=_unit(whole, "s"),
        ranks=chosen.of(parts),
        spread=run_step_time(run.summary) if run.is_final else None,
        left_out=(run.summary.get("steps") or {}).get("left_out") or (),
        why=(run.summary.get("steps") or {}).get("why") or "",
        start=start,
        is_over=run.is_final,
    )
    drawing = _with_repeated(drawing, attempt, "step_time_s") if start is None else drawing
    return _marked(drawing, parts, chosen)


def memory(_run: Run, attempt: Attempt, window: Window, chosen: ChosenRanks = AUTOMATIC) -> Drawing:
    """Draw the memory of the ranks against the step; against the time, with that of all processes of each node."""
    series = Joined(attempt).read_ranks("memory_bytes")
    own = {rank: columns for rank, columns in series.items() if rank >= 0}
    by_step = window.x == "step" and any(len(columns) > 1 for columns in own.values())
    series = own if by_step else series
    start = min((float(columns.times[0]) for columns in series.values()), default=0.0)
    across = _steps(series) if by_step else {rank: columns.times - start for rank, columns in series.items()}
    parts = seen(series, window.sized(WIDE), across)
    drawing = curves.memory(
        {rank: part.curve for rank, part in parts.items()},
        start=start,
        unit=_unit(series.values(), "B"),
        nodes=[member.node_name for member in attempt.members.all()],
        ranks=chosen.of([rank for rank in parts if rank >= 0]),
        by_step=by_step,
    )
    return _marked(drawing, parts, chosen)


def series(attempt: Attempt, window: Window, metrics: Sequence[str], chosen: ChosenRanks = AUTOMATIC) -> Drawing:
    """Draw series that the training printed per step, as panels with a common axis of steps."""
    metrics = list(dict.fromkeys(metrics))[:MAX_SERIES] or [""]
    titles = [series_title(metric) for metric in metrics]
    title = ", ".join([titles[0], *(title[:1].lower() + title[1:] for title in titles[1:])])
    drawings = [_one_series(attempt, window, metric, chosen) for metric in metrics]
    for drawing in drawings:
        if drawing.figure is not None:
            label_ends(drawing.figure)
    return stacked(drawings, title, "each printed step", "step %{x}")


def _one_series(attempt: Attempt, window: Window, metric: str, chosen: ChosenRanks) -> Drawing:
    whole, parts, start = _over(attempt, metric, window.sized(WIDE))
    is_time = metric.startswith("timer/") or (metric.endswith("_s") and not metric.endswith("_per_s"))
    rate = RATES.get(metric, ("", ""))[1]
    unit = _unit(whole, "s") if is_time else Unit(1.0, rate, rate)
    drawing = curves.series(
        {rank: part.curve for rank, part in parts.items()},
        name=metric,
        title=series_title(metric),
        unit=unit,
        ranks=chosen.of(parts),
        start=start,
    )
    drawing = _with_repeated(drawing, attempt, metric) if start is None else drawing
    return _marked(drawing, parts, chosen)


def series_names(metrics: Collection[str]) -> list[str]:
    """List the series over steps without a figure of their own, the most common first."""
    names = [
        name
        for name in sorted(metrics)
        if name not in _HAVE_FIGURES and not name.startswith((*_OF_THE_MACHINE, *_OF_ENGINES))
    ]
    first = [name for name in FIRST_SERIES if name in names]
    return [*first, *(name for name in names if name not in first)]


def series_title(metric: str) -> str:
    """Return the title of a series: `timer/forward-compute` becomes `Timer forward-compute`."""
    if metric in RATES:
        return RATES[metric][0]
    kind, slash, name = metric.partition("/")
    return f"{field_title(kind)} {name}" if slash else field_title(metric)


def _over(attempt: Attempt, metric: str, window: Window) -> tuple[list[Columns], dict[int, Seen], float | None]:
    """Return the whole series, the parts in the window, and the time from which x counts; None: x is the step."""
    if window.x != "time":
        return *_over_steps(attempt, metric, window), None
    series = Joined(attempt).read_ranks(metric)
    start = min((float(columns.times[0]) for columns in series.values() if len(columns)), default=0.0)
    seconds = {rank: columns.times - start for rank, columns in series.items()}
    return list(series.values()), seen(series, window, seconds), start


def _over_steps(attempt: Attempt, metric: str, window: Window) -> tuple[list[Columns], dict[int, Seen]]:
    """Return the whole series of all ranks, at least roughly, and the parts in the window by rank.

    Only as many points are read as the figure can show, unless the window has all points.
    """
    joined = Joined(attempt)
    if window.points is None:
        series = joined.read_ranks(metric)
        return list(series.values()), seen(series, window, _steps(series))
    by_rank = joined.read_parts(metric, MOST)
    whole = [part.columns for part in by_rank.values()]
    if window.first is not None and window.last is not None:
        # With what lies beside it, so that lines reach the edges of the plot.
        span = math.ceil(window.last - window.first) + 1
        first, last = math.floor(window.first) - span, math.ceil(window.last) + span
        by_rank = joined.read_parts(metric, 3 * MOST, first_step=first, last_step=last)
    series = {rank: part.columns for rank, part in by_rank.items()}
    parts = seen(series, window, _steps(series))
    thinned = {rank: part.is_thinned or not by_rank[rank].is_whole for rank, part in parts.items()}
    return whole, {rank: part._replace(is_thinned=thinned[rank]) for rank, part in parts.items()}


def _steps(series: Mapping[int, Columns]) -> dict[int, NDArray[np.float64]]:
    return {rank: columns.steps.astype(np.float64) for rank, columns in series.items()}


def _unit(series: Iterable[Columns], base: str) -> Unit:
    """Choose the unit of the whole series, so that a part of it is drawn on the same axis."""
    finite = [columns.values[np.isfinite(columns.values)] for columns in series]
    values = np.concatenate([np.empty(0), *finite])
    return unit_for([float(np.median(values))] if len(values) else [], base)


def _marked(drawing: Drawing, parts: Mapping[int, Seen], chosen: ChosenRanks) -> Drawing:
    """Mark a thinned figure, and append what it leaves out to its caption."""
    note = chosen.note([rank for rank in parts if rank >= 0]) if drawing.figure is not None else ""
    return drawing._replace(is_thinned=any(part.is_thinned for part in parts.values()), caption=drawing.caption + note)


def _with_repeated(drawing: Drawing, attempt: Attempt, metric: str) -> Drawing:
    """Mark the steps of a chain that were made again after a reload; the line shows the last time."""
    ranges = Joined(attempt).repeated(metric) if drawing.figure is not None else []
    return curves.with_repeated(drawing, ranges) if ranges else drawing


def phase_timers(metrics: Collection[str]) -> list[str]:
    """Return the timers that split a step, without those inside others."""
    names = {name.removeprefix(TIMER): Timer(0, 0, 0) for name in metrics if name.startswith(TIMER)}
    return [f"{TIMER}{name}" for name in phases.parts(names)]


def step_phases(_run: Run, attempt: Attempt, window: Window) -> Drawing:
    """Draw where each step of the first rank went."""
    joined = Joined(attempt)
    timers = phase_timers({info.metric for info in joined.metrics() if info.rank == 0})
    read = joined.read_many([*timers, "step_time_s"], rank=0) if timers else {}
    series = {metric: columns for (_, metric, _), columns in read.items() if len(columns) > 1}
    parts = seen({name: series[name] for name in timers if name in series}, window.sized(WIDE), _steps_of(series))
    unit = _unit([series["step_time_s"]] if "step_time_s" in series else list(series.values()), "s")
    drawing = curves.phases({name.removeprefix(TIMER): part.curve for name, part in parts.items()}, unit=unit)
    return drawing._replace(is_thinned=any(part.is_thinned for part in parts.values()))


def _steps_of(series: Mapping[str, Columns]) -> dict[str, NDArray[np.float64]]:
    return {name: columns.steps.astype(np.float64) for name, columns in series.items()}
