"""Which figures of its machine a run has, and what they are drawn from."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from parlab.charts import telemetry
from parlab.charts.curves import Curve
from parlab.charts.theme import Drawing
from parlab.lab.models import Attempt
from parlab.series import store

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


def drawing(attempt: Attempt, name: str, max_points: int | None) -> Drawing:
    """Draw one of them."""
    metrics = telemetry.KINDS[name].metrics({info.metric for info in store.metrics(attempt.pk)})
    found = store.read_many([attempt.pk], metrics) if metrics else {}
    series = {
        (metric, rank): Curve(thin.steps.tolist(), thin.times.tolist(), thin.values.tolist())
        for (_, metric, rank), columns in found.items()
        for thin in [columns if max_points is None else columns.thinned(max_points)]
    }
    return telemetry.figure(name, series, gpu_names(attempt))


def gpu_names(attempt: Attempt) -> list[str]:
    """Name the GPUs of a run by rank, as nvidia-smi numbers them."""
    gpus = attempt.environment.get("gpus_used")
    if not isinstance(gpus, list):
        return []
    return [f"GPU {gpu['index']}" if isinstance(gpu, dict) and gpu.get("index") is not None else "GPU" for gpu in gpus]
