"""The telemetry figures of a run, and the series they are drawn from."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from parlab.charts.runs import telemetry
from parlab.charts.runs.curves import Curve
from parlab.charts.runs.telemetry import Extent, Names, Whole
from parlab.charts.theme import Drawing
from parlab.lab.models import Attempt, Run
from parlab.publishing.figures.chains import Joined
from parlab.publishing.figures.windows import SMALL, Window, seen
from parlab.series.columns import Columns

# Kinds that every run has soon after it starts; the others need GPUs.
_EVERYWHERE = ("network", "processor")


class FigureLink(NamedTuple):
    """A figure, as a page refers to it."""

    name: str
    title: str


def figures(attempt: Attempt, metrics: Collection[str], *, is_live: bool) -> list[FigureLink]:
    """List the figures that these metrics provide, or that an active run is going to provide."""
    awaited = set(telemetry.KINDS) if attempt.environment.get("gpus_used") else set(_EVERYWHERE)
    measured = {metric.partition("/")[0] for metric in metrics}
    return [
        FigureLink(name, kind.title)
        for name, kind in telemetry.KINDS.items()
        if not measured.isdisjoint(kind.lines) or (is_live and name in awaited)
    ]


def drawing(name: str, _run: Run, attempt: Attempt, window: Window) -> Drawing:
    """Draw a kind of telemetry, or the part of it in a window."""
    kind = telemetry.KINDS[name]
    joined = Joined(attempt)
    metrics = kind.metrics(joined.names())
    series = {key[1:]: columns for key, columns in joined.read_many(metrics).items()} if metrics else {}
    series = {key: columns for key, columns in series.items() if np.isfinite(columns.values).any()}
    start = _start(series)
    if start is None:
        series = {key: replace(columns, times=np.arange(1.0, len(columns) + 1)) for key, columns in series.items()}
    x = {key: columns.times - (start or 0.0) for key, columns in series.items()}
    parts = seen(series, window.sized(SMALL), x)
    whole = Whole({key: _extent(columns) for key, columns in series.items()}, start)
    ends = [each.ended_at.timestamp() for each in joined.attempts[:-1] if each.ended_at]
    gaps = ends if window.points is not None else []  # a table has no row for what was not measured
    curves = {key: _with_gaps(part.curve, gaps) for key, part in parts.items()}
    drawn = telemetry.figure(name, curves, names_of_all(joined.attempts), whole)
    return drawn._replace(is_thinned=any(part.is_thinned for part in parts.values()))


def _with_gaps(curve: Curve, ends: Sequence[float]) -> Curve:
    """Interrupt a line where an attempt of a chain has ended and the next one has begun."""
    steps, times, values = list(curve.steps), list(curve.times), list(curve.values)
    for end in ends:
        at = bisect(times, end)
        if 0 < at < len(times):
            steps.insert(at, steps[at - 1])
            times.insert(at, end)
            values.insert(at, math.nan)
    return Curve(steps, times, values)


def _start(series: Mapping[telemetry.Key, Columns]) -> float | None:
    """Return the Unix time of the first sample; None for an imported file without times."""
    start = min((float(columns.times[0]) for columns in series.values()), default=0.0)
    is_still = all((columns.times == start).all() for columns in series.values())
    return None if is_still and sum(map(len, series.values())) > len(series) else start


def _extent(columns: Columns) -> Extent:
    finite = columns.values[np.isfinite(columns.values)]
    return Extent(len(finite), float(finite.mean()), float(finite.min()), float(finite.max()), float(np.median(finite)))


def names_of_all(attempts: Sequence[Attempt]) -> Names:
    """Return the names of a chain's GPUs and nodes: those of its last attempt, and of earlier ones on other nodes."""
    named = [names_of(attempt) for attempt in attempts]
    nodes = [[member.node_name for member in attempt.members.all()] for attempt in attempts]
    if all(names == nodes[-1] for names in nodes):
        return named[-1]
    places = [", ".join(dict.fromkeys(name for name in each if name)) for each in zip_longest(*nodes, fillvalue="")]
    gpus = [
        ", ".join(dict.fromkeys(name for name in each if name))
        for each in zip_longest(*[names.gpus for names in named], fillvalue="")
    ]
    return Names(gpus, places)


def names_of(attempt: Attempt) -> Names:
    """Return the names of a run's GPUs by rank, with the numbers of nvidia-smi, and of its nodes if it has several."""
    members = list(attempt.members.all())
    if len(members) < 2:
        return Names(_gpu_names(attempt.environment))
    gpus = []
    for member in members:
        gpus += [f"{member.node_name} {name}" for name in _gpu_names(member.environment)]
    return Names(gpus, [member.node_name for member in members])


def _gpu_names(environment: Mapping[str, Any]) -> list[str]:
    gpus = environment.get("gpus_used")
    if not isinstance(gpus, list):
        return []
    return [f"GPU {gpu['index']}" if isinstance(gpu, dict) and gpu.get("index") is not None else "GPU" for gpu in gpus]
