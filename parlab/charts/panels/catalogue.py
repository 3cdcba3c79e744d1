"""The panels that the server draws, one row each: the page, its menu and the stored layouts read this table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from parlab.charts.svg import Svg

from . import against_axis, grid, per_run
from .frame import FOOT, MAX_ROWS, ROW, Runs, Size

UNIT_PX, COLUMN_PX = 24, 80
"""Height of a unit of the grid, and width of a column on a screen of 1440 pixels, gaps included."""
_HEAD_PX, _LEGEND_PX, _SIDES_PX = 54, 24, 36
USUAL_HEIGHT = 12


class Panel(NamedTuple):
    """A panel that the server draws."""

    name: str
    title: Callable[[Runs], str]
    unit: Callable[[Runs], str]
    """What stands beside the title: unit, and what is seen."""
    needs: Callable[[Runs], str]
    """Returns why there is nothing to draw, or an empty string."""
    draw: Callable[[Runs, Size], Svg]
    width: int = 4
    rows: Callable[[Runs], int] | None = None
    """The number of rows of a panel with a row for each run."""
    legend: Callable[[Runs], list[tuple[str, str]]] | None = None
    numbers: str = ""
    """The figure of the experiment whose CSV has these numbers."""
    is_late: bool = False
    """Whether it needs the steps of runs, which are read when the panel is seen."""

    def height(self, runs: Runs) -> int:
        """Return the height in units of the grid that shows all rows, within limits."""
        if self.rows is None:
            return USUAL_HEIGHT
        head = _HEAD_PX + (_LEGEND_PX if self.legend else 0)
        return max(8, min(16, math.ceil((self.rows(runs) * ROW + FOOT + 2 + head) / UNIT_PX)))

    def size(self, width: int, height: int) -> Size:
        """Return the size of the drawing in a panel of so many columns and units."""
        legend = _LEGEND_PX if self.legend else 0
        return Size(COLUMN_PX * width - _SIDES_PX, UNIT_PX * height - _HEAD_PX - legend)


def _key_unit(runs: Runs) -> str:
    return ", ".join(filter(None, [runs.unit.name, "p10\N{EN DASH}p90" if _has_spread(runs) else ""]))


def _has_spread(runs: Runs) -> bool:
    return any((spread := runs.spread(run)) and spread.p10 is not None for run in runs.measured)


PANELS: dict[str, Panel] = {
    panel.name: panel
    for panel in (
        Panel(
            "throughput",
            lambda runs: runs.measure.title,
            lambda runs: f"{_key_unit(runs)}{against_axis.axis_note(runs)}",
            against_axis.needs,
            against_axis.draw,
            numbers="throughput",
        ),
        Panel("sweep", lambda _: "Sweep", _key_unit, grid.needs, grid.draw, numbers="heatmap"),
        Panel(
            "memory",
            lambda _: "Peak memory",
            lambda runs: f"{per_run.memory_unit(runs).name} per rank",
            per_run.memory_needs,
            per_run.memory,
            rows=lambda runs: min(MAX_ROWS, sum(bool(run.point.memory_max) for run in runs.shown)),
            numbers="memory",
        ),
        Panel(
            "phases",
            lambda _: "Phases of a step",
            lambda runs: f"{per_run.phases_unit(runs).name}, mean of ranks",
            per_run.phases_needs,
            per_run.phases,
            width=6,
            rows=lambda runs: min(MAX_ROWS, sum(bool(run.point.timers) for run in runs.shown)),
            legend=per_run.phases_legend,
            numbers="phases",
        ),
        Panel(
            "steps",
            lambda _: "All steps",
            lambda runs: f"{per_run.steps_unit(runs).name}, bar: median",
            per_run.steps_needs,
            per_run.steps,
            width=6,
            rows=lambda runs: min(MAX_ROWS, sum(bool(run.point.step_time_s) for run in runs.shown)),
            is_late=True,
        ),
    )
}
"""By name, in the order of a page without a layout of its own."""
