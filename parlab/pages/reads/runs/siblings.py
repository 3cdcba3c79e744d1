"""The numbers of a run without curves, beside those of the other runs of its experiment."""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Q

from parlab.charts.measures import MEASURES
from parlab.charts.panels.frame import Runs
from parlab.charts.panels.shown import unit_of
from parlab.charts.panels.siblings import MAX_BARS, bars
from parlab.charts.svg import Svg
from parlab.lab.models import Run
from parlab.pages.reads.experiment_runs import shown_runs
from runners.wire.protocol import RunState

_COLUMNS = ("step_time_s", "samples_per_s", "tokens_per_s", "memory_max_bytes")
"""Numbers that the database has as columns: one of them tells whether there is anything to compare."""
_MEASURES = (("step_time",), ("tokens_per_s", "samples_per_s", "fps"), ("mfu", "compute"), ("memory",))
"""One panel for each: the first of these numbers that the run and another one have."""
_MAX_READ = 300
_WIDTH = 460


class SiblingPanel(NamedTuple):
    """A number of a run and its siblings."""

    title: str
    unit: str
    drawing: Svg
    left_out: int
    """Siblings that are not drawn."""


def has_siblings(run: Run) -> bool:
    """Whether another finished run of the experiment has one of the numbers of this one."""
    shared = Q()
    for column in _COLUMNS:
        if getattr(run, column) is not None:
            shared |= Q(**{f"{column}__isnull": False})
    others = run.experiment.runs.filter(shared, state=RunState.FINISHED).exclude(pk=run.pk)
    return bool(shared) and others.exists()


def sibling_panels(run: Run) -> list[SiblingPanel]:
    """Draw time, throughput, MFU and memory of a run among its siblings, as far as both have them."""
    finished = run.experiment.runs.filter(state=RunState.FINISHED).select_related("config")
    rows = list(finished.defer("launch", "config__data", "config__sweep").order_by("number")[:_MAX_READ])
    if all(row.pk != run.pk for row in rows):
        rows.append(run)
    shown = shown_runs(rows)
    own = next(one for one in shown if one.number == run.number)
    panels = []
    for names in _MEASURES:
        for measure in (MEASURES[name] for name in names):
            runs = Runs(shown, measure, unit_of(shown, measure))
            if measure.value(own.point) is not None and len(runs.measured) > 1:
                left_out = max(0, len(runs.measured) - MAX_BARS)
                drawing = bars(runs, run.number, _WIDTH)
                panels.append(SiblingPanel(measure.title, runs.unit.name, drawing, left_out))
                break
    return panels
