"""The curves of one run: read, cut to what is looked at, thinned out, drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from parlab.charts import curves
from parlab.charts.format import Unit, field_title, unit_for
from parlab.charts.theme import Drawing
from parlab.lab.models import Attempt, Run
from parlab.series import store
from parlab.series.columns import Columns

from .windows import WIDE, Seen, Window, seen

FIRST_SERIES = ("loss", "lm_loss", "grad_norm")
"""What a run's page shows first of the numbers that a training prints."""
_HAVE_FIGURES = frozenset({"step_time_s", "memory_bytes", "memory_peak_bytes", "samples", "tokens", "warmup"})
_OF_THE_MACHINE = ("gpu_", "nic_", "cpu_pct", "power_watts", "temperature_celsius", "sm_clock", "memory_clock")
_OF_ENGINES = ("algbw", "busbw", "time_s/", "first_time_s/", "wrong/", "fits", "trial_s", "model_parameters")


def step_time(run: Run, attempt: Attempt, window: Window) -> Drawing:
    found = store.read(attempt.pk, "step_time_s")
    shown = seen(found, window.sized(WIDE), {rank: columns.steps.astype(np.float64) for rank, columns in found.items()})
    drawing = curves.step_time(
        {rank: one.curve for rank, one in shown.items()},
        warmup_steps=int(run.resolved.get("train", {}).get("warmup_steps", 0)),
        iterations=run.iterations,
        unit=_unit(found.values(), "s"),
    )
    return _marked(drawing, shown)


def memory(_run: Run, attempt: Attempt, window: Window) -> Drawing:
    found = store.read(attempt.pk, "memory_bytes")
    start = min((float(columns.times[0]) for columns in found.values()), default=0.0)
    seconds = {rank: columns.times - start for rank, columns in found.items()}
    shown = seen(found, window.sized(WIDE), seconds)
    unit = _unit(found.values(), "B")
    drawing = curves.memory({rank: one.curve for rank, one in shown.items()}, start=start, unit=unit)
    return _marked(drawing, shown)


def series(_run: Run, attempt: Attempt, window: Window, metric: str) -> Drawing:
    """Draw any number that the training printed with its steps."""
    found = store.read(attempt.pk, metric)
    shown = seen(found, window.sized(WIDE), {rank: columns.steps.astype(np.float64) for rank, columns in found.items()})
    is_time = metric.startswith("timer/") or metric.endswith("_s")
    unit = _unit(found.values(), "s") if is_time else Unit(1.0, "", "")
    drawing = curves.series(
        {rank: one.curve for rank, one in shown.items()}, name=metric, title=series_title(metric), unit=unit
    )
    return _marked(drawing, shown)


def series_names(known: Collection[str]) -> list[str]:
    """List the numbers over steps that have no figure of their own, what people look at first in front."""
    left = [
        name
        for name in sorted(known)
        if name not in _HAVE_FIGURES and not name.startswith((*_OF_THE_MACHINE, *_OF_ENGINES))
    ]
    first = [name for name in FIRST_SERIES if name in left]
    return [*first, *(name for name in left if name not in first)]


def series_title(metric: str) -> str:
    """Name a series: `timer/forward-compute` becomes `Timer forward-compute`."""
    kind, slash, name = metric.partition("/")
    return f"{field_title(kind)} {name}" if slash else field_title(metric)


def _unit(found: Iterable[Columns], base: str) -> Unit:
    """Choose the unit of whole series, so that a part of them is drawn on the same axis."""
    finite = [columns.values[np.isfinite(columns.values)] for columns in found]
    values = np.concatenate([np.empty(0), *finite])
    return unit_for([float(np.median(values))] if len(values) else [], base)


def _marked(drawing: Drawing, shown: Mapping[int, Seen]) -> Drawing:
    return drawing._replace(is_thinned=any(one.is_thinned for one in shown.values()))
