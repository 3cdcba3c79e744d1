"""Repeats: runs with the same settings except the seed, pooled to one curve with its range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parlab.charts.runs.curves import Curve
from parlab.charts.sweeps.compare import Key, Line
from parlab.lab.models import Run
from runners.config import digest


def settings_key(run: Run) -> str:
    """Return a digest of the experiment and the settings of a run without its seed, equal for all of its repeats."""
    resolved: dict[str, Any] = dict(run.resolved)
    resolved["train"] = {name: value for name, value in (resolved.get("train") or {}).items() if name != "seed"}
    point = {axis: value for axis, value in run.point.items() if axis != "train.seed"}
    return digest([run.experiment_id, resolved, point])


def pooled(runs: Sequence[Run], lines: Mapping[Key, Line]) -> dict[Key, Line]:
    """Replace the lines of repeats by their mean, with the range of their values, at the place of the first."""
    groups: dict[tuple[str, int | None], list[Key]] = {}
    for key, line in lines.items():
        if len(line.curve.values):
            place = key if isinstance(key, int) else key[0]
            groups.setdefault((settings_key(runs[place]), line.rank), []).append(key)
    return {keys[0]: _mean([lines[key] for key in keys]) for keys in groups.values()}


def _mean(members: Sequence[Line]) -> Line:
    first = members[0]
    if len(members) == 1:
        return first
    low = max(min(line.curve.steps) for line in members)
    high = min(max(line.curve.steps) for line in members)
    steps = np.array([step for step in first.curve.steps if low <= step <= high], dtype=float)
    if not len(steps):
        return first
    # Long curves are thinned, each at other steps.
    rows = np.array([np.interp(steps, line.curve.steps, line.curve.values) for line in members])
    times = np.interp(steps, first.curve.steps, first.curve.times)
    curve = Curve([int(step) for step in steps], list(map(float, times)), list(map(float, rows.mean(axis=0))))
    band = (list(map(float, rows.min(axis=0))), list(map(float, rows.max(axis=0))))
    kind = "derived" if first.kind else ""
    return first._replace(name=f"{first.name} and {len(members) - 1} more, mean", curve=curve, band=band, kind=kind)
