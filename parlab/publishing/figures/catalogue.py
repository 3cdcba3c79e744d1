"""The figures of experiments and runs by name, for pages, reports, JSON and CSV."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from parlab.charts import theme
from parlab.charts.measures import AUTO, Options
from parlab.charts.registry import Figure, Source
from parlab.charts.runs.telemetry import KINDS
from parlab.charts.sweeps import bandwidth, capacity, device_map
from parlab.charts.theme import Drawing
from parlab.lab.models import Attempt, Experiment, Run
from parlab.lab.selectors.analysis.plans import predicted_points
from parlab.lab.selectors.analysis.sweep import run_points
from parlab.lab.selectors.device_grids import device_grid

from . import engine_measurements, run_curves, telemetry
from .chosen_ranks import ChosenRanks
from .windows import Window

SERIES = "series"
"""The figure of a run that draws the series that an address or a directive names."""
CURVES_OF_RUNS = "curves"
"""The figure of an experiment that draws series of all its runs."""

_READERS: Mapping[Source, Callable[[Collection[Experiment], Sequence[Run]], Any]] = {
    Source.POINTS: lambda _experiments, runs: run_points(runs),
    Source.PREDICTIONS: lambda _experiments, runs: predicted_points(runs),
    Source.MESSAGES: engine_measurements.experiment_messages,
}


def experiment_drawing(
    figure: Figure, runs: Sequence[Run], options: Options = AUTO, experiments: Collection[Experiment] | None = None
) -> Drawing:
    """Draw a figure of these runs; `experiments` (default: those of the runs) are read for imported files."""
    if experiments is None:
        experiments = {run.experiment for run in runs}
    return figure.drawing(_READERS[figure.source](experiments, runs), options)


class CurveFigure(Protocol):
    """Draws chosen ranks of a run."""

    def __call__(self, run: Run, attempt: Attempt, window: Window, chosen: ChosenRanks = ..., /) -> Drawing: ...


def _bandwidth(run: Run, attempt: Attempt, _window: Window) -> Drawing:
    return bandwidth.figure(engine_measurements.own_messages(run, attempt))


def _capacity(run: Run, attempt: Attempt, _window: Window) -> Drawing:
    search = engine_measurements.run_search(run, attempt)
    return capacity.figure(search) if search else theme.missing("Capacity", "needs a run of a capacity search")


def _devices(run: Run, _attempt: Attempt, _window: Window) -> Drawing:
    """Return the numbers of the device map; the page draws the map itself."""
    grid = device_map.draw(device_grid(run))
    drawing = theme.missing("Device map", "needs a run with stages or shards")
    return drawing._replace(table=grid.table) if grid else drawing


CURVES: Mapping[str, CurveFigure] = {
    "step-time": run_curves.step_time,
    "memory": run_curves.memory,
}
"""The figures of a run that draw chosen ranks."""
RUN_FIGURES: dict[str, Callable[[Run, Attempt, Window], Drawing]] = {
    **CURVES,
    "phases": run_curves.step_phases,
    "bandwidth": _bandwidth,
    "capacity": _capacity,
    "devices": _devices,
    **{name: partial(telemetry.drawing, name) for name in KINDS},
}
"""The figures of a run by name."""
