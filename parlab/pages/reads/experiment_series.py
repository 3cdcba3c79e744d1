"""The curves of all runs of an experiment, thinned, for the panels that its page draws."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parlab.charts.format import Unit, unit_for
from parlab.charts.runs.curves import rounded
from parlab.charts.sweeps.compare import CURVES
from parlab.lab.models import Run, WandbRun
from parlab.publishing.figures import compared_curves as curves
from parlab.publishing.figures.windows import WHOLE, Window
from parlab.series import store
from parlab.series.columns import Columns

AXES = ("step", "time", "tokens", "samples")
FIRST_POINTS, TOTAL_POINTS = 300, 9_000
"""Points of a line, and of all lines of a panel: as many as its pixels can show."""
LEAST_POINTS = 100
MOST_POINTS = 1_000_000


class Metric(NamedTuple):
    """A series of runs that a panel draws."""

    title: str
    unit: str
    names: tuple[str, ...]
    """The series to read: of each run the first that it has."""
    note: str = ""
    is_from_zero: bool = False


METRICS: Mapping[str, Metric] = {
    "loss": Metric("Loss", "", CURVES["loss"].metrics),
    "step_time": Metric("Step time", "s", ("step_time_s",), "slowest rank", is_from_zero=True),
    "memory": Metric("Memory", "B", CURVES["memory"].metrics, "largest rank", is_from_zero=True),
    "samples": Metric("Throughput", "samples/s", ("samples_per_s",), is_from_zero=True),
    "utilisation": Metric("GPU utilisation", "%", ("gpu_util_pct",), is_from_zero=True),
}
"""Series with a title of their own; others are drawn by the name that the training gave them."""


def metric_of(name: str) -> Metric:
    known = METRICS.get(name)
    if known is not None:
        return known
    series = curves.compared_series(name)
    return Metric(series.title, series.unit, series.metrics, is_from_zero=series.unit == "s")


def experiment_series(runs: Sequence[Run], name: str, over: str = "step", window: Window = WHOLE) -> dict[str, Any]:
    """Return the curve of each run that has this series: `{"runs": [{"n": 5, "x": […], "y": […]}], …}`."""
    metric = metric_of(name)
    axis = _own_axis(runs, metric) if over == "step" else ""
    read = _read(runs, metric, window if over == "step" and not axis else WHOLE)
    places = _places(runs, read, axis) if axis else {}
    unit = _unit(read.values(), metric.unit)
    points = max(LEAST_POINTS, min(FIRST_POINTS, TOTAL_POINTS // max(1, len(read))))
    lines = [
        _line(runs[place], columns, over, unit.factor, points, places.get(place))
        for place, columns in sorted(read.items())
    ]
    return {
        "title": metric.title,
        "unit": unit.name,
        **({"axis": axis} if axis else {}),
        "fromZero": metric.is_from_zero,
        "warmup": _warmup(runs) if over == "step" and metric.names == ("step_time_s",) else 0,
        "runs": [line for line in lines if line],
    }


def _read(runs: Sequence[Run], metric: Metric, window: Window) -> dict[int, Columns]:
    steps = None if window.first is None or window.last is None else _steps(window.first, window.last)
    return curves.slowest_ranks(runs, metric.names, FIRST_POINTS, steps)


def _own_axis(runs: Sequence[Run], metric: Metric) -> str:
    """Return the series over which the scripts of all runs want this one drawn; empty if they do not agree on one."""
    if any(run.origin != Run.Origin.REPORTED for run in runs):
        return ""
    defined = WandbRun.objects.filter(tracked__run__in=[run.pk for run in runs]).only("config")
    axes = [each.axes() for each in defined]
    named = {next((axis[name] for name in metric.names if name in axis), "") for axis in axes}
    return named.pop() if len(named) == 1 and len(axes) == len(runs) else ""


def _steps(first: float, last: float) -> dict[str, int]:
    """Return the steps to read, with as many on either side, so that lines reach the edges of the panel."""
    span = math.ceil(last - first) + 1
    return {"first_step": math.floor(first) - span, "last_step": math.ceil(last) + span}


def _unit(series: Collection[Columns], base: str) -> Unit:
    if base not in ("s", "B", "samples/s"):
        return Unit(1.0, base, base)
    return unit_for([float(np.nanmedian(columns.values)) for columns in series], base)


def _warmup(runs: Sequence[Run]) -> int:
    return max((int(run.resolved.get("train", {}).get("warmup_steps") or 0) for run in runs), default=0)


def _places(runs: Sequence[Run], read: Mapping[int, Columns], axis: str) -> dict[int, Columns]:
    """Read the series that is the axis of others, by the place of its run."""
    order = sorted(read)
    found = curves.slowest_ranks([runs[place] for place in order], (axis,), MOST_POINTS)
    return {order[index]: columns for index, columns in found.items()}


def _line(
    run: Run, columns: Columns, over: str, factor: float, points: int, axis: Columns | None = None
) -> dict[str, Any]:
    thin = columns.thinned(points)
    # The axis has a value at nearly every step that the series has; between two of them it is taken as straight.
    x = _positions(run, thin, over) if axis is None else np.interp(thin.steps, axis.steps, axis.values)
    if x is None:
        return {}
    values = [value if np.isfinite(value) else None for value in rounded(thin.values.tolist(), factor)]
    line = {"n": run.number, "x": [float(f"{at:.7g}") for at in x], "y": values}
    return line | {"thin": True} if len(thin) < len(columns) else line


def _positions(run: Run, columns: Columns, over: str) -> NDArray[np.float64] | None:
    """Return the places of points on an axis; None if the configuration does not give their size."""
    if over == "time":
        seconds: NDArray[np.float64] = columns.times - columns.times[0]
        return seconds
    steps: NDArray[np.float64] = columns.steps.astype(np.float64)
    if over == "tokens":
        size: float | None = curves.tokens_per_step(run)
    elif over == "samples":
        size = (run.resolved.get("train") or {}).get("global_batch_size")
    else:
        size = 1.0
    return None if not size else steps * float(size)


def series_rows(runs: Sequence[Run], name: str) -> list[list[Any]]:
    """Return all points of a series as rows: run, step, Unix time, value."""
    names = metric_of(name).names
    attempts = curves.current_attempts(runs)
    whole = curves.slowest(curves.of_first_metric(store.read_many(list(attempts), names), names))
    order = sorted(whole, key=lambda key: attempts[key[0]])
    return [
        [runs[attempts[key[0]]].number, int(step), float(time), float(value)]
        for key in order
        for step, time, value in zip(whole[key].steps, whole[key].times, whole[key].values, strict=True)
    ]
