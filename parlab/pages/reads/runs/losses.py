"""The loss of a run for small figures."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from parlab.charts.sweeps.compare import LOSSES
from parlab.lab.models import Attempt, Run
from parlab.publishing.figures.chains import Joined

POINTS = 200


class LossCurve(NamedTuple):
    """The points of a loss, thinned; both empty if the run has none."""

    steps: list[float]
    values: list[float]


def loss_curve(run: Run) -> LossCurve:
    """Return the loss of the current attempt of a run; values that are not finite are left out."""
    attempt = run.attempts.filter(number=run.attempt_number).first()
    if attempt is None:
        return LossCurve([], [])
    return curve_of(attempt, loss_name(run, Joined(attempt).names()))


def leading_curve(run: Run, attempt: Attempt) -> tuple[str, LossCurve]:
    """Return what tells most of a training, its loss or else its step time, with its metric; empty without either."""
    names = Joined(attempt).names()
    name = loss_name(run, names) or ("step_time_s" if "step_time_s" in names else "")
    return name, curve_of(attempt, name)


def curve_of(attempt: Attempt, name: str) -> LossCurve:
    """Return a series of an attempt, thinned; values that are not finite are left out."""
    parts = Joined(attempt).read_parts(name, POINTS) if name else {}
    columns = next((part.columns.thinned(POINTS) for part in parts.values()), None)
    if columns is None:
        return LossCurve([], [])
    pairs = [(float(x), float(y)) for x, y in zip(columns.steps, columns.values, strict=True) if math.isfinite(y)]
    return LossCurve([x for x, _ in pairs], [y for _, y in pairs])


def loss_name(run: Run, names: Collection[str]) -> str:
    """Return the metric that is the loss: as the summary of a reported run says, else by its name."""
    stated = str((run.summary.get("sources") or {}).get("loss") or "")
    named = [name for name in (stated, *LOSSES) if name in names]
    return next(iter([*named, *sorted(name for name in names if "loss" in name.lower())]), "")
