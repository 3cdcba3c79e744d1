"""Which figures of its machine a run has, and what they are drawn from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from parlab.charts import telemetry
from parlab.charts.telemetry import Extent, Whole
from parlab.charts.theme import Drawing
from parlab.lab.models import Attempt
from parlab.series import store
from parlab.series.columns import Columns

from .windows import SMALL, Window, seen

# Which of them a run will have that has just begun; the others need GPUs.
_EVERYWHERE = ("network", "processor")


class FigureLink(NamedTuple):
    """One figure, as a page refers to it."""

    name: str
    title: str


def figures(attempt: Attempt, known: Collection[str], *, is_live: bool) -> list[FigureLink]:
    """List the figures that have something to show in the known metrics, or will have while the run goes on."""
    awaited = set(telemetry.KINDS) if attempt.environment.get("gpus_used") else set(_EVERYWHERE)
    return [
        FigureLink(name, kind.title)
        for name, kind in telemetry.KINDS.items()
        if kind.metrics(known) or (is_live and name in awaited)
    ]


def drawing(attempt: Attempt, name: str, window: Window) -> Drawing:
    """Draw one of them, or the part of it that lies in a window."""
    kind = telemetry.KINDS[name]
    metrics = kind.metrics({info.metric for info in store.metrics(attempt.pk)})
    found = {key[1:]: columns for key, columns in store.read_many([attempt.pk], metrics).items()} if metrics else {}
    found = {key: columns for key, columns in found.items() if np.isfinite(columns.values).any()}
    start = _start(found)
    if start is None:
        found = {key: replace(columns, times=np.arange(1.0, len(columns) + 1)) for key, columns in found.items()}
    x = {key: columns.times - (start or 0.0) for key, columns in found.items()}
    shown = seen(found, window.sized(SMALL), x)
    whole = Whole({key: _extent(columns) for key, columns in found.items()}, start)
    drawn = telemetry.figure(name, {key: one.curve for key, one in shown.items()}, gpu_names(attempt), whole)
    return drawn._replace(is_thinned=any(one.is_thinned for one in shown.values()))


def _start(found: Mapping[telemetry.Key, Columns]) -> float | None:
    """Find when the first sample was taken; None where an imported file has no clock."""
    start = min((float(columns.times[0]) for columns in found.values()), default=0.0)
    is_still = all((columns.times == start).all() for columns in found.values())
    return None if is_still and sum(map(len, found.values())) > len(found) else start


def _extent(columns: Columns) -> Extent:
    finite = columns.values[np.isfinite(columns.values)]
    return Extent(len(finite), float(finite.mean()), float(finite.min()), float(finite.max()), float(np.median(finite)))


def gpu_names(attempt: Attempt) -> list[str]:
    """Name the GPUs of a run by rank, as nvidia-smi numbers them."""
    gpus = attempt.environment.get("gpus_used")
    if not isinstance(gpus, list):
        return []
    return [f"GPU {gpu['index']}" if isinstance(gpu, dict) and gpu.get("index") is not None else "GPU" for gpu in gpus]
