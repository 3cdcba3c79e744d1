"""What to try after a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.advice.advice import Advice
from parlab.charts.format import field_title
from parlab.lab.models import Experiment, Run
from runners.config import check, engine_of, with_values
from runners.wire.protocol import RunState

MAX_RUNS = 500
"""Runs of an experiment that are compared."""


class Edge(NamedTuple):
    """An axis of which the fastest run has the first or the last value."""

    axis: str
    title: str
    value: float
    is_largest: bool


def fastest_run(experiment: Experiment) -> Run | None:
    """Return the finished run with the least time per sample, else the shortest step or other unit; None without one.

    A capacity search is not better for being short: those have none.
    """
    ended = experiment.runs.filter(state=RunState.FINISHED)
    finished = ended.exclude(step_time_s=None)
    if not finished.exists():
        others = ended.filter(summary__has_key="unit").select_related("experiment", "config").order_by("number")
        judged = [run for run in others[:MAX_RUNS] if not engine_of(run.resolved).searches_capacity]
        return min(judged, key=lambda run: run.unit_time_s or math.inf, default=None)
    order = "ms_per_sample" if finished.exclude(ms_per_sample=None).exists() else "step_time_s"
    return finished.exclude(**{order: None}).select_related("experiment", "config").order_by(order, "number").first()


def edges_of(experiment: Experiment, best: Run) -> list[Edge]:
    """Return the numeric axes whose best value is the smallest or largest that ran: beyond it nothing is measured."""
    edges = []
    points = list(experiment.runs.filter(config=best.config).values_list("point", flat=True))
    for axis, value in best.point.items():
        tried = {point[axis] for point in points if isinstance(point.get(axis), int | float)}
        if isinstance(value, bool) or not isinstance(value, int | float) or len(tried) < 2:
            continue
        if value in (min(tried), max(tried)):
            edges.append(Edge(axis, field_title(axis), value, value == max(tried)))
    return edges


def without_measured(run: Run, advice: Sequence[Advice]) -> list[Advice]:
    """Leave out the changes whose configuration a run of the experiment has measured already."""
    measured = _resolved_runs(run) if advice else []
    return [row for row in advice if not row.settings or not _is_measured(run, row.settings, measured)]


def _is_measured(run: Run, settings: Mapping[str, Any], measured: Sequence[Mapping[str, Any]]) -> bool:
    changed = check(with_values(run.resolved, dict(settings)))[0]
    # A check reads a whole configuration, so only those that may have the settings are checked.
    alike = (resolved for resolved in measured if _may_have(resolved, settings))
    return changed is not None and any(check(resolved)[0] == changed for resolved in alike)


def _may_have(resolved: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether a configuration has these settings; a field that it does not state may have any value."""
    for field, value in settings.items():
        section, _, name = field.partition(".")
        fields = resolved.get(section) or {}
        if isinstance(fields, Mapping) and name in fields and fields[name] != value:
            return False
    return True


def _resolved_runs(run: Run) -> list[dict[str, object]]:
    others = run.experiment.runs.filter(state__in=(RunState.FINISHED, RunState.OOM)).exclude(pk=run.pk)
    return list(others.values_list("resolved", flat=True)[:MAX_RUNS])
